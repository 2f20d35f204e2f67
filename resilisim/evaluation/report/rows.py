"""What sections share: which policy comes first, and groups of a run by policy and prompt type."""

from __future__ import annotations

import math
from collections.abc import Sequence

from resilisim.evaluation.report.pooling import Pool, base_prompt, pool
from resilisim.evaluation.table.facts import RunFacts
from resilisim.evaluation.table.summary import GroupSummary

# Prompt types in the order of the ResiliBench paper's tables; others follow as they were met.
PROMPT_ORDER = ("baseline", "chain_of_thought", "optimal", "flawed")


def merit(row: GroupSummary) -> tuple[bool, bool, float]:
    """Return what rows are sorted by, the best first.

    Luck-adjusted success as a share of the ceiling decides. Policies that have none, because they may try again, follow
    by their raw success; privileged ones, which are no fair comparison, come last.
    """
    share = row.adjusted_share.value
    return row.privileged, math.isnan(share), -round(row.success.value if math.isnan(share) else share, 9)


def ranked(rows: Sequence[GroupSummary]) -> list[GroupSummary]:
    """Return rows by prompt type, in the order in which these were met, and within each the best first."""
    prompts = list(dict.fromkeys(row.prompt_type for row in rows))
    return sorted(rows, key=lambda row: (prompts.index(row.prompt_type), merit(row)))


def policies_of(facts: RunFacts) -> list[str]:
    """Return the policies of a run, the best first: by the mean of what rows are sorted by over their episodes."""
    own: dict[str, list[GroupSummary]] = {}
    for row in facts.rows:
        own.setdefault(row.policy, []).append(row)

    def mean_merit(policy: str) -> tuple[bool, bool, float]:
        rows = own[policy]
        worth = math.fsum(merit(row)[2] * row.num_episodes for row in rows) / sum(row.num_episodes for row in rows)
        return any(row.privileged for row in rows), any(merit(row)[1] for row in rows), round(worth, 9)

    return sorted(own, key=mean_merit)


class PromptPools:
    """The groups of a run by policy and prompt type, where all flawed prompts of a policy count as one.

    Args:
        facts: The run's facts.

    Attributes:
        policies: Policies, the best first.
        prompts: Prompt types without their flaws, those of the ResiliBench paper first and in its order.
        rows: Summaries of policies under prompt types, by prompt and the best first.
    """

    def __init__(self, facts: RunFacts) -> None:
        parts: dict[tuple[str, str], list[str]] = {}
        for policy, prompt in facts.table.groups():
            parts.setdefault((policy, base_prompt(prompt)), []).append(prompt)
        self._pools = {key: pool(facts.table.group(key[0], *own), key[1]) for key, own in parts.items()}
        self.policies = policies_of(facts)
        found = dict.fromkeys(prompt for _, prompt in self._pools)
        known = [prompt for prompt in PROMPT_ORDER if prompt in found]
        self.prompts = known + [prompt for prompt in found if prompt not in PROMPT_ORDER]
        pools = (self.get(policy, prompt) for prompt in self.prompts for policy in self.policies)
        self.rows = ranked([entry.summary for entry in pools if entry is not None])

    def get(self, policy: str, prompt: str) -> Pool | None:
        """Return the pool of a policy under a prompt type, or None if it has no episodes."""
        return self._pools.get((policy, prompt))

    def of_policy(self, policy: str) -> list[Pool]:
        """Return the pools of a policy, in the order of the prompts."""
        found = (self.get(policy, prompt) for prompt in self.prompts)
        return [entry for entry in found if entry is not None]

    def is_privileged(self, policy: str) -> bool:
        """Return whether a policy saw the state in any episode."""
        return any(entry.summary.privileged for entry in self.of_policy(policy))
