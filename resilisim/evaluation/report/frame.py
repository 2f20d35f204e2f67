"""What stands around the results: title, key figures, contents, how to read it all, provenance."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from resilisim.evaluation.records import LOSS_LABELS
from resilisim.evaluation.report.facts import RunFacts, count_of
from resilisim.evaluation.report.markup import Child, Markup, element
from resilisim.evaluation.summary import format_interval, format_percent

CONTENTS: Mapping[str, str] = {
    "success": "Success",
    "losses": "Where points were lost",
    "types": "By task type",
    "luck": "Luck",
    "tasks": "Worst tasks",
    "episodes": "Episodes",
    "reading": "How to read this",
    "provenance": "Provenance",
}

READING: Mapping[str, str] = {
    "V* (ceiling)": (
        "The highest probability of full success that any agent can have from a state if it knows the law, the "
        "required tools and what happened so far, but not the luck to come. Solved exactly for every state."
    ),
    "Q*": "The same, if a given message is sent first and play is best from there on.",
    "regret": "V* − Q*: what a message gave away before its luck was drawn. Never negative; 0 for a best message.",
    "luck": "V* after the message − Q*: what the draw brought. Its mean is zero for every agent.",
    "identity": "Of each episode: 1 − outcome = (1 − V* of the start) + sum of regret − sum of luck.",
    "intervals": (
        "95%, Student's t, clustered by task: episodes of one task resemble each other and are one unit of evidence. "
        "Rates close to 0 or 1 have Korn and Graubard's interval, since Student's would leave the range. A single task "
        "has none."
    ),
    "full success": (
        "All required tools succeeded, their first successes in the required order, a required output tool among them "
        "if there is one, and completion was signalled."
    ),
    "privileged *": "A policy that is shown the state and the required tools; no fair comparison with the others.",
}


def section(target: str, *content: Child) -> Markup:
    """Return a section under its heading in CONTENTS."""
    return element("section", element("h2", CONTENTS[target]), *content, id=target)


def report_title(facts: RunFacts) -> str:
    """Return the title of the page."""
    policies = list(dict.fromkeys(row.policy for row in facts.rows))
    names = ", ".join(policies) if len(policies) <= 4 else f"{len(policies)} policies"
    return f"ResiliSim report: {names}" if policies else "ResiliSim report"


def header(facts: RunFacts) -> Markup:
    """Return the heading, what was run, and a warning if it is not finished."""
    sums = facts.sums
    seeds = facts.manifest["arguments"].get("seeds", ())
    policies = count_of(len({row.policy for row in facts.rows}), "policy", "policies")
    prompts = count_of(len({row.prompt_type for row in facts.rows}), "prompt type")
    warning = None
    if sums.num_episodes < facts.num_planned:
        warning = element(
            "p",
            f"Not finished: {sums.num_episodes:,} of {facts.num_planned:,} episodes are here. "
            "The same command goes on from there.",
            class_="warning",
        )
    return element(
        "header",
        element("p", "ResiliSim", class_="brand"),
        element("h1", "How far from the best possible?"),
        element(
            "p",
            f"{policies} on {count_of(len(sums.tasks), 'task')} under {prompts}, {count_of(len(seeds), 'seed')} each: "
            f"{count_of(sums.num_episodes, 'episode')}, all on the same luck. Tools fail at random by a known law, so "
            "the best success rate that any agent could reach is computed exactly, and every lost point has a cause.",
            class_="lead",
        ),
        warning,
    )


def cards(facts: RunFacts) -> Markup:
    """Return the key figures."""
    ordinary = [row for row in facts.rows if not row.privileged]
    ceiling = next((row.optimum.value for row in facts.rows if not row.tries_again), math.nan)
    beyond = format_percent(1.0 - ceiling)
    reach = f"the best that any agent can reach on these tasks; {beyond} points are out of everyone's reach"
    shown = [_card("Ceiling V*", f"{format_percent(ceiling)}%", reach)] if ceiling == ceiling else []
    if ordinary:
        best = max(ordinary, key=lambda row: row.success.value)
        shown.append(
            _card(
                "Highest success" if len(ordinary) > 1 else "Success",
                f"{format_percent(best.success.value)}%",
                f"{format_interval(best.success)}, {best.policy} under {best.prompt_type}",
            )
        )
        shown.append(
            _card(
                "Its share of the ceiling",
                f"{format_percent(best.share_of_ceiling.value)}%",
                f"{format_interval(best.share_of_ceiling)}; calls cost it {format_percent(best.regret.value)} points",
            )
        )
    # Finding out what a prompt does not say is no mistake, so it is not shown as one.
    costs = [
        (row.losses[label].value, label, row) for row in ordinary for label in row.losses if label != "information"
    ]
    if costs:
        cost, label, row = max(costs, key=lambda entry: entry[0])
        shown.append(
            _card(
                "Costliest mistake",
                f"{format_percent(cost)} points",
                f"{row.policy} under {row.prompt_type}: {LOSS_LABELS.get(label, label)}",
            )
        )
    return element("dl", shown, class_="cards")


def contents() -> Markup:
    """Return links to the sections."""
    links = [element("a", name, href=f"#{target}") for target, name in CONTENTS.items()]
    return element("nav", links, aria_label="Sections")


def reading() -> Markup:
    """Return what the words of the report mean."""
    causes = {label.replace("_", " "): f"Points lost by {text}." for label, text in LOSS_LABELS.items()}
    return section(
        "reading",
        _keys(READING),
        element("details", element("summary", "All causes of lost points"), _keys(causes)),
    )


def provenance(facts: RunFacts) -> Markup:
    """Return everything that decides the results."""
    manifest = facts.manifest
    versions = manifest.get("versions", {})
    entries = {name.replace("_", " "): _as_text(value) for name, value in sorted(manifest["arguments"].items())}
    entries |= {
        "hash of all these": str(manifest["hash"]),
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(versions.items())),
        "platform": str(manifest.get("platform", "")),
        "begun": str(manifest.get("created", "")),
        "largest error of the identity": f"{facts.sums.largest_identity_error:.1e}",
    }
    return section(
        "provenance",
        element("p", "Everything that decides these results. The same arguments and versions give the same episodes."),
        _keys(entries),
        element(
            "footer",
            "Made by ResiliSim. This file needs no network; every number in it follows from episodes.jsonl.",
        ),
    )


def _card(name: str, figure: str, detail: str) -> Markup:
    return element(
        "div",
        element("dt", name),
        element("dd", element("span", figure, class_="figure"), element("span", detail, class_="detail")),
        class_="card",
    )


def _keys(entries: Mapping[str, str]) -> Markup:
    return element("dl", [[element("dt", name), element("dd", text)] for name, text in entries.items()], class_="keys")


def _as_text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_as_text(entry)}" for name, entry in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) > 12 and list(value) == list(range(len(value))):
            return f"0 to {len(value) - 1:,}"
        texts = [_as_text(entry) for entry in value[:40]]
        return ", ".join(texts) + (f" and {len(value) - 40:,} more" if len(value) > 40 else "")
    return value if isinstance(value, str) else json.dumps(value)
