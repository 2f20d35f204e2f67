"""A gate: whether a candidate is worse than a baseline on the tasks that both have played.

Episodes are paired by task and seed on the same draws. What is asked is the difference of the two success rates on
these very tasks: two agents that were explored answer it exactly, others within bounds that hold however often one
looks (`statistics.sequential`). Episodes that are missing count as whatever is worst for a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from resilisim.at_work import AT_WORK
from resilisim.errors import InvalidInputError, check_number, count_of
from resilisim.evaluation.episode.record import REGRET_TOLERANCE, EpisodeRecord, FailureRecord, has_no_ceiling
from resilisim.evaluation.run.store import read_failures, read_manifest, record_at
from resilisim.evaluation.table.comparing import compare_tables, match_policies, refuse_incomparable
from resilisim.evaluation.table.episodes import EpisodeTable, TableBuilder, taking_in
from resilisim.evaluation.table.first_difference import MOST_PARTED, Parted, parted_episodes
from resilisim.evaluation.table.verdict import difference_sentence
from resilisim.evaluation.table.worst_case import counted_records
from resilisim.run_folder import MANIFEST_NAME
from resilisim.statistics.comparison import Comparison, pool_comparisons
from resilisim.statistics.estimates import FloatArray, IntArray
from resilisim.statistics.sequential import Measure, mean_bounds

Verdict = Literal["better", "not worse", "worse", "undecided"]
EXIT_CODES: Final[Mapping[Verdict, int]] = {"better": 0, "not worse": 0, "worse": 1, "undecided": 3}
DEFAULT_MARGIN: Final = 0.05
DEFAULT_ALPHA: Final = 0.05
# How far an outcome may be below V* - 1 once luck is taken off, for each way to take it off: more room takes off more.
ROOMS: Final = (0.25, 1.0)
_SAME: Final = 1e-9  # rates that differ by less are the same

_Key = tuple[str, int]  # task, and seed


@dataclass(frozen=True, slots=True)
class GateRow:
    """What a gate says of one agent under one prompt.

    Attributes:
        baseline, candidate: Names of the agents.
        prompt: Prompt type.
        success_baseline, success_candidate: Their success rates in the pairs.
        difference: Candidate minus baseline, as a share (-0.04 is 4 points worse), luck removed.
        low, high: Bounds of it.
        pairs: Pairs of episodes, or of tasks where both were explored.
        num_tasks: Tasks behind them.
        num_missing: Pairs that should be there and are not, for which the worst was assumed either way.
        num_lost, num_won: Pairs that the candidate alone lost, and won; tasks on which its rate is lower or higher.
        is_exact: Whether no chance is in the bounds, as both were explored.
        verdict: What follows.
        parted: The episodes that came out differently, and where they part; those that the candidate lost first.
        moved: Where it is exact, the tasks whose rates differ, with the rate of the baseline and of the candidate; the
            largest losses first.
    """

    baseline: str
    candidate: str
    prompt: str
    success_baseline: float
    success_candidate: float
    difference: float
    low: float
    high: float
    pairs: int
    num_tasks: int
    num_missing: int
    num_lost: int
    num_won: int
    is_exact: bool
    verdict: Verdict
    parted: tuple[Parted, ...] = field(default=(), repr=False)
    moved: tuple[tuple[str, float, float], ...] = field(default=(), repr=False)

    @property
    def name(self) -> str:
        """Who is judged, and under which prompt."""
        who = self.candidate if self.candidate == self.baseline else f"{self.candidate} against {self.baseline}"
        return f"{who}, prompt {self.prompt}"

    def sentence(self, margin: float) -> str:
        """Return the verdict in plain words."""
        told = difference_sentence(
            "the candidate", "the baseline", self.difference, self.low, self.high, margin, is_exact=self.is_exact
        )
        noun = "task" if self.is_exact else "episode"
        if self.is_exact:
            came = f"it is behind on {count_of(self.num_lost, noun)} and ahead on {self.num_won:,}"
        else:
            came = (
                f"it lost {count_of(self.num_lost, noun)} that the baseline won, and won {self.num_won:,} that it lost"
            )
        return f"{told}: {came}" if self.num_lost or self.num_won else told

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        names = [name for name in self.__slots__ if name not in ("parted", "moved")]
        parted = [each.to_mapping() for each in self.parted]
        return {**{name: getattr(self, name) for name in names}, "moved": list(map(list, self.moved)), "parted": parted}


@dataclass(frozen=True, slots=True)
class Gate:
    """What a gate says of a candidate.

    Attributes:
        rows: One for each agent and prompt that both sides have.
        margin: What the candidate may be worse by, as a share.
        alpha: The chance that any verdict is wrong, at whatever time one looks.
        notes: What else there is to know.
    """

    rows: tuple[GateRow, ...]
    margin: float
    alpha: float
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The verdict on all rows: worse if one is; better or not worse only if all are."""
        verdicts = {row.verdict for row in self.rows}
        order: tuple[Verdict, ...] = ("worse", "undecided", "not worse", "better")
        return next(each for each in order if each in verdicts)

    @property
    def exit_code(self) -> int:
        """0 for better and not worse, 1 for worse, 3 for undecided."""
        return EXIT_CODES[self.verdict]

    @property
    def sentence(self) -> str:
        """The verdict in plain words, of the row that decides it."""
        deciding = [row for row in self.rows if row.verdict == self.verdict]
        told = min(deciding, key=lambda row: row.difference).sentence(self.margin)
        told = f"{told[0].upper()}{told[1:]}"
        if len(self.rows) == 1:
            return f"{told}."
        first = min(deciding, key=lambda row: row.difference)
        return f"{told} ({first.name}; {len(deciding)} of {len(self.rows)} are {self.verdict})."

    def to_mapping(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "sentence": self.sentence,
            "margin": self.margin,
            "alpha": self.alpha,
            "rows": [row.to_mapping() for row in self.rows],
            "notes": list(self.notes),
        }


def verdict_of(low: float, high: float, margin: float) -> Verdict:
    """Return what bounds of a difference, candidate minus baseline, say."""
    if low > _SAME:
        return "better"
    if low >= -margin - _SAME:
        return "not worse"
    return "worse" if high < -_SAME else "undecided"


def gate_runs(
    baseline: Path | str,
    candidate: Path | str,
    *,
    margin: float = DEFAULT_MARGIN,
    alpha: float = DEFAULT_ALPHA,
    baseline_policy: str | None = None,
    candidate_policy: str | None = None,
    prompt: str | None = None,
) -> Gate:
    """Judge a candidate against a baseline on the draws that both have met.

    Args:
        baseline: Folder of a run, of `evaluate`, `explore` or `inject`; or one of folders of runs with different seeds.
        candidate: The same of the candidate; it may be the same run, if it holds both agents.
        margin: By how much the candidate may be worse, as a share of episodes.
        alpha: The chance that the verdict is wrong, however often one looks; several agents or prompts share it.
        baseline_policy: Only this agent of the baseline.
        candidate_policy: Only this agent of the candidate.
        prompt: Only this prompt type.

    Raises:
        StoreError: One is not a folder of results.
        InvalidInputError: The runs cannot be compared, or have no episode in common.

    Example:
        >>> from resilisim import explore
        >>> from resilisim.evaluation import gate_runs
        >>> both = ["plan-follower", "repairing-follower"]
        >>> found = explore(both, tasks=1, prompts="optimal", out="explored", max_turns=4)
        >>> names = {"baseline_policy": "repairing-follower", "candidate_policy": "plan-follower"}
        >>> gate = gate_runs(found.directory, found.directory, **names)
        >>> gate.rows[0].is_exact, gate.verdict
        (True, 'not worse')
    """
    check_number("margin", margin, 0.0, below=1.0)
    check_number("alpha", alpha, above=0.0, below=1.0)
    same = Path(baseline).resolve() == Path(candidate).resolve()
    base = _Side.read(baseline)
    sides = [base, base if same else _Side.read(candidate)]
    refuse_incomparable(
        [run.table.manifest for side in sides for run in side.runs],
        [run.directory for side in sides for run in side.runs],
    )
    groups = _groups(sides[0], sides[1], baseline_policy, candidate_policy, prompt, same)
    rows = [_judged(sides[0], sides[1], group, margin, alpha / len(groups)) for group in groups]
    return Gate(tuple(rows), margin, alpha, tuple(_notes(sides)))


def gate_pilot(
    baseline: Path | str,
    candidate: Path | str | None = None,
    *,
    baseline_policy: str | None = None,
    candidate_policy: str | None = None,
    prompt: str | None = None,
) -> list[Measure]:
    """Return the differences of a pilot's pairs, for `gate_plan.plan_gate`; all 0 of one side alone.

    Raises:
        StoreError: One is not a folder of results.
        InvalidInputError: The runs cannot be compared, or both were explored, so that nothing is to be planned.
    """
    base = _Side.read(baseline)
    if candidate is None:
        none = np.zeros(sum(len(run.table) for run in base.runs))
        return _measures(none, [none for _ in ROOMS])
    same = Path(baseline).resolve() == Path(candidate).resolve()
    other = base if same else _Side.read(candidate)
    refuse_incomparable([run.table.manifest for side in (base, other) for run in side.runs])
    groups = _groups(base, other, baseline_policy, candidate_policy, prompt, same)
    measured = []
    for group in groups:
        paired = _paired(base, other, group)
        pairs = paired.comparison.pairs
        if pairs.is_exact:
            raise InvalidInputError(
                "both were explored: their difference is exact, and no number of episodes is needed"
            )
        measured.append(_measures(pairs.outcome_a - pairs.outcome_b, paired.taken))
    number = min(map(len, measured))
    return [
        Measure(np.concatenate([each[place].terms for each in measured]), measured[0][place].reach)
        for place in range(number)
    ]


_Group = tuple[str, str, str]  # baseline's agent, candidate's agent, prompt type


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of one side: its table, and what is taken off each sampled episode for luck, in each of `ROOMS`."""

    directory: Path
    table: EpisodeTable
    taken: Mapping[tuple[str, str, str, int], tuple[float, ...]]
    has_luck: bool  # whether that has mean zero
    broken: tuple[FailureRecord, ...]  # episodes that were not finished as something outside failed
    lines: Mapping[tuple[str, str, str, int], int]  # where an episode's line begins, to read its messages again

    @classmethod
    def read(cls, directory: Path) -> _Run:
        manifest, failures = read_manifest(directory), tuple(read_failures(directory))
        builder, taken, has_luck, num_lost = TableBuilder(sums=False), {}, True, 0
        finished: set[int] = set()
        places: dict[int, int] = {}
        lines: dict[tuple[str, str, str, int], int] = {}
        with AT_WORK.on(f"reading {directory}"):
            for record, counts_as_lost in counted_records(directory, manifest, failures, places):
                with taking_in(record, directory):
                    builder.add(record)
                    key = (record["policy"], record["prompt_type"], record["instance_id"], record["seed"])
                    taken[key] = tuple(luck_within(record, room) for room in ROOMS)
                    has_luck = has_luck and (counts_as_lost or _has_pure_luck(record))
                if not counts_as_lost:
                    lines[key] = places.pop(record["index"])
                finished.add(record["index"])
                num_lost += counts_as_lost
        broken = {each["index"]: each for each in failures if each["index"] not in finished}
        table = replace(builder.table(manifest), num_counted_as_lost=num_lost)
        return cls(directory, table, taken, has_luck, tuple(broken.values()), lines)

    def planned(self, group: tuple[str, str]) -> tuple[str, frozenset[int]] | None:
        """Return a hash of all tasks of an agent and a prompt, and all seeds; None where nobody can tell."""
        arguments = self.table.manifest.get("arguments", {})
        seeds, tasks = arguments.get("seeds"), arguments.get("tasks")
        if not isinstance(seeds, list) or not isinstance(tasks, Mapping) or arguments.get("shard"):
            return None
        if group[0] not in arguments.get("policy_names", ()) or group[1] not in arguments.get("prompts", ()):
            return None
        return str(tasks.get("sha256")), frozenset(seeds)


@dataclass(frozen=True, slots=True)
class _Side:
    """The runs of one side."""

    name: str
    runs: tuple[_Run, ...]

    @classmethod
    def read(cls, directory: Path | str) -> _Side:
        folder = Path(directory)
        below = sorted(path.parent for path in folder.glob(f"*/{MANIFEST_NAME}"))
        parts = [folder] if (folder / MANIFEST_NAME).exists() or not below else below
        return cls(str(directory), tuple(_Run.read(part) for part in parts))

    def groups(self) -> list[tuple[str, str]]:
        return list(dict.fromkeys(group for run in self.runs for group in run.table.groups()))


def _has_pure_luck(record: EpisodeRecord) -> bool:
    """Tell whether the luck of an episode has mean zero, and regret is never below 0."""
    if has_no_ceiling(record) or record["optimum_gap"] or record.get("optimum_knowledge", "observing") != "observing":
        return False
    agent = record.get("agent")
    if agent is not None and (agent["restarts"] > 0 or agent["options"].get("trials") == "fresh"):
        return False
    steps = record["steps"]
    return not any(step.get("real") or step.get("regret", 0.0) < -REGRET_TOLERANCE for step in steps)


def luck_within(record: EpisodeRecord, room: float) -> float:
    """Return how much luck to take off an episode, so that what is left is bounded.

    Luck of each message is taken off as far as the sum can surely not get above 1 - V* + `room`, however lucky the
    message is: which share that is is known before it is sent, so the sum still has mean zero. The outcome less the sum
    is then from V* - 1 - room to V*: without regret it is V*, and regret brings it down.
    """
    most, taken = 1.0 - record["optimum"] + room, 0.0
    for step in record["steps"]:
        could = 1.0 - step.get("action_value", 1.0)
        share = 1.0 if could <= 0.0 else min(max((most - taken) / could, 0.0), 1.0)
        taken += share * step.get("luck", 0.0)
    return taken


def _groups(
    base: _Side, candidate: _Side, policy_a: str | None, policy_b: str | None, prompt: str | None, same: bool
) -> list[_Group]:
    """Return which agents are judged against which, under which prompts."""
    matched: dict[tuple[str, str], None] = {}
    for one in base.runs[:1]:
        for other in candidate.runs[:1]:
            names = (base.name, candidate.name)
            matched |= dict.fromkeys(match_policies(one.table, other.table, policy_a, policy_b, names, same))
    held_a, held_b = base.groups(), set(candidate.groups())
    groups = [
        (one, other, held)
        for one, other in matched
        for policy, held in held_a
        if policy == one and (other, held) in held_b and prompt in (None, held)
    ]
    if not groups:
        raise InvalidInputError(
            f"{base.name} and {candidate.name} have no agent and prompt type in common"
            + ("" if prompt is None else f" under prompt {prompt}")
        )
    return groups


@dataclass(frozen=True, slots=True)
class _Paired:
    """The pairs of a group; arrays of shape (num_pairs,), differences are candidate minus baseline."""

    comparison: Comparison
    task: IntArray
    seed: IntArray
    taken: tuple[FloatArray, ...]  # what luck has added to the difference, in each of `ROOMS`; none where unknown

    @property
    def keys(self) -> list[_Key]:
        names = self.comparison.pairs.tasks
        return [(names[task], seed) for task, seed in zip(self.task.tolist(), self.seed.tolist(), strict=True)]


def _judged(base: _Side, candidate: _Side, group: _Group, margin: float, alpha: float) -> GateRow:
    paired = _paired(base, candidate, group)
    pairs = paired.comparison.pairs
    outcomes = pairs.outcome_a - pairs.outcome_b
    least, most = pairs.difference_ends
    if pairs.is_exact:
        low, high = float(least.mean()), float(most.mean())
    else:
        low = mean_bounds(_measures(least, paired.taken), paired.task, paired.seed, alpha)[0]
        high = mean_bounds(_measures(most, paired.taken), paired.task, paired.seed, alpha)[1]
    missing = _missing(base, candidate, group)
    total = len(pairs) + len(missing)
    low = (len(pairs) * low + math.fsum(worst for worst, _ in missing)) / total
    high = (len(pairs) * high + math.fsum(best for _, best in missing)) / total
    difference = min(max(paired.comparison.best.difference, low), high)
    lost, won = outcomes < -_SAME, outcomes > _SAME
    order = [place for place in np.argsort(outcomes, kind="stable").tolist() if lost[place] or won[place]]
    apart = [paired.keys[place] for place in order]
    return GateRow(
        baseline=group[0],
        candidate=group[1],
        prompt=group[2],
        success_baseline=float(pairs.outcome_b.mean()),
        success_candidate=float(pairs.outcome_a.mean()),
        difference=difference,
        low=low,
        high=high,
        pairs=len(pairs),
        num_tasks=pairs.num_tasks,
        num_missing=len(missing),
        num_lost=int(lost.sum()),
        num_won=int(won.sum()),
        is_exact=pairs.is_exact,
        verdict=verdict_of(low, high, margin),
        moved=tuple(
            (paired.keys[place][0], float(pairs.outcome_b[place]), float(pairs.outcome_a[place])) for place in order
        )
        if pairs.is_exact
        else (),
        parted=() if pairs.is_exact else _parted(base, candidate, group, apart),
    )


def _parted(base: _Side, candidate: _Side, group: _Group, pairs: Sequence[_Key]) -> tuple[Parted, ...]:
    """Return where the episodes of some pairs part, in their order; the first `MOST_PARTED` of them."""

    def there(side: _Side, policy: str, key: _Key) -> tuple[Path, EpisodeRecord] | None:
        whole = (policy, group[2], *key)
        run = next((run for run in side.runs if whole in run.lines), None)
        return None if run is None else (run.directory, record_at(run.directory, run.lines[whole]))

    return tuple(
        parted_episodes(key, there(base, group[0], key), there(candidate, group[1], key)) for key in pairs[:MOST_PARTED]
    )


def _measures(outcomes: FloatArray, taken: Sequence[FloatArray]) -> list[Measure]:
    """Return the ways to measure a difference: as it is, and with luck taken off."""
    adjusted = zip(ROOMS, taken, strict=False)
    return [Measure(outcomes, 1.0), *(Measure(outcomes - luck, 1.0 + room) for room, luck in adjusted)]


def _paired(base: _Side, candidate: _Side, group: _Group) -> _Paired:
    """Return the pairs of the runs of both sides, each pair once.

    Raises:
        InvalidInputError: There is none, or one stands twice.
    """
    parts: list[tuple[Comparison, tuple[FloatArray, ...]]] = []
    for one in base.runs:
        for other in candidate.runs:
            tables = _common(one, group[0], group[2]), _common(other, group[1], group[2])
            if tables[0] is None or tables[1] is None or not _share_episodes(tables[0], tables[1]):
                continue
            compared = compare_tables(tables[1], tables[0], group[1], group[0])
            parts.append((compared, _luck(one, other, group, compared)))
    if not parts:
        raise InvalidInputError(
            f"{base.name} and {candidate.name} have no episode in common: expected at least one task with the same seed"
        )
    pooled = pool_comparisons([compared for compared, _ in parts], group[1], group[0])
    pairs = pooled.pairs
    seed = np.zeros_like(pairs.seed) if pairs.is_exact else pairs.seed
    if len(np.unique(np.stack([pairs.task, seed]), axis=1).T) < len(pairs):
        raise InvalidInputError(f"{base.name} or {candidate.name} holds an episode twice: expected runs of other seeds")
    has_luck = all(len(luck) == len(ROOMS) for _, luck in parts)
    taken = tuple(np.concatenate([luck[place] for _, luck in parts]) for place in range(len(ROOMS))) if has_luck else ()
    return _Paired(pooled, pairs.task, seed, taken)


def _common(run: _Run, policy: str, prompt: str) -> EpisodeTable | None:
    return run.table.group(policy, prompt) if (policy, prompt) in run.table.facts else None


def _share_episodes(one: EpisodeTable, other: EpisodeTable) -> bool:
    """Tell whether two tables have an episode in common; where either was explored, a task."""
    without_seed = one.is_explored or other.is_explored
    keys = [
        {
            (table.tasks[task].instance_id, 0 if without_seed else seed)
            for task, seed in zip(table.task.tolist(), table.seed.tolist(), strict=True)
        }
        for table in (one, other)
    ]
    return bool(keys[0] & keys[1])


def _luck(base: _Run, candidate: _Run, group: _Group, compared: Comparison) -> tuple[FloatArray, ...]:
    """Return what luck has added to each difference, in each of `ROOMS`; nothing where it may not have mean zero."""
    if not (base.has_luck and candidate.has_luck) or compared.pairs.is_exact:
        return () if not compared.pairs.is_exact else tuple(np.zeros(len(compared.pairs)) for _ in ROOMS)
    pairs, luck = compared.pairs, []
    explored = (candidate.table.is_explored, base.table.is_explored)
    for task, seed in zip(pairs.task.tolist(), pairs.seed.tolist(), strict=True):
        sides = []
        for run, policy, is_explored in zip((candidate, base), (group[1], group[0]), explored, strict=True):
            key = (policy, group[2], pairs.tasks[task], seed)
            sides.append(np.zeros(len(ROOMS)) if is_explored else np.array(run.taken[key]))
        luck.append(sides[0] - sides[1])
    return tuple(np.array(luck).T)


@dataclass(frozen=True, slots=True)
class _Held:
    """What one side has played and planned of a group.

    Attributes:
        outcomes: Of each task and seed; of an agent that was explored, its rate.
        broken: What was not finished as something outside failed.
        tasks: Hashes of all planned tasks; empty where nobody knows them.
        seeds: All planned seeds.
    """

    outcomes: Mapping[_Key, float]
    broken: frozenset[_Key]
    tasks: frozenset[str]
    seeds: frozenset[int]

    @classmethod
    def of(cls, side: _Side, policy: str, prompt: str, other_seeds: frozenset[int] = frozenset()) -> _Held:
        """Return it; what was explored stands beside every seed of the other side."""
        plans = [plan for run in side.runs if (plan := run.planned((policy, prompt))) is not None]
        tables = [table for run in side.runs if (table := _common(run, policy, prompt)) is not None]
        is_explored = any(table.is_explored for table in tables)
        seeds = frozenset(seed for _, each in plans for seed in each)
        seeds |= {seed for table in tables for seed in np.unique(table.seed).tolist()}
        if is_explored:
            seeds = other_seeds or frozenset([0])

        def keys(task: str, seed: int) -> Iterator[_Key]:
            yield from ((task, each) for each in (seeds if is_explored else (seed,)))

        outcomes = {
            key: float(outcome)
            for table in tables
            for task, seed, outcome in zip(
                table.task.tolist(), table.seed.tolist(), table.outcome.tolist(), strict=True
            )
            for key in keys(table.tasks[task].instance_id, seed)
        }
        broken = {
            key
            for run in side.runs
            for failure in run.broken
            if (failure["policy"], failure["prompt_type"]) == (policy, prompt)
            for key in keys(failure["instance_id"], failure["seed"])
        }
        return cls(outcomes, frozenset(broken), frozenset(digest for digest, _ in plans), seeds)

    def lacks(self, key: _Key, other: _Held) -> bool:
        """Tell whether a pair that the other side has should be here, and is not."""
        if key in self.outcomes:
            return False
        return key in self.broken or (bool(self.tasks) and self.tasks == other.tasks and key[1] in self.seeds)


def _missing(base: _Side, candidate: _Side, group: _Group) -> list[tuple[float, float]]:
    """Return the least and the most that the difference of each missing pair can be.

    A pair is missing if one side has it, and the other has planned it; where nobody knows what was planned, if it broke
    there. So is one in which both broke.
    """
    sides = [_Held.of(base, group[0], group[2]), _Held.of(candidate, group[1], group[2])]
    for place, (side, policy) in enumerate(((base, group[0]), (candidate, group[1]))):
        if any((table := _common(run, policy, group[2])) is not None and table.is_explored for run in side.runs):
            sides[place] = _Held.of(side, policy, group[2], sides[1 - place].seeds)
    own, other = sides
    lost = [(outcome - 1.0, outcome) for key, outcome in other.outcomes.items() if own.lacks(key, other)]
    lost += [(-outcome, 1.0 - outcome) for key, outcome in own.outcomes.items() if other.lacks(key, own)]
    unknown = (own.broken | other.broken) - own.outcomes.keys() - other.outcomes.keys()
    return lost + [(-1.0, 1.0)] * len(unknown)


def _notes(sides: Sequence[_Side]) -> Iterator[str]:
    for side in sides[: 1 + (sides[0].name != sides[1].name)]:
        lost = sum(run.table.num_counted_as_lost for run in side.runs)
        if lost:
            yield (
                f"{side.name}: {count_of(lost, 'episode')} broke, nobody can tell why, and "
                f"{'counts' if lost == 1 else 'count'} as lost, since the agent may have caused that."
            )
