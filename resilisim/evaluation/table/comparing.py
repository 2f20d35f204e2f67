"""Runs compared: which of them can be, which of their policies and episodes belong together, and what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import InvalidInputError, shown_value, unknown_name
from resilisim.evaluation.table.agents import mixture_note
from resilisim.evaluation.table.episodes import EpisodeTable
from resilisim.evaluation.table.worst_case import read_counted_table
from resilisim.run_folder import ABSENT, first_difference
from resilisim.statistics import Pairs, compare_pairs
from resilisim.statistics.comparison import COMPARISON_METHODS, Comparison, holm, pool_comparisons
from resilisim.statistics.estimates import CONFIDENCE_LEVEL, FloatArray, IntArray, finite_or_none
from resilisim.tasks.benchmark import texts_revision

OPTIMUM_TOLERANCE = 1e-9  # V* is stored with all its digits, so only other machines' rounding may differ

# What a run's arguments say about who played, what and how often: it may differ, only common episodes are paired.
# Everything else decides what an episode is. Scoring episodes again does not play others.
MAY_DIFFER = frozenset(
    {
        "again",
        "checkpoints",
        "dice",
        "explorations",
        "explored",
        "model_options",
        "models",
        "models_of_policies",
        "num_episodes",
        "plays",
        "policies",
        "policy_names",
        "prompts",
        "prompts_of_agents",
        "record_texts",
        "rescored_from",
        "seeds",
        "shard",
        "tasks",
        "width",
    }
)
_NAMES = {
    "benchmark.version": "benchmark version",
    "benchmark.sha256": "benchmark",
    "benchmark.texts": "revision of the texts that agents read",
    "environment.base": "law (base success probability)",
    **{f"environment.{name}": f"law (factor {name})" for name in ("not_executed", "failed", "history")},
    **{f"environment.{name}": f"end rule {name}" for name in ("max_turns", "max_consecutive_failures", "loop_length")},
    "environment.prompt_style": "prompt style",
    "environment.salt": "salt of the draws",
    "environment.search": "tool search",
    "library": "tool library",
    "planner": "trained policy that plans prompts",
}


@dataclass(frozen=True, slots=True, repr=False)
class RunComparison:
    """Two runs compared."""

    pooled: Comparison  # all matched episodes together
    comparisons: tuple[Comparison, ...]  # one for each matched pair of policies and prompt type
    num_unfinished: tuple[int, int]  # episodes that A and B have planned and not played
    same_run: bool  # whether A and B are policies of one run
    # Whether the tasks of A and B have the same ids and are not the same to the letter: reworded, say, or in another
    # order. Records do not hold their texts, so the files of tasks are what is compared.
    tasks_differ: bool = False
    num_counted_as_lost: tuple[int, int] = (0, 0)  # those that broke, nobody can tell why, and are not finished
    sampled_differently: str | None = None  # says so where the models of A and B were sampled differently
    optimum_gap: float = 0.0  # by how much any V* of either run may be too low; 0 where all are exact

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
        rows = [comparison.to_mapping() for comparison in self.comparisons]
        for method in COMPARISON_METHODS:
            for row, p_value in zip(rows, self.holm_p_values(method), strict=True):
                row[method]["p_value_holm"] = finite_or_none(p_value)
        return {
            **self.pooled.to_mapping(),
            "comparisons": rows,
            "num_unfinished": list(self.num_unfinished),
            "num_counted_as_lost": list(self.num_counted_as_lost),
            "same_run": self.same_run,
            "tasks_differ": self.tasks_differ,
            "sampled_differently": self.sampled_differently,
            "optimum_gap": self.optimum_gap,
        }


def compare_runs(
    a: Path | str, b: Path | str, policy_a: str | None = None, policy_b: str | None = None, prompt: str | None = None
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
        StoreError: One is not a folder of results.
        InvalidInputError: The runs cannot be compared, have no episode in common, or it is not clear which policies are
            to be compared.

    Example:
        >>> from resilisim.evaluation import compare_runs, evaluate
        >>> one, other = evaluate("exact-optimum", 5, "optimal"), evaluate("random", 5, "optimal")
        >>> compare_runs(one.directory, other.directory)
        RunComparison(exact-optimum - random, prompts: optimal, 5 pairs)
    """
    table_a = read_counted_table(a)
    same_run = Path(a).resolve() == Path(b).resolve()
    table_b = table_a if same_run else read_counted_table(b)
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
    """Compare the episodes of two runs that have been read, as `compare_runs` does."""
    refuse_incomparable([a.manifest, b.manifest], names)
    matched = match_policies(a, b, policy_a, policy_b, names, same_run)
    comparisons: list[Comparison] = []
    sampling: dict[str, str] = {}
    for one, other, prompt_type in _matched_groups(a, b, matched, prompt, names):
        labels = (one, other) if one != other else (f"{one} (A)", f"{other} (B)")
        comparisons.append(compare_tables(a.group(one, prompt_type), b.group(other, prompt_type), *labels))
        of_both = (a.facts.get((one, prompt_type)), b.facts.get((other, prompt_type)))
        sampling |= {label: known.sampling for label, known in zip(labels, of_both, strict=True) if known is not None}
    labels = (comparisons[0].label_a, comparisons[0].label_b) if len(matched) == 1 else names
    counted = (a.num_counted_as_lost, b.num_counted_as_lost)
    missing_a, missing_b = (
        table.num_planned - table.num_episodes + lost for table, lost in zip((a, b), counted, strict=True)
    )
    unfinished = (max(missing_a, 0), max(missing_b, 0))
    tasks_a, tasks_b = (table.manifest.get("arguments", {}).get("tasks", {}) for table in (a, b))
    same_ids = tasks_a.get("count") == tasks_b.get("count") and set(_ids(a)) == set(_ids(b))
    tasks_differ = same_ids and tasks_a.get("sha256") != tasks_b.get("sha256")
    return RunComparison(
        pool_comparisons(comparisons, *labels),
        tuple(comparisons),
        unfinished,
        same_run,
        tasks_differ,
        counted,
        mixture_note(sampling),
        max(a.optimum_gap, b.optimum_gap),
    )


def match_policies(
    a: EpisodeTable, b: EpisodeTable, policy_a: str | None, policy_b: str | None, names: tuple[str, str], same_run: bool
) -> list[tuple[str, str]]:
    """Return which policy of A is compared with which of B."""
    for table, policy, name in ((a, policy_a, names[0]), (b, policy_b, names[1])):
        if len(table) == 0:
            raise InvalidInputError(f"{name} holds no episode: expected at least one")
        if policy is not None and policy not in table.policies:
            raise unknown_name("policy", policy, table.policies, name)
    if same_run and len(a.policies) == 1:
        raise InvalidInputError(
            f"{names[0]} holds only one policy, {a.policies[0]}: expected a run of two policies, or another run"
        )
    held_a, held_b = (list(dict.fromkeys(policy for policy, _ in table.groups())) for table in (a, b))
    pairs = [
        (one, other)
        for one in held_a
        for other in held_b
        if policy_a in (None, one) and policy_b in (None, other) and not (same_run and one == other)
    ]
    if same_run:  # either order says the same of two policies; of more nobody can tell
        pairs = pairs[:1] if len(held_a) == 2 or len(pairs) == 1 else []
    elif len(pairs) > 1:
        pairs = [(one, other) for one, other in pairs if one == other]
    if not pairs:
        held = f"{names[0]} holds {_listed(held_a)}"
        if not same_run:
            held += f" and {names[1]} holds {_listed(held_b)}"
        raise InvalidInputError(f"{held}: say which two to compare with --policy-a and --policy-b")
    return pairs


def _matched_groups(
    a: EpisodeTable, b: EpisodeTable, matched: Sequence[tuple[str, str]], prompt: str | None, names: tuple[str, str]
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


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def compare_tables(
    a: EpisodeTable,
    b: EpisodeTable,
    label_a: str | None = None,
    label_b: str | None = None,
    level: float = CONFIDENCE_LEVEL,
) -> Comparison:
    """Compare one policy under one prompt type with another, or with itself under another prompt type or in a new run.

    Args:
        a: Episodes of the one (`EpisodeTable.group`).
        b: Episodes of the other.
        label_a: What A is called; the name of its policy if omitted.
        label_b: What B is called.
        level: Confidence level of the intervals.

    Raises:
        InvalidInputError: One is empty or holds several policies or prompt types, the two have no episode in common,
            or were not played under one law.
    """
    (policy_a, prompt_a), (policy_b, prompt_b) = _only_group(a, "A"), _only_group(b, "B")
    pairs = match_episodes(a, b)
    prompt = prompt_a if prompt_a == prompt_b else f"{prompt_a} → {prompt_b}"
    privileged = (bool(a.privileged.any()), bool(b.privileged.any()))
    return compare_pairs(pairs, label_a or policy_a, label_b or policy_b, prompt, privileged, level)


def _only_group(table: EpisodeTable, side: str) -> tuple[str, str]:
    groups = table.groups()
    if len(groups) != 1:
        listed = ", ".join(f"{policy} under {prompt}" for policy, prompt in groups[:4]) or "no episode"
        raise InvalidInputError(f"{side} holds {listed}: expected one policy under one prompt type (table.group)")
    return groups[0]


def match_episodes(a: EpisodeTable, b: EpisodeTable) -> Pairs:
    """Match the episodes of two groups, each one policy under one prompt type, in the order of task id and seed.

    The row of an agent that was explored has no luck, so it stands beside every episode of its task.
    """
    names = sorted(set(_ids(a)) & set(_ids(b)))
    _refuse_other_tasks(a, b, names)
    rows_a, rows_b, task, seed = _matched_rows(a, b, {name: place for place, name in enumerate(names)})
    if len(task) == 0:
        raise InvalidInputError("the two have no episode in common: expected at least one task with the same seed")
    apart = np.abs(a.optimum[rows_a] - b.optimum[rows_b]) > OPTIMUM_TOLERANCE
    if apart.any():
        place = int(np.argmax(apart))
        raise InvalidInputError(
            f"V* of {names[int(task[place])]} is {a.optimum[rows_a[place]]:.6f} in one and "
            f"{b.optimum[rows_b[place]]:.6f} in the other: they were not played under one law"
        )
    present, task = np.unique(task, return_inverse=True)
    return Pairs(
        tasks=tuple(names[place] for place in present),
        task=task.astype(np.int64),
        seed=seed,
        outcome_a=a.outcome[rows_a].astype(np.float64),
        outcome_b=b.outcome[rows_b].astype(np.float64),
        luck_a=a.luck[rows_a] * (not a.is_explored),
        luck_b=b.luck[rows_b] * (not b.is_explored),
        optimum=a.optimum[rows_a],
        ceiling_a=a.ceiling[rows_a],
        ceiling_b=b.ceiling[rows_b],
        tries_again=any(
            bool(column[rows].any())
            for part, rows in ((a, rows_a), (b, rows_b))
            for column in (part.tries_again, part.no_reference)
        ),
        num_without_partner=(len(a) - len(np.unique(rows_a)), len(b) - len(np.unique(rows_b))),
        ends=(_ends(a, rows_a), _ends(b, rows_b)),
        more=(a.more[rows_a].astype(np.float64), b.more[rows_b].astype(np.float64)),
    )


def _ends(table: EpisodeTable, rows: IntArray) -> FloatArray | None:
    """Return the least and the most that the rates of explored rows can be, shape (2, num_rows); None of a sample."""
    if not table.is_explored:
        return None
    least = table.least[rows]
    return np.stack([least, least + table.open[rows]])


def _matched_rows(
    a: EpisodeTable, b: EpisodeTable, places: dict[str, int]
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Return the rows of A and of B that are matched, and place of the task and seed of each pair."""
    seeds = np.unique(
        np.concatenate([table.seed for table in (a, b) if not table.is_explored] or [np.zeros(1, np.int64)])
    )
    rows_a, keys_a = _keys(a, places, seeds)
    rows_b, keys_b = _keys(b, places, seeds)
    if a.is_explored != b.is_explored:  # of the explored one the key is the place of the task alone
        sampled, explored = (keys_b, keys_a) if a.is_explored else (keys_a, keys_b)
        row_of_task = np.full(len(places), -1, dtype=np.int64)
        row_of_task[explored] = np.arange(len(explored))
        order = np.argsort(sampled)
        partner = row_of_task[sampled[order] // len(seeds)]
        order, partner = order[partner >= 0], partner[partner >= 0]
        keys, (first, second) = sampled[order], (partner, order) if a.is_explored else (order, partner)
    else:
        keys, first, second = np.intersect1d(keys_a, keys_b, assume_unique=True, return_indices=True)
    task, seed = (keys, np.zeros_like(keys)) if a.is_explored and b.is_explored else np.divmod(keys, len(seeds))
    return rows_a[first], rows_b[second], task, seeds[seed]


def _ids(table: EpisodeTable) -> list[str]:
    return [task.instance_id for task in table.tasks]


def _refuse_other_tasks(a: EpisodeTable, b: EpisodeTable, names: list[str]) -> None:
    meant_a, meant_b = ({task.instance_id: task.required_tools for task in table.tasks} for table in (a, b))
    for name in names:
        if meant_a[name] != meant_b[name]:
            texts = " and ".join(", ".join(meant[name]) or "nothing" for meant in (meant_a, meant_b))
            raise InvalidInputError(
                f"task {name} is not the same in both, it requires {texts}: expected tasks of one file"
            )


def _keys(table: EpisodeTable, places: dict[str, int], seeds: NDArray[np.int64]) -> tuple[IntArray, IntArray]:
    """Return the rows whose task is common, and one number for each row's task and seed; of explored ones the task."""
    numbers = np.array([places.get(name, -1) for name in _ids(table)], dtype=np.int64)
    task = numbers[table.task]
    rows = np.flatnonzero(task >= 0)
    if table.is_explored:
        return rows, task[rows]
    keys = task[rows] * len(seeds) + np.searchsorted(seeds, table.seed[rows])
    values, counts = np.unique(keys, return_counts=True)
    if np.any(counts > 1):
        task_place, seed_place = divmod(int(values[np.argmax(counts > 1)]), len(seeds))
        name = next(name for name, place in places.items() if place == task_place)
        raise InvalidInputError(
            f"seed {seeds[seed_place]} of {name} stands twice on one side: expected one policy under one prompt type"
        )
    return rows, keys


def refuse_incomparable(manifests: Sequence[Mapping[str, Any]], names: Sequence[object] = ()) -> None:
    """Raise an error that names the first difference between runs that keeps them from being compared.

    Tasks, seeds, policies, prompt types and models may differ; benchmark, wording of what agents read, library and all
    options of the environment may not.
    """
    called = [str(name) for name in names] or [f"run {number + 1}" for number in range(len(manifests))]
    for place in range(1, len(manifests)):
        difference = incomparable(manifests[0], manifests[place])
        if difference is not None:
            what, one, other = difference
            raise InvalidInputError(
                f"{called[0]} and {called[place]} cannot be compared: {what} is {one} in one and {other} in the other"
            )


def incomparable(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return what keeps two runs from being compared and what each says there; None if nothing does."""
    left, right = _decisive(one), _decisive(other)
    # Versions first: a reader should learn the plainest reason, not what follows from it.
    difference = first_difference(_versions(left), _versions(right))
    one_law, other_law = _law_of(left), _law_of(right)
    if difference is None and one_law.get("hash") != other_law.get("hash"):
        return "law", _shown_law(one_law), _shown_law(other_law)
    difference = difference or first_difference(left, right)
    if difference is None:
        return None
    place, *values = difference
    here, there = ("absent" if value is ABSENT else shown_value(value) for value in values)
    return argument_name(place), here, there


def argument_name(place: str) -> str:
    """Return what a place in a manifest's arguments is called in refusals."""
    return _NAMES.get(place, place.replace("environment.", "environment option "))


def _decisive(manifest: Mapping[str, Any]) -> dict[str, Any]:
    arguments = manifest.get("arguments", {})
    decisive = {name: value for name, value in arguments.items() if name not in MAY_DIFFER}
    if "benchmark" in decisive:
        decisive["benchmark"] = {**decisive["benchmark"], "texts": texts_revision(arguments)}
    # The trained policy that plans prompts belongs to the episodes; those that play do not.
    planner = arguments.get("environment", {}).get("planner")
    if planner in arguments.get("checkpoints", {}):
        decisive["planner"] = arguments["checkpoints"][planner]
    return decisive


def _law_of(arguments: dict[str, Any]) -> Mapping[str, Any]:
    """Take a law with parts out of a manifest's arguments and return it; an empty mapping is the benchmark's."""
    environment = dict(arguments.get("environment", {}))
    law: Mapping[str, Any] = environment.pop("law", {})  # equal by content, whatever the name
    arguments["environment"] = environment
    return law


def _shown_law(law: Mapping[str, Any]) -> str:
    return f"{law['name']} ({law['hash'][:12]})" if law else "that of the benchmark"


def _versions(arguments: Mapping[str, Any]) -> dict[str, Any]:
    benchmark = arguments.get("benchmark", {})
    return {f"benchmark.{name}": benchmark.get(name) for name in ("version", "texts")}
