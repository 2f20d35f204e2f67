"""The table of a run's episodes: every column that anything is summed, summarised or compared by.

Records are read once. In a table of episodes a row is one episode, which is what comparisons need: they match episodes
by task and seed. In a table of sums a row is all episodes of one policy under one prompt type and flaw on one task and
with seeds of one class: so its size depends on tasks and policies and, beyond some number, never on episodes, and
whatever is summed by any of these is a sum of rows. Classes of seeds (`seed_classes`) are those that luck is taken off
in, and finer for the first task: where it is the only one, seeds are the units that vary.

Branches of an agent that was explored are one row in both: their means by weight, which counts like one episode that
came out as they do on average. So nothing that is summed from a table asks how its episodes came about.
"""

from __future__ import annotations

import contextlib
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import StoreError, one_line, unknown_name
from resilisim.evaluation.episode.record import (
    EpisodeRecord,
    UnplayedRecord,
    ceiling_of,
    gap_of_optimum,
    has_no_ceiling,
    is_branch,
    lacks_ceiling,
    tries_again,
    weight_of,
)
from resilisim.evaluation.run.store import num_planned, read_manifest, read_own_records
from resilisim.evaluation.table.agents import sampling_of
from resilisim.evaluation.table.controls import more_controls
from resilisim.statistics.estimates import FloatArray, IntArray
from resilisim.statistics.luck_adjustment import (
    NUM_FOLDS,
    NUM_MORE,
    NUM_NUMBERS,
    cross_fitted_weights,
    fold_of,
    fold_of_episodes,
)

Flaw = tuple[str, str, str]  # flaw type, severity, method
NO_FLAW: Final[Flaw] = ("", "", "")

BoolArray = NDArray[np.bool_]
SEED_CLASSES: Final = 200  # of the first task; a multiple of NUM_FOLDS, as many as other tasks have


def seed_classes(task: int) -> int:
    """Return how many classes of seeds the task of a place has in tables of sums, by their remainders."""
    return SEED_CLASSES if task == 0 else NUM_FOLDS


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """The traits of one task, and the fold of its seed 0 in the cross-fitting of luck."""

    instance_id: str
    task_type: str
    complexity: str
    required_tools: tuple[str, ...]
    fold: int


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """One policy under one prompt type."""

    policy: str
    prompt_type: str
    planner: str | None  # who made the plan in the prompt, or None
    architecture: str | None = None  # of an LLM agent, its architecture; None for other policies
    # Of an LLM agent, the model that it asks; several are joined by " + ". None for other policies.
    model: str | None = None
    sampling: str = ""  # of an LLM agent, how its model was sampled (`table.agents.sampling_of`)
    optimum_gap: float = 0.0  # by how much any V* of its episodes may be too low; 0 where all are exact
    is_informed: bool = False  # whether any V* of its episodes is that of an agent that sees what is hidden


@dataclass(frozen=True)
class EpisodeTable:
    """The episodes of a run, or a part of them, as columns, in the order in which they ended or were first met.

    Columns have the shape (num_rows,). In a table of sums those from `count` on hold sums over the episodes of a row.

    Attributes:
        manifest: The run's manifest.
        policies: Names of policies, in the order in which they were met.
        prompts: Prompt types, likewise.
        flaws: Flaw type, severity and method of plans, likewise; the first is `NO_FLAW`.
        tasks: Traits of the tasks, likewise.
        facts: What is known of each policy under each prompt type of the table.
        moments: What is fitted to take off luck: for each (policy, prompt type) of the table, or each (policy, type,
            severity, method) of a part by flaws, the moments of each fold of episodes
            (`luck_adjustment.cross_fitted_weights`). They stay those of all its episodes when rows are left out. In
            tables of sums only.
        policy, prompt, flaw, task: Place of each in `policies`, `prompts`, `flaws`, `tasks`.
        seed, index: Episode seed, and place in the plan of the run; in a table of sums those of the first episode.
        count, outcome, partial, turns: Episodes, full successes, partial successes, messages. An explored row counts as
            one episode; all other numbers of it are means by weight.
        plays: Records: episodes, or branches.
        explored: Those of them that are branches.
        unplayed: Weight that is missing to 1 in explored rows: what was not played.
        open: The most of it that can still succeed.
        least: Full successes at the least: outcomes, and of explored rows what was played, by its weight. Where that is
            not all, the likeliest branches were played, which are lucky ones: as the luck of all comes to 0, the
            outcome of the row is what is left without it, as far as `least` and `open` let it be.
        after_search: Episodes whose ceiling is `optimum_after_searches`.
        without_ceiling: Episodes whose tools had to be found, and of which only V* is known.
        tries_again: Episodes whose agent may try again in fresh ones, which leaves ceiling and luck without meaning.
        no_reference: Episodes of tasks without a reference solution, of which nobody knows V*.
        privileged: Episodes whose policy saw the state, or asked an oracle.
        optimum, ceiling: V* of the start, and the ceiling that fits what the agent was told (`record.ceiling_of`).
        luck, regret: Sums of luck and of regret.
        more: Other sums with mean zero (`controls.more_controls`); shape (num_rows, NUM_MORE).
        losses: Regret by label; in tables of sums only.
        ended_by: Episodes by what ended them; in tables of sums only.
        num_counted_as_lost: Episodes among them that broke, nobody can tell why, and are not finished (`worst_case`).
        largest_identity_error: Largest deviation from 1 - outcome = (1 - optimum) + regret - luck.
    """

    manifest: Mapping[str, Any] = field(repr=False)
    policies: tuple[str, ...]
    prompts: tuple[str, ...]
    flaws: tuple[Flaw, ...] = field(repr=False)
    tasks: tuple[TaskFacts, ...] = field(repr=False)
    facts: Mapping[tuple[str, str], GroupFacts] = field(repr=False)
    moments: Mapping[tuple[str, ...], FloatArray] = field(repr=False)
    policy: NDArray[np.int16] = field(repr=False)
    prompt: NDArray[np.int16] = field(repr=False)
    flaw: NDArray[np.int16] = field(repr=False)
    task: NDArray[np.int32] = field(repr=False)
    seed: IntArray = field(repr=False)
    index: IntArray = field(repr=False)
    count: NDArray[Any] = field(repr=False)
    open: FloatArray = field(repr=False)
    plays: NDArray[Any] = field(repr=False)
    explored: NDArray[Any] = field(repr=False)
    unplayed: FloatArray = field(repr=False)
    least: FloatArray = field(repr=False)
    outcome: NDArray[Any] = field(repr=False)
    partial: NDArray[Any] = field(repr=False)
    turns: NDArray[Any] = field(repr=False)
    after_search: NDArray[Any] = field(repr=False)
    without_ceiling: NDArray[Any] = field(repr=False)
    tries_again: NDArray[Any] = field(repr=False)
    no_reference: NDArray[Any] = field(repr=False)
    privileged: NDArray[Any] = field(repr=False)
    optimum: FloatArray = field(repr=False)
    ceiling: FloatArray = field(repr=False)
    luck: FloatArray = field(repr=False)
    regret: FloatArray = field(repr=False)
    more: NDArray[Any] = field(repr=False)
    losses: Mapping[str, FloatArray] = field(repr=False)
    ended_by: Mapping[str, FloatArray] = field(repr=False)
    largest_identity_error: float = 0.0
    num_counted_as_lost: int = 0

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.task)

    @property
    def num_episodes(self) -> int:
        """Number of episodes, or of branches that were played."""
        return int(self.plays.sum())

    @property
    def num_planned(self) -> int:
        """How many episodes the run has when it is finished."""
        return num_planned(self.manifest.get("arguments", {}), self.num_episodes)

    @property
    def world(self) -> str | None:
        """The world that the episodes were played in, None where calls are simulated."""
        name: str | None = self.manifest.get("arguments", {}).get("environment", {}).get("world")
        return name

    @property
    def has_no_ceiling(self) -> bool:
        """Whether ceiling and luck mean nothing: agents try again in fresh episodes, or nobody knows V*."""
        return bool(self.tries_again.any() or self.no_reference.any())

    @property
    def is_explored(self) -> bool:
        """Whether any row is the branches of an agent that was explored, and no sample."""
        return bool(self.explored.any())

    @property
    def optimum_gap(self) -> float:
        """By how much any V* may be too low; 0 where all are exact."""
        return max((known.optimum_gap for known in self.facts.values()), default=0.0)

    @property
    def is_informed(self) -> bool:
        """Whether any V* is that of an agent that sees what is hidden: a bound that nobody may reach."""
        return any(known.is_informed for known in self.facts.values())

    @cached_property
    def task_folds(self) -> IntArray:
        """Fold of seed 0 of each task in the cross-fitting of luck; shape (num_tasks,)."""
        return np.array([task.fold for task in self.tasks], dtype=np.int64)

    @cached_property
    def row_weights(self) -> FloatArray:
        """How much of its luck and of the other sums is taken off each row; shape (num_rows, 1 + NUM_MORE)."""
        folds = fold_of_episodes(self.task_folds[self.task], self.seed)
        total = sum(self.moments.values(), start=np.zeros((NUM_FOLDS, NUM_NUMBERS, NUM_NUMBERS)))
        weights: FloatArray = cross_fitted_weights(total)[folds]
        return np.where((self.explored > 0)[:, None], 0.0, weights)  # where branches were explored no luck is left

    @cached_property
    def adjusted(self) -> FloatArray:
        """Full successes with the luck taken off; shape (num_rows,)."""
        weights = self.row_weights
        adjusted: FloatArray = (
            self.outcome - weights[:, 0] * self.luck - np.einsum("ij,ij->i", weights[:, 1:], self.more)
        )
        return adjusted

    @property
    def is_fitted(self) -> BoolArray:
        """Of which rows more than luck is taken off; shape (num_rows,)."""
        fitted: BoolArray = (self.row_weights[:, 1:] != 0.0).any(axis=1)
        return fitted

    def units(self, rows: BoolArray) -> IntArray:
        """Return the unit that varies of each of some rows, as a number: the task, or with a single one the seed."""
        tasks = np.unique(self.task[rows])
        if len(tasks) != 1 or self.is_explored:
            return self.task[rows].astype(np.int64)
        return self.seed[rows] % seed_classes(int(tasks[0]))

    def by_unit(self, values: NDArray[Any]) -> FloatArray:
        """Return the sums of a column over the rows of each task, or where the table is of one over those of its seeds.

        Shape (num_tasks,), or (`SEED_CLASSES`,).
        """
        if len(self.tasks) != 1 or self.is_explored:
            return self.by_task(values)
        return np.bincount(self.seed % SEED_CLASSES, weights=values, minlength=SEED_CLASSES).astype(np.float64)

    def by_task(self, values: NDArray[Any]) -> FloatArray:
        """Return the sums of a column, shape (num_rows,), over the rows of each task; shape (num_tasks,)."""
        return np.bincount(self.task, weights=values, minlength=len(self.tasks)).astype(np.float64)

    def tasks_where(self, **traits: object) -> BoolArray:
        """Return which tasks have all given traits (names of `TaskFacts` fields); shape (num_tasks,)."""
        is_wanted = [all(getattr(task, name) == value for name, value in traits.items()) for task in self.tasks]
        return np.array(is_wanted, dtype=np.bool_)

    def groups(self) -> list[tuple[str, str]]:
        """Return each (policy, prompt type) that has episodes, by the order of the run's command."""
        arguments = self.manifest.get("arguments", {})

        def rank(asked: Sequence[str], name: str) -> int:
            return asked.index(name) if name in asked else len(asked)

        policies, prompts = arguments.get("policy_names", ()), arguments.get("prompts", ())
        return sorted(self.facts, key=lambda pair: (rank(policies, pair[0]), rank(prompts, pair[1])))

    def where(self, chosen: BoolArray | IntArray) -> EpisodeTable:
        """Return the chosen rows, given as a mask or by their places; names and tasks keep their places."""
        columns = {name: getattr(self, name)[chosen] for name in COLUMNS}
        losses = {label: values[chosen] for label, values in self.losses.items()}
        ended_by = {reason: values[chosen] for reason, values in self.ended_by.items()}
        return replace(self, **columns, more=self.more[chosen], losses=losses, ended_by=ended_by)

    def group(self, policy: str, *prompts: str) -> EpisodeTable:
        """Return the episodes of one policy under one prompt type, or under several together.

        Raises:
            InvalidInputError: The table has no such policy, or no such prompt type.
        """
        if policy not in self.policies:
            raise unknown_name("policy", policy, self.policies)
        for prompt in prompts:
            if prompt not in self.prompts:
                raise unknown_name("prompt type", prompt, self.prompts)
        places = [self.prompts.index(prompt) for prompt in prompts]
        part = self.where((self.policy == self.policies.index(policy)) & np.isin(self.prompt, places))
        keys = [(policy, prompt) for prompt in prompts if (policy, prompt) in self.facts]
        facts = {key: self.facts[key] for key in keys}
        return replace(part, facts=facts, moments={key: self.moments[key] for key in keys if key in self.moments})

    def flaw_keys(self) -> list[tuple[str, ...]]:
        """Return each (policy, flaw type, severity, method) that has episodes, in the order in which it was met."""
        return [key for key in self.moments if len(key) > 2]

    def flawed(self, keys: Sequence[tuple[str, ...]]) -> EpisodeTable:
        """Return the episodes of one policy under some flaws together, given by `flaw_keys`."""
        policy = self.policies.index(keys[0][0])
        flaws = [place for place, flaw in enumerate(self.flaws) if (keys[0][0], *flaw) in keys]
        part = self.where((self.policy == policy) & np.isin(self.flaw, flaws))
        met = {(self.policies[policy], self.prompts[prompt]) for prompt in np.unique(part.prompt)}
        facts = {key: known for key, known in self.facts.items() if key in met}
        return replace(part, facts=facts, moments={key: self.moments[key] for key in keys})


# Type code of array.array for each column in a table of episodes; sums are all floats, keys stay as they are.
_KEYS: Final = {"policy": "h", "prompt": "h", "flaw": "h", "task": "i", "seed": "q", "index": "q"}
_VALUES: Final = {
    "count": "d",
    "plays": "i",
    "explored": "i",
    "outcome": "d",
    "partial": "d",
    "turns": "d",
    "after_search": "i",
    "without_ceiling": "i",
    "tries_again": "i",
    "no_reference": "i",
    "privileged": "i",
    "optimum": "d",
    "ceiling": "d",
    "luck": "d",
    "regret": "d",
    "open": "d",
}
COLUMNS: Final = (*_KEYS, *_VALUES, "unplayed", "least")
_COUNTS_OF_RECORDS: Final = (
    *("plays", "explored", "after_search", "without_ceiling", "tries_again", "no_reference", "privileged"),
)
_NOT_WEIGHED: Final = (*_COUNTS_OF_RECORDS, "open")
_WEIGHED: Final = tuple(name for name in _VALUES if name not in _NOT_WEIGHED)
_WEIGHT_ROUNDING: Final = 1e-6  # of a sum of weights
_OPEN_ROUNDING: Final = 1e-9  # of what can still succeed
_DTYPES: Final = {"h": np.int16, "i": np.int32, "q": np.int64, "d": np.float64}


class TableBuilder:
    """Takes in the records of episodes one by one, for a table of sums or of the episodes themselves."""

    def __init__(self, sums: bool = True) -> None:
        self._sums = sums
        codes = {**_KEYS, **(dict.fromkeys(_VALUES, "d") if sums else _VALUES)}
        self._columns: dict[str, array[Any]] = {name: array(code) for name, code in codes.items()}
        # Sums by name and row: of losses, and of what ended episodes.
        self._losses: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        self._ended_by: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        self._policies: dict[str, int] = {}
        self._prompts: dict[str, int] = {}
        self._flaws: dict[Flaw, int] = {NO_FLAW: 0}
        self._task_places: dict[str, int] = {}
        self._tasks: list[TaskFacts] = []
        self._more: array[float] = array("d" if sums else "f")  # (num_rows x NUM_MORE)
        self._rows: dict[tuple[int, ...], array[int]] = {}  # the row of each class of seeds of each task, or -1
        self._facts: dict[tuple[str, str], GroupFacts] = {}
        self._moments: dict[tuple[str, ...], FloatArray] = defaultdict(
            lambda: np.zeros((NUM_FOLDS, NUM_NUMBERS, NUM_NUMBERS))
        )
        self._largest_identity_error = 0.0

    def add(self, record: EpisodeRecord) -> None:
        """Take in one episode."""
        names = (record["policy"], record["prompt_type"])
        flaw = record["flaw"]
        kind = NO_FLAW if flaw is None else (flaw["type"], flaw["severity"], flaw["method"])
        task = self._place_of_task(record)
        key = (
            self._policies.setdefault(names[0], len(self._policies)),
            self._prompts.setdefault(names[1], len(self._prompts)),
            self._flaws.setdefault(kind, len(self._flaws)),
        )
        row = self._row(key, task, record)
        outcome, optimum, luck, regret = record["outcome"], record["optimum"], record["luck"], record["regret"]
        columns, weight, is_explored = self._columns, weight_of(record), is_branch(record)
        columns["count"][row] += weight
        columns["plays"][row] += 1
        columns["explored"][row] += is_explored
        columns["outcome"][row] += weight * outcome
        columns["partial"][row] += weight * (record["score"]["level"] == "partial_success")
        columns["turns"][row] += weight * len(record["steps"])
        columns["after_search"][row] += record.get("optimum_after_searches") is not None
        columns["without_ceiling"][row] += lacks_ceiling(record)
        columns["tries_again"][row] += tries_again(record)
        columns["no_reference"][row] += has_no_ceiling(record)
        columns["privileged"][row] += record["privileged"]
        columns["optimum"][row] += weight * optimum
        columns["ceiling"][row] += weight * ceiling_of(record)
        columns["luck"][row] += weight * luck
        columns["regret"][row] += weight * regret
        unplayed = record.get("unplayed", UnplayedRecord(most=-weight, losses={}))
        columns["open"][row] += unplayed["most"] if is_explored else 0.0
        more = [0.0] * NUM_MORE if is_explored else more_controls(record)
        for place, amount in enumerate(more, start=row * NUM_MORE):
            self._more[place] += amount
        if self._sums:
            for label, amount in record["losses"].items():
                self._losses[label][row] += weight * amount
            for label, amount in unplayed["losses"].items():
                self._losses[label][row] += amount
            self._ended_by[record["ended_by"]][row] += weight
            # Of what was explored there is no luck to be fitted.
            numbers = np.array([1.0, optimum, outcome, luck, *more]) * (not is_explored)
            fold, moments = self._fold(task, record["seed"]), np.outer(numbers, numbers)
            self._moments[names][fold] += moments
            if flaw is not None:
                self._moments[names[0], *kind][fold] += moments
        self._note(names, record)
        self._largest_identity_error = max(self._largest_identity_error, abs((optimum - outcome) - (regret - luck)))

    def table(self, manifest: Mapping[str, Any] | None = None) -> EpisodeTable:
        """Return the table of the episodes so far.

        Raises:
            StoreError: The branches of a task weigh more than 1, or stand beside episodes without a weight.
        """
        more = np.frombuffer(self._more, self._more.typecode).reshape(-1, NUM_MORE)
        # A table of episodes may be large and is complete: its columns are not copied.
        views = {name: np.frombuffer(values, _DTYPES[values.typecode]) for name, values in self._columns.items()}
        mass = np.where(views["explored"] > 0, views["count"], 1.0)
        if views["explored"].any():
            self._check_weights(views["explored"] != views["plays"] * (views["explored"] > 0), mass)
            views |= {name: views[name] / mass for name in _WEIGHED}
        unplayed = 1.0 - mass
        unplayed[unplayed < _WEIGHT_ROUNDING] = 0.0
        still_open = np.where(views["explored"] > 0, np.clip(1.0 + views["open"], 0.0, unplayed), 0.0)
        still_open[still_open < _OPEN_ROUNDING] = 0.0
        views["open"] = still_open
        least = np.where(unplayed > 0.0, views["outcome"] * mass, views["outcome"])
        known = (unplayed > 0.0) & (views["tries_again"] == 0) & (views["no_reference"] == 0)
        if known.any():
            without_luck = np.clip(views["outcome"] - views["luck"], least, least + still_open)
            views["outcome"] = np.where(known, without_luck, views["outcome"])
            views["luck"] = np.where(known, 0.0, views["luck"])

        def column_of(sums: Mapping[int, float]) -> FloatArray:
            column = np.zeros(len(self._columns["task"]))
            column[list(sums)] = list(sums.values())
            return column

        return EpisodeTable(
            manifest={} if manifest is None else manifest,
            policies=tuple(self._policies),
            prompts=tuple(self._prompts),
            flaws=tuple(self._flaws),
            tasks=tuple(self._tasks),
            facts=dict(self._facts),
            moments={key: folds.copy() for key, folds in self._moments.items()},
            **{name: view.copy() if self._sums else view for name, view in views.items()},
            unplayed=unplayed,
            least=least,
            more=more.copy() if self._sums else more,
            losses={label: column_of(sums) for label, sums in self._losses.items()},
            ended_by={reason: column_of(sums) / mass for reason, sums in self._ended_by.items()},
            largest_identity_error=self._largest_identity_error,
            num_counted_as_lost=0,
        )

    def _check_weights(self, is_mixed: BoolArray, mass: FloatArray) -> None:
        wrong = np.flatnonzero(is_mixed | (mass > 1.0 + _WEIGHT_ROUNDING))
        if not len(wrong):
            return
        row, columns = int(wrong[0]), self._columns
        policy, prompt = list(self._policies)[columns["policy"][row]], list(self._prompts)[columns["prompt"][row]]
        problem = f"weigh {mass[row]:.6g} together, expected at most 1"
        if is_mixed[row]:
            problem = "have a weight or have none, expected the one or the other"
        task = self._tasks[columns["task"][row]].instance_id
        raise StoreError(f"the episodes of {policy} under {prompt} on {task} {problem}")

    def totals(self, *columns: str) -> dict[tuple[str, str], FloatArray]:
        """Return the sums of columns so far by policy and prompt type, shape (num_columns,) each."""
        places = np.array(self._columns["policy"]) * len(self._prompts) + np.array(self._columns["prompt"])
        num_groups = len(self._policies) * len(self._prompts)
        sums = np.stack([np.bincount(places, np.array(self._columns[name]), num_groups) for name in columns], axis=1)
        return {
            (policy, prompt): sums[self._policies[policy] * len(self._prompts) + self._prompts[prompt]]
            for policy, prompt in self._facts
        }

    def _place_of_task(self, record: EpisodeRecord) -> int:
        instance_id = record["instance_id"]
        place = self._task_places.get(instance_id)
        if place is None:
            place = self._task_places[instance_id] = len(self._tasks)
            facts = (record["task_type"], record["complexity"], tuple(record["required_tools"]))
            self._tasks.append(TaskFacts(instance_id, *facts, fold_of(instance_id)))
        return place

    def _fold(self, task: int, seed: int) -> int:
        return (self._tasks[task].fold + seed) % NUM_FOLDS

    def _row(self, key: tuple[int, int, int], task: int, record: EpisodeRecord) -> int:
        is_explored = is_branch(record)
        if self._sums or is_explored:
            seeds = 0 if is_explored else record["seed"] % seed_classes(task)
            rows = self._rows.get((*key, seeds))
            if rows is None:
                rows = self._rows[*key, seeds] = array("i")
            if task >= len(rows):
                rows.extend([-1] * (task + 1 - len(rows)))
            if rows[task] >= 0:
                return rows[task]
            rows[task] = len(self._columns["task"])
        self._more.extend([0.0] * NUM_MORE)
        keys = (*key, task, record["seed"], record["index"])
        for name, value in zip(_KEYS, keys, strict=True):
            self._columns[name].append(value)
        for name in _VALUES:
            self._columns[name].append(0)
        return len(self._columns["task"]) - 1

    def _note(self, names: tuple[str, str], record: EpisodeRecord) -> None:
        known = self._facts.get(names)
        if known is None:
            known = self._facts[names] = GroupFacts(*names, record["planner"])
        if known.architecture is None and "agent" in record:
            agent = record["agent"]
            model = " + ".join(sorted(set(agent["models"].values()))) or None
            known = self._facts[names] = replace(known, architecture=agent["architecture"], model=model)
        if known.architecture is not None and not known.sampling and "agent" in record:
            known = self._facts[names] = replace(known, sampling=sampling_of(record["agent"]))
        if (gap := gap_of_optimum(record)) > known.optimum_gap:
            known = self._facts[names] = replace(known, optimum_gap=gap)
        if record.get("optimum_knowledge") == "informed" and not known.is_informed:
            self._facts[names] = replace(known, is_informed=True)


@contextlib.contextmanager
def taking_in(record: EpisodeRecord, directory: Path | str) -> Iterator[None]:
    """Say which record it is that cannot be taken in: one whose part of an agent is not whole, say.

    Raises:
        StoreError: It lacks a field, or holds one that nobody can read.
    """
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        problem = f"lacks the field {error}" if isinstance(error, KeyError) else f"cannot be read: {one_line(error)}"
        raise StoreError(f"episode {record['index']} of {directory} {problem}") from error


def table_of(
    records: Iterable[EpisodeRecord], manifest: Mapping[str, Any] | None = None, sums: bool = False
) -> EpisodeTable:
    """Return the table of episodes, or that of sums over them; the records are read once."""
    builder = TableBuilder(sums)
    for record in records:
        builder.add(record)
    return builder.table(manifest)


def sums_of(records: Iterable[EpisodeRecord], manifest: Mapping[str, Any] | None = None) -> EpisodeTable:
    """Return the table of sums over episodes."""
    return table_of(records, manifest, sums=True)


def read_episode_table(directory: Path | str) -> EpisodeTable:
    """Return the episodes in a run's folder, finished or not, read once, one at a time.

    Raises:
        StoreError: It is not a folder of results, or cannot be read, or a line is not an episode of this run.
    """
    manifest = read_manifest(directory)
    return table_of(read_own_records(directory, manifest), manifest)
