"""What stands around the results: what was run, key figures, how to read it all, provenance."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from resilisim.evaluation.records import LOSS_LABELS
from resilisim.evaluation.report.cells import interval_words, percent, plain, signed_points
from resilisim.evaluation.report.content import Card, Definitions, Fold, Section
from resilisim.evaluation.report.facts import RunFacts, count_of
from resilisim.evaluation.report.flaws import FLAWED, OPTIMAL
from resilisim.evaluation.report.pooling import difference
from resilisim.evaluation.report.rows import PromptPools
from resilisim.evaluation.summary import GroupSummary

HEADING = "How far from the best possible?"
ENDING = "Made by ResiliSim. This file needs no network; every number in it follows from the folder of the run."

READING: Mapping[str, str] = {
    "V* (ceiling)": (
        "The highest probability of full success that any agent can have from a state if it knows the law, the "
        "required tools and what happened so far, but not the luck to come. Solved exactly for every state."
    ),
    "Q*": "The same, if a given message is sent first and play is best from there on.",
    "regret": "V* − Q*: what a message gave away before its luck was drawn. Never negative; 0 for a best message.",
    "luck": "V* after the message − Q*: what the draw brought. Its mean is zero for every agent.",
    "identity": "Of each episode: 1 − outcome = (1 − V* of the start) + sum of regret − sum of luck.",
    "luck-adjusted": (
        "Success with the luck taken out: the mean of outcome − β × luck, β fitted on other tasks. It estimates the "
        "same rate as raw success, with less noise."
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
        f"{count_of(sums.num_episodes, 'episode')}, all on the same luck. Tools fail at random by a known law, so "
        "the best success rate that any agent could reach is computed exactly, and every lost point has a cause."
    )


def cards(facts: RunFacts, pools: PromptPools) -> list[Card]:
    """Return the key figures."""
    ordinary = [row for row in facts.rows if not row.privileged]
    shown: list[Card] = []
    ceiling = next((row.optimum for row in facts.rows if not row.tries_again), None)
    if ceiling is not None:
        text = (
            f"the best that any agent can reach on these tasks; {percent(1.0 - ceiling.value)} points are out of "
            "everyone's reach. Exact, so it has no interval"
        )
        shown.append(Card("Ceiling V*", f"{percent(ceiling.value)}%", text))
    if ordinary:
        shown += _best_cards(ordinary)
    drop = _largest_drop(facts, pools)
    if drop is not None:
        shown.append(drop)
    # Finding out what a prompt does not say is no mistake, so it is not shown as one.
    costs = [(row.losses[label], label, row) for row in ordinary for label in row.losses if label != "information"]
    if costs:
        loss, label, row = max(costs, key=lambda entry: entry[0].value)
        text = f"{interval_words(loss)}, {row.policy} under {row.prompt_type}: {LOSS_LABELS.get(label, label)}"
        shown.append(Card("Costliest mistake", f"{percent(loss.value)} points", text))
    return shown


def reading_section() -> Section:
    """Return what the words of the report mean."""
    causes = [(plain(label), f"Points lost by {text}.") for label, text in LOSS_LABELS.items()]
    return Section(
        "reading",
        "How to read this",
        [Definitions(list(READING.items())), Fold("All causes of lost points", [Definitions(causes)])],
    )


def provenance_section(facts: RunFacts) -> Section:
    """Return everything that decides the results."""
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
    text = "Everything that decides these results. The same arguments and versions give the same episodes."
    return Section("provenance", "Provenance", [text, Definitions(list(entries.items()))])


def _best_cards(rows: Sequence[GroupSummary]) -> list[Card]:
    best = max(rows, key=lambda row: row.success.value)
    text = f"{interval_words(best.success)}, {best.policy} under {best.prompt_type}"
    found = [Card("Highest success" if len(rows) > 1 else "Success", f"{percent(best.success.value)}%", text)]
    if math.isnan(best.luck_adjusted.value):
        return found
    found.append(
        Card(
            "The same, luck taken out",
            f"{percent(best.luck_adjusted.value)}%",
            f"{interval_words(best.luck_adjusted)}; luck brought it {signed_points(best.luck.value)} points",
        )
    )
    found.append(
        Card(
            "Its share of the ceiling",
            f"{percent(best.share_of_ceiling.value)}%",
            f"{interval_words(best.share_of_ceiling)}; calls cost it {percent(best.regret.value)} points "
            f"{interval_words(best.regret)}",
        )
    )
    return found


def _largest_drop(facts: RunFacts, pools: PromptPools) -> Card | None:
    """Return how much the policy that stands out most loses under flawed plans."""
    found = []
    for policy in pools.policies:
        sound, flawed = pools.get(policy, OPTIMAL), pools.get(policy, FLAWED)
        if sound is not None and flawed is not None and not pools.is_privileged(policy):
            found.append((difference(sound.success, flawed.success), policy))
    found = [(drop, policy) for drop, policy in found if not math.isnan(drop.value)]
    if not found:
        return None
    drop, policy = max(found, key=lambda entry: entry[0].value)
    text = f"{interval_words(drop)}, {policy}: success under optimal minus success under flawed plans"
    return Card(
        "Largest drop by flawed plans" if len(found) > 1 else "Drop by flawed plans",
        f"{percent(drop.value)} points",
        text,
    )


def _as_text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_as_text(entry)}" for name, entry in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) > 12 and list(value) == list(range(len(value))):
            return f"0 to {len(value) - 1:,}"
        texts = [_as_text(entry) for entry in value[:40]]
        return ", ".join(texts) + (f" and {len(value) - 40:,} more" if len(value) > 40 else "")
    return value if isinstance(value, str) else json.dumps(value)
