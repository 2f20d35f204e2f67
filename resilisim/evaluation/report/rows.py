"""What sections share: labels of rows, marks of success, policies in the order of the run."""

from __future__ import annotations

from collections.abc import Sequence

from resilisim.evaluation.accumulate import GroupSums
from resilisim.evaluation.report.charts import Mark
from resilisim.evaluation.report.drawing import RowLabel
from resilisim.evaluation.report.facts import RunFacts
from resilisim.evaluation.report.pooling import Pool, base_prompt, pool
from resilisim.evaluation.summary import GroupSummary, ordered_groups

# Prompt types in the order of the ResiliBench paper's tables; others follow as they were met.
PROMPT_ORDER = ("baseline", "chain_of_thought", "optimal", "flawed")


def labels_of(rows: Sequence[GroupSummary]) -> list[RowLabel]:
    """Return what stands beside the rows of a chart."""
    several_prompts = len({row.prompt_type for row in rows}) > 1
    labels = []
    for number, row in enumerate(rows):
        repeated = number > 0 and rows[number - 1].policy == row.policy
        full_name = f"{row.policy} under {row.prompt_type}" + (" (privileged)" if row.privileged else "")
        prompt = row.prompt_type if several_prompts else ""
        labels.append(RowLabel("" if repeated else row.policy, prompt, row.privileged, full_name))
    return labels


def success_marks(row: GroupSummary) -> list[Mark]:
    """Return the mark of a row's success."""
    style = "privileged" if row.privileged else "raw"
    return [Mark(row.success, style, f"{row.policy} under {row.prompt_type}, success")]


def policies_of(facts: RunFacts) -> list[str]:
    """Return the policies of a run in the order of its command."""
    return list(dict.fromkeys(row.policy for row in facts.rows))


class PromptPools:
    """The groups of a run by policy and prompt type, where all flawed prompts of a policy count as one.

    Args:
        facts: The run's facts.

    Attributes:
        policies: Policies in the order of the command.
        prompts: Prompt types without their flaws, those of the ResiliBench paper first and in its order.
    """

    def __init__(self, facts: RunFacts) -> None:
        parts: dict[tuple[str, str], list[GroupSums]] = {}
        for group in ordered_groups(facts.sums, *facts.order):
            parts.setdefault((group.policy, base_prompt(group.prompt_type)), []).append(group)
        self._pools = {key: pool(facts.sums, groups, key[1]) for key, groups in parts.items()}
        self.policies = policies_of(facts)
        found = dict.fromkeys(prompt for _, prompt in self._pools)
        known = [prompt for prompt in PROMPT_ORDER if prompt in found]
        self.prompts = known + [prompt for prompt in found if prompt not in PROMPT_ORDER]

    def get(self, policy: str, prompt: str) -> Pool | None:
        """Return the pool of a policy under a prompt type, or None if it has no episodes."""
        return self._pools.get((policy, prompt))

    def of_policy(self, policy: str) -> list[Pool]:
        """Return the pools of a policy, in the order of the prompts."""
        found = (self.get(policy, prompt) for prompt in self.prompts)
        return [entry for entry in found if entry is not None]

    def is_privileged(self, policy: str) -> bool:
        """Return whether a policy saw the state in any episode."""
        return any(entry.group.privileged for entry in self.of_policy(policy))
