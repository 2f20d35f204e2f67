"""The key figures of a report: the few numbers that a reader should take away."""

from __future__ import annotations

import math
from collections.abc import Sequence

from resilisim.evaluation.episode.record import LOSS_LABELS
from resilisim.evaluation.report.cells import interval_words, percent, plain, signed_points
from resilisim.evaluation.report.content import Card
from resilisim.evaluation.report.flaws import FLAWED, OPTIMAL
from resilisim.evaluation.report.pooling import difference
from resilisim.evaluation.report.results import must_search
from resilisim.evaluation.report.rows import PromptPools, merit
from resilisim.evaluation.summary import SMALLEST_SHOWN, GroupSummary

NOT_PRIVILEGED = "of policies that do not see the state"


def cards(pools: PromptPools) -> list[Card]:
    """Return the key figures: the best policy, its ceiling, the drop under flawed plans and the costliest mistake."""
    ordinary = [row for row in pools.rows if not row.privileged]
    best = min(ordinary or pools.rows, key=merit)
    shown = [_best(best, ordinary, len(pools.rows))]
    if not math.isnan(best.ceiling.value):
        shown.append(_ceiling(best))
    drop = _largest_drop(pools)
    if drop is not None:
        shown.append(drop)
    # Finding out what a prompt does not say is no mistake: only what goes beyond the least that it costs counts.
    costs = [(row.avoidable_loss(label), label, row) for row in ordinary for label in row.losses if not row.tries_again]
    costs = [entry for entry in costs if entry[0] >= SMALLEST_SHOWN]
    if costs:
        loss, label, row = max(costs, key=lambda entry: entry[0])
        interval = "" if label == "information" else f"{interval_words(row.losses[label])}: "
        text = f"{interval}{LOSS_LABELS.get(label, plain(label))}"
        shown.append(Card("Costliest mistake", f"{percent(loss)} points", text, _whose(row)))
    return shown


def _whose(row: GroupSummary) -> str:
    return f"{row.policy}, {plain(row.prompt_type)} prompt"


def _best(best: GroupSummary, ordinary: Sequence[GroupSummary], num_rows: int) -> Card:
    several = num_rows > 1
    among = f", the best {NOT_PRIVILEGED}" if ordinary and len(ordinary) < num_rows else ""
    raw = f"{percent(best.success.value)}%"
    if math.isnan(best.adjusted_share.value):
        text = f"{interval_words(best.success)}, raw{among}. It may try again, so there is no ceiling"
        return Card("Highest success" if several else "Success", raw, text, _whose(best))
    return Card(
        "Closest to the ceiling" if several else "Share of the ceiling",
        f"{percent(best.adjusted_share.value)}%",
        f"{interval_words(best.adjusted_share)}, luck taken out{among}. Raw success is {raw}, with "
        f"{signed_points(best.luck.value)} points of luck",
        _whose(best),
    )


def _ceiling(best: GroupSummary) -> Card:
    text = "the best success rate that any agent can have on these tasks, computed exactly"
    if must_search(best):
        text += f", if it must find the tools first; V*, with the tools known, is {percent(best.optimum.value)}%"
    return Card("The ceiling", f"{percent(best.ceiling.value)}%", text)


def _largest_drop(pools: PromptPools) -> Card | None:
    """Return how much the policy that stands out most loses under flawed plans."""
    found = []
    for policy in pools.policies:
        sound, flawed = pools.get(policy, OPTIMAL), pools.get(policy, FLAWED)
        if sound is not None and flawed is not None and not pools.is_privileged(policy):
            adjusted = difference(sound.adjusted, flawed.adjusted)
            is_raw = math.isnan(adjusted.value)
            found.append((difference(sound.success, flawed.success) if is_raw else adjusted, policy, is_raw))
    found = [entry for entry in found if not math.isnan(entry[0].value)]
    if not found:
        return None
    drop, policy, is_raw = max(found, key=lambda entry: entry[0].value)
    return Card(
        "Largest drop under flawed plans" if len(found) > 1 else "Drop under flawed plans",
        f"{percent(drop.value)} points",
        f"{interval_words(drop)} of {'raw' if is_raw else 'luck-adjusted'} success, from optimal to flawed prompts",
        policy,
    )
