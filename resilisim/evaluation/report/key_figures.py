"""The key figures of a report: the few numbers that a reader should take away."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from resilisim.evaluation.records import LOSS_LABELS
from resilisim.evaluation.report.cells import interval_words, percent, signed_points
from resilisim.evaluation.report.content import Card
from resilisim.evaluation.report.facts import RunFacts
from resilisim.evaluation.report.flaws import FLAWED, OPTIMAL
from resilisim.evaluation.report.pooling import difference, pool
from resilisim.evaluation.report.rows import PromptPools
from resilisim.evaluation.statistics import Estimate, clustered_ratio
from resilisim.evaluation.summary import GroupSummary

NOT_PRIVILEGED = "of policies that do not see the state"


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
        shown += _best_cards(facts, ordinary)
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


def adjusted_share(facts: RunFacts, row: GroupSummary) -> Estimate:
    """Return the share of the ceiling with the luck taken out: luck-adjusted success divided by mean V*."""
    entry = pool(facts.sums, [facts.sums.groups[row.policy, row.prompt_type]], row.prompt_type)
    optimum = entry.group.optimum.to_array(len(facts.sums.tasks))  # (num_tasks,)
    present = entry.success.denominators > 0
    share = clustered_ratio(entry.adjusted.numerators[present], optimum[present], row.num_episodes)
    if math.isnan(share.low) or math.isnan(row.luck_adjusted.low):
        return share
    # Where all tasks are alike the error is 0, so the interval is never narrower than what the success rate rules out.
    if share.standard_error < 1e-12:
        low, high = (end / row.optimum.value for end in (row.luck_adjusted.low, row.luck_adjusted.high))
        return replace(share, low=min(low, share.value), high=max(high, share.value))
    return replace(share, low=max(share.low, 0.0))


def _best_cards(facts: RunFacts, rows: Sequence[GroupSummary]) -> list[Card]:
    best = max(rows, key=lambda row: row.success.value)
    of_whom = f" {NOT_PRIVILEGED}" if len(rows) < len(facts.rows) else ""
    text = f"{interval_words(best.success)}, {best.policy} under {best.prompt_type}"
    several = len(rows) > 1
    if several and of_whom:
        text += f"; the highest{of_whom}"
    found = [Card("Highest success" if several else "Success", f"{percent(best.success.value)}%", text)]
    if math.isnan(best.luck_adjusted.value):
        return found
    found.append(
        Card(
            "The same, luck taken out",
            f"{percent(best.luck_adjusted.value)}%",
            f"{interval_words(best.luck_adjusted)}; luck brought it {signed_points(best.luck.value)} points",
        )
    )
    share, raw = adjusted_share(facts, best), best.share_of_ceiling.value
    by_luck = ", above 100 by luck" if raw > 1.0 else ""
    found.append(
        Card(
            "Its share of the ceiling, luck taken out",
            f"{percent(share.value)}%",
            f"{interval_words(share)}; with its luck {percent(raw)}%{by_luck}. Calls cost it "
            f"{percent(best.regret.value)} points {interval_words(best.regret)}",
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
