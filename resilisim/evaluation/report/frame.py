"""What stands around the results: what was run, how to read it all, provenance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from resilisim.evaluation.episode.record import LOSS_LABELS
from resilisim.evaluation.report.cells import REGRET_ADDS_UP, plain
from resilisim.evaluation.report.content import Definitions, Fold, Section
from resilisim.evaluation.report.facts import RunFacts, count_of

HEADING = "How far from the best possible?"
PROVENANCE = "The same arguments and versions give the same episodes."
ENDING = "Made by ResiliSim. This file needs no network; every number in it follows from the folder of the run."

READING: Mapping[str, str] = {
    "ceiling": (
        "The best success rate that any agent can have with what its prompt tells: V* where the tools are known; where "
        "their names must be found, V* with fewer turns, one less for each search that it takes at the least."
    ),
    "V*": (
        "The highest probability of full success that any agent can have from a state if it knows the law, the "
        "required tools and what happened so far, but not the luck to come. Solved exactly for every state."
    ),
    "Q*": "The same, if a given message is sent first and play is best from there on.",
    "regret, lost by calls": (
        "V* − Q*: what a message gave away before its luck was drawn. Never negative; 0 for a best message. "
        + REGRET_ADDS_UP
    ),
    "luck": "V* after the message − Q*: what the draw brought. Its mean is zero for every agent.",
    "identity": "Of each episode: 1 − outcome = (1 − V* of the start) + sum of regret − sum of luck.",
    "luck-adjusted": (
        "Success with the luck taken out: the mean of outcome − β × luck, β fitted on other tasks. It estimates the "
        "same rate as raw success, with less noise."
    ),
    "share of ceiling": (
        "Luck-adjusted success divided by the ceiling, so 100% is the best possible play: the score that policies are "
        "sorted by. The raw share, with the luck left in, exceeds 100% where the draws were kind."
    ),
    "intervals": (
        "95%, Student's t, clustered by task: episodes of one task resemble each other and are one unit of evidence. "
        "Rates close to 0 or 1 have Korn and Graubard's interval, since Student's would leave the range. A single task "
        "has none."
    ),
    "full success": (
        "All required tools succeeded, their first successes in the required order, a required output tool among them "
        "if there is one, and completion was signalled."
    ),
    "partial success": (
        "Not ended by failures in a row or a loop, enough of the required tools succeeded for the task's type, and "
        "either their order held or a required output tool succeeded."
    ),
    "information": (
        "A cause of lost points: what it costs to find out which tools to use where the prompt does not say so. A "
        "price, not a blame."
    ),
    "obey and deviate": (
        "Of a flawed plan. Obey: the exact chance of success of following it to the letter, repeating each step until "
        "it succeeds or reaches the limit that the plan sets. Deviate: V*, which an "
        "agent can still reach that does not believe the plan."
    ),
    "pass@k and pass^k": "The chance that at least one of k episodes of a task succeeds, and the chance that all k do.",
    "p (Holm)": (
        "In comparisons: the chance of a difference at least as large if there were none, made larger the more "
        "policies and prompts are compared, since among many one differs by chance (Holm, 1979)."
    ),
    "privileged *": "A policy that is shown the state and the required tools; no fair comparison with the others.",
}


def report_title(facts: RunFacts) -> str:
    """Return the title of the page."""
    policies = list(dict.fromkeys(row.policy for row in facts.rows))
    names = ", ".join(policies) if len(policies) <= 4 else f"{len(policies)} policies"
    return f"ResiliSim report: {names}" if policies else "ResiliSim report"


def lead(facts: RunFacts) -> str:
    """Return what was run, in two sentences."""
    sums = facts.sums
    seeds = facts.manifest["arguments"].get("seeds", ())
    policies = count_of(len({row.policy for row in facts.rows}), "policy", "policies")
    prompts = count_of(len({row.prompt_type for row in facts.rows}), "prompt type")
    return (
        f"{policies} on {count_of(len(sums.tasks), 'task')} under {prompts}, {count_of(len(seeds), 'seed')} each: "
        f"{count_of(sums.num_episodes, 'episode')}, all with the same draws. Tools fail at random by a known law, so "
        "the best possible success rate is computed exactly, and every lost point has a cause."
    )


def reading_section(facts: RunFacts) -> Section:
    """Return what the words of the report mean, and everything that decides the results."""
    causes = [(plain(label), f"Points lost by {text}.") for label, text in LOSS_LABELS.items()]
    return Section(
        "reading",
        "Words and provenance",
        [
            Fold("What the words mean", [Definitions(list(READING.items()))]),
            Fold("All causes of lost points", [Definitions(causes)]),
            Fold("Everything that decides these results", [PROVENANCE, _provenance(facts)]),
        ],
    )


def _provenance(facts: RunFacts) -> Definitions:
    manifest = facts.manifest
    versions = manifest.get("versions", {})
    entries = {plain(name): _as_text(value) for name, value in sorted(manifest["arguments"].items())}
    entries |= {
        "hash of all these": str(manifest["hash"]),
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(versions.items())),
        "platform": str(manifest.get("platform", "")),
        "begun": str(manifest.get("created", "")),
        "largest error of the identity": f"{facts.sums.largest_identity_error:.1e}",
    }
    return Definitions(list(entries.items()))


def _as_text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_as_text(entry)}" for name, entry in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) > 12 and list(value) == list(range(len(value))):
            return f"0 to {len(value) - 1:,}"
        texts = [_as_text(entry) for entry in value[:40]]
        return ", ".join(texts) + (f" and {len(value) - 40:,} more" if len(value) > 40 else "")
    return value if isinstance(value, str) else json.dumps(value)
