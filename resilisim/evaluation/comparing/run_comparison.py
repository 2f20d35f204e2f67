"""Whole runs compared: which of their policies belong together, each pair under each prompt type, and all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilisim.errors import InvalidInputError, unknown_name
from resilisim.evaluation.comparing.comparability import refuse_incomparable
from resilisim.evaluation.comparing.comparison import Comparison, compare_tables, pool_comparisons
from resilisim.evaluation.comparing.differences import METHODS
from resilisim.evaluation.comparing.episode_table import EpisodeTable, read_episode_table
from resilisim.evaluation.comparing.multiple_testing import holm


@dataclass(frozen=True, slots=True, repr=False)
class RunComparison:
    """Two runs compared.

    Attributes:
        pooled: All matched episodes together.
        comparisons: One for each matched pair of policies and prompt type.
        num_unfinished: Episodes that A and B have planned and not played.
        same_run: Whether A and B are policies of one run.
        tasks_differ: Whether the tasks of A and B have the same ids and are not the same to the letter: reworded, say,
            or in another order. Records do not hold their texts, so the files of tasks are what is compared.
    """

    pooled: Comparison
    comparisons: tuple[Comparison, ...]
    num_unfinished: tuple[int, int]
    same_run: bool
    tasks_differ: bool = False

    def __repr__(self) -> str:
        """Return what is compared and on how many pairs: all episodes would fill pages."""
        compared = dict.fromkeys(f"{each.label_a} - {each.label_b}" for each in self.comparisons)
        prompts = dict.fromkeys(each.prompt for each in self.comparisons)
        return f"RunComparison({_listed([*compared])}, prompts: {_listed([*prompts])}, {self.pooled.episodes} pairs)"

    def holm_p_values(self, method: str) -> list[float]:
        """Return the p-values of the comparisons by one method, corrected for their number (Holm 1979)."""
        return holm([comparison.differences[method].p_value for comparison in self.comparisons])

    def to_mapping(self) -> dict[str, Any]:
        """Return everything as JSON values: each method pooled, then each comparison; NaN becomes None."""
        corrected = {method: self.holm_p_values(method) for method in METHODS}
        rows = []
        for place, comparison in enumerate(self.comparisons):
            row = comparison.to_mapping()
            for method in METHODS:
                p_value = corrected[method][place]
                row[method]["p_value_holm"] = None if math.isnan(p_value) else p_value
            rows.append(row)
        return {
            **self.pooled.to_mapping(),
            "comparisons": rows,
            "num_unfinished": list(self.num_unfinished),
            "same_run": self.same_run,
            "tasks_differ": self.tasks_differ,
        }


def compare_runs(
    a: Path | str,
    b: Path | str,
    policy_a: str | None = None,
    policy_b: str | None = None,
    prompt: str | None = None,
) -> RunComparison:
    """Compare two runs, or two policies of one run, on the episodes that they share.

    Policies of one name are compared with each other, runs of one policy each whatever their names, and a run with
    itself by its two policies; otherwise the two have to be named. Prompt types are matched by name.

    Args:
        a: Folder of a run.
        b: Folder of another run, or the same.
        policy_a: Only this policy of A.
        policy_b: Only this policy of B.
        prompt: Only this prompt type.

    Raises:
        StoreError: One is no folder of results.
        InvalidInputError: The runs cannot be compared, have no episode in common, or it is not clear which policies are
            to be compared.
    """
    table_a = read_episode_table(a)
    same_run = Path(a).resolve() == Path(b).resolve()
    table_b = table_a if same_run else read_episode_table(b)
    return compare_run_tables(table_a, table_b, policy_a, policy_b, prompt, (str(a), str(b)), same_run)


def compare_run_tables(
    a: EpisodeTable,
    b: EpisodeTable,
    policy_a: str | None = None,
    policy_b: str | None = None,
    prompt: str | None = None,
    names: tuple[str, str] = ("A", "B"),
    same_run: bool = False,
) -> RunComparison:
    """Compare the episodes of two runs that have been read; see `compare_runs`.

    Args:
        a: Episodes of a run.
        b: Episodes of another run.
        policy_a: Only this policy of A.
        policy_b: Only this policy of B.
        prompt: Only this prompt type.
        names: What the runs are called, for errors.
        same_run: Whether they are one run.

    Raises:
        InvalidInputError: See `compare_runs`.
    """
    refuse_incomparable([a.manifest, b.manifest], names)
    matched = match_policies(a, b, policy_a, policy_b, names, same_run)
    comparisons: list[Comparison] = []
    for one, other, prompt_type in _matched_groups(a, b, matched, prompt, names):
        label_a, label_b = (one, other) if one != other else (f"{one} (A)", f"{other} (B)")
        comparisons.append(compare_tables(a.group(one, prompt_type), b.group(other, prompt_type), label_a, label_b))
    labels = (comparisons[0].label_a, comparisons[0].label_b) if len(matched) == 1 else names
    unfinished = (max(a.num_planned - len(a), 0), max(b.num_planned - len(b), 0))
    return RunComparison(
        pool_comparisons(comparisons, *labels), tuple(comparisons), unfinished, same_run, _tasks_differ(a, b)
    )


def _tasks_differ(a: EpisodeTable, b: EpisodeTable) -> bool:
    one, other = (table.manifest.get("arguments", {}).get("tasks", {}) for table in (a, b))
    same_ids = one.get("count") == other.get("count") and set(a.tasks) == set(b.tasks)
    return same_ids and one.get("sha256") != other.get("sha256")


def match_policies(
    a: EpisodeTable,
    b: EpisodeTable,
    policy_a: str | None,
    policy_b: str | None,
    names: tuple[str, str],
    same_run: bool,
) -> list[tuple[str, str]]:
    """Return which policy of A is compared with which of B.

    Args:
        a: Episodes of a run.
        b: Episodes of another run.
        policy_a: The policy of A, if it was named.
        policy_b: The policy of B, if it was named.
        names: What the runs are called, for errors.
        same_run: Whether they are one run.

    Raises:
        InvalidInputError: There is no such policy, or nobody can tell which ones are meant.
    """
    for table, name in ((a, names[0]), (b, names[1])):
        if len(table) == 0:
            raise InvalidInputError(f"{name} holds no episode: expected at least one")
    for table, policy, name in ((a, policy_a, names[0]), (b, policy_b, names[1])):
        if policy is not None and policy not in table.policies:
            raise unknown_name("policy", policy, table.policies, name)
    if policy_a is None and policy_b is None and not same_run:
        if len(a.policies) == 1 and len(b.policies) == 1:
            return [(a.policies[0], b.policies[0])]
        common = [policy for policy in _in_order(a) if policy in b.policies]
        if common:
            return [(policy, policy) for policy in common]
    if policy_a is None and policy_b is None and len(a.policies) == 2 and same_run:
        policy_a, policy_b = _in_order(a)
    one = policy_a or _other(a, policy_b, same_run)
    other = policy_b or _other(b, one if same_run else policy_a, same_run)
    if same_run and len(a.policies) == 1:
        raise InvalidInputError(
            f"{names[0]} holds only one policy, {a.policies[0]}: expected a run of two policies, or another run"
        )
    if one is None or other is None or (same_run and one == other):
        held = f"{names[0]} holds {_listed(_in_order(a))}"
        if not same_run:
            held += f" and {names[1]} holds {_listed(_in_order(b))}"
        raise InvalidInputError(f"{held}: say which two to compare with --policy-a and --policy-b")
    return [(one, other)]


def _other(table: EpisodeTable, named: str | None, same_run: bool) -> str | None:
    """Return the policy that is meant when only the other side was named, or None if several could be."""
    if same_run:
        left = [policy for policy in table.policies if policy != named]
        return left[0] if named is not None and len(left) == 1 else None
    if len(table.policies) == 1:
        return table.policies[0]
    return named if named in table.policies else None


def _matched_groups(
    a: EpisodeTable,
    b: EpisodeTable,
    matched: Sequence[tuple[str, str]],
    prompt: str | None,
    names: tuple[str, str],
) -> list[tuple[str, str, str]]:
    if prompt is not None:
        for table, name in ((a, names[0]), (b, names[1])):
            if prompt not in table.prompts:
                raise unknown_name("prompt type", prompt, table.prompts, name)
    groups_a, groups_b = a.groups(), set(b.groups())
    found = [
        (one, other, prompt_type)
        for one, other in matched
        for policy, prompt_type in groups_a
        if policy == one and (other, prompt_type) in groups_b and prompt in (None, prompt_type)
    ]
    if not found:
        raise InvalidInputError(
            f"{names[0]} and {names[1]} have no prompt type in common: {_listed(a.prompts)} and {_listed(b.prompts)}"
        )
    return found


def _in_order(table: EpisodeTable) -> list[str]:
    return list(dict.fromkeys(policy for policy, _ in table.groups()))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
