"""Where the points of a run went: losses by policy, prompt, flaw, task type and tool, errors, the costliest calls.

Memory grows with policies, prompts, tools and kinds of error, never with episodes. Sums over calls are kept once, in
the finest division; every other one is added up from it, or from the table of episodes, when it is asked for. Branches
of an agent that was explored count by their weight, so that of them all numbers are expected ones.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resilisim.evaluation.episode.record import EpisodeRecord, StepRecord, weight_of
from resilisim.evaluation.table.episodes import EpisodeTable

RAN_NO_TOOL: Final = ""  # key of messages that ran no tool

NUM_KEPT: Final = 100  # costly calls
MOST_SHARED: Final = 64  # explorations that are read at once, by several processes
_EXCERPT_LENGTH: Final = 200  # characters of a message that are kept

# Finding out what the prompt does not say has a price, which is nobody's fault.
_NO_BLAME: Final = "information"

# Regrets that differ by rounding count as equal, so that the choice among them is by place and never by chance.
_DIGITS: Final = 9


@dataclass(frozen=True, slots=True)
class BreakdownRow:
    """What one part of a run's episodes, or of their calls, lost."""

    policy: str
    prompt_type: str  # prompt type; "" where all prompts of the policy are counted together
    key: str  # what the row is about: the policy, prompt type, flaw type, task type or tool
    episodes: float  # episodes; for a tool, those in which it was run
    calls: float  # messages; for a tool, its executions
    # Sum of regret by label (`record.LOSS_LABELS`), in points of probability; divide by `episodes` of the policy and
    # prompt for the share of episodes lost
    losses: Mapping[str, float]
    luck: float  # sum of luck


@dataclass(frozen=True, slots=True, order=True)
class CostlyCall:
    """One message that cost something: `index` is the episode's place in its run, `turn` counts messages from 1.

    Where the policy was explored, the regret is that of all branches that share the call, by their weight, and the
    episode the first of them.
    """

    policy: str
    prompt_type: str
    index: int
    turn: int
    message: str
    label: str
    regret: float


class _CallKey(NamedTuple):
    policy: str
    prompt_type: str
    kind: str
    tool: str  # `RAN_NO_TOOL` if none was run
    success: bool | None  # None if none was run
    error: str  # of a failed execution


@dataclass(slots=True)
class _Cell:
    """Sums over some calls; `episodes` are those in which the tool was run, or a message that ran none was sent."""

    calls: float = 0.0
    episodes: float = 0.0
    luck: float = 0.0
    losses: dict[str, float] = field(default_factory=dict)

    def merge(self, other: _Cell) -> None:
        self.calls += other.calls
        self.episodes += other.episodes
        self.luck += other.luck
        for label, amount in other.losses.items():
            self.losses[label] = self.losses.get(label, 0.0) + amount


class CallSums:
    """Sums over the single calls of a run, and its costliest ones.

    Calls are ordered by regret (rounded), then the earlier episode and message, so that the choice does not depend on
    the order in which episodes come. Searches that the prompt made necessary are left out. Branches of an agent that
    was explored share the calls before they part: such a call is one, and cost what it cost in all of them.
    """

    def __init__(self) -> None:
        self.cells: dict[_CallKey, _Cell] = {}
        self._costly: list[tuple[tuple[float, int, int], CostlyCall]] = []  # a heap, the cheapest first
        self._lowest = 0.0  # below this nothing can enter any more
        # Of explorations that are being read: calls with all that came before them.
        self._shared: dict[tuple[str, str, str], dict[int, CostlyCall]] = {}

    def add(self, record: EpisodeRecord) -> None:
        """Take in the calls of one episode."""
        policy, prompt_type, weight = record["policy"], record["prompt_type"], weight_of(record)
        ran_no_tool, path, brought = False, 0, None
        shared = self._calls_of(record) if "branch" in record else None
        for step in record["steps"]:
            path = hash((path, brought, step["message"], step["value"]))
            brought = step["success"], step["error"]
            success, label = step["success"], step["label"]
            if success is None:
                key = _CallKey(policy, prompt_type, step["kind"], RAN_NO_TOOL, None, "")
                is_first, ran_no_tool = not ran_no_tool, True
            else:
                error = "" if success else step["error"] or ""
                key = _CallKey(policy, prompt_type, step["kind"], step["tool"] or "", success, error)
                is_first = step["attempt"] == 1
            cell = self.cells.get(key)
            if cell is None:
                cell = self.cells[key] = _Cell()
            cell.calls += weight
            cell.episodes += weight * is_first
            if success is not None:
                cell.luck += weight * step["luck"]
            if label is not None:
                cell.losses[label] = cell.losses.get(label, 0.0) + weight * step["regret"]
                if label == _NO_BLAME:
                    continue
                if shared is not None:
                    there = shared.get(path)
                    call = _costly_call(record, step, label)
                    index, regret = (call.index, 0.0) if there is None else (min(there.index, call.index), there.regret)
                    shared[path] = replace(call, index=index, regret=regret + call.regret)
                elif weight * step["regret"] >= self._lowest:
                    self._keep(_costly_call(record, step, label))

    def _calls_of(self, record: EpisodeRecord) -> dict[int, CostlyCall]:
        """Return the calls of an exploration so far; one that was begun long ago is taken to have ended."""
        name = record["policy"], record["prompt_type"], record["instance_id"]
        if name not in self._shared and len(self._shared) >= MOST_SHARED:
            for call in self._shared.pop(next(iter(self._shared))).values():
                self._keep(call)
        return self._shared.setdefault(name, {})

    def _keep(self, call: CostlyCall) -> None:
        heapq.heappush(self._costly, ((round(call.regret, _DIGITS), -call.index, -call.turn), call))
        if len(self._costly) > NUM_KEPT:
            heapq.heappop(self._costly)
            self._lowest = self._costly[0][0][0] - 10.0**-_DIGITS

    def costliest(self) -> tuple[CostlyCall, ...]:
        """Return the calls with the highest regret, at most `NUM_KEPT`."""
        while self._shared:
            for call in self._shared.popitem()[1].values():
                self._keep(call)
        return tuple(call for _, call in sorted(self._costly, reverse=True))


def _costly_call(record: EpisodeRecord, step: StepRecord, label: str) -> CostlyCall:
    regret, message = weight_of(record) * step["regret"], step["message"][:_EXCERPT_LENGTH]
    return CostlyCall(record["policy"], record["prompt_type"], record["index"], step["turn"], message, label, regret)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """What lost points can be put down to."""

    table: EpisodeTable  # the table of sums of the run
    calls: CallSums = field(repr=False)  # sums over its calls

    def totals(self, dimension: str) -> list[BreakdownRow]:
        """Return one row for each part of a dimension (policy, prompt, flaw, task_type, tool), as they were first met.

        Rows by "policy" count all prompts of a policy together; all others are by policy and prompt type. The key is
        the flaw's type ("" for episodes without one), the task type, or the tool ("" for messages that ran none).
        """
        if dimension == "tool":
            return [
                BreakdownRow(*names, cell.episodes, cell.calls, cell.losses, cell.luck)
                for names, cell in self._tools().items()
            ]
        table = self.table
        prompts = table.prompt if dimension != "policy" else np.zeros_like(table.prompt)
        keys, of_row = self._parts(dimension)
        parts = np.stack([table.policy, prompts, of_row])  # (3, num_rows)
        names, first, part = np.unique(parts, axis=1, return_index=True, return_inverse=True)
        episodes, calls, luck = (np.bincount(part, weights=sums) for sums in (table.count, table.turns, table.luck))
        losses = {label: np.bincount(part, weights=sums) for label, sums in table.losses.items()}
        return [
            BreakdownRow(
                policy=table.policies[names[0, place]],
                prompt_type="" if dimension == "policy" else table.prompts[names[1, place]],
                key=keys[names[2, place]],
                episodes=float(episodes[place]),
                calls=float(calls[place]),
                losses={label: float(sums[place]) for label, sums in losses.items() if sums[place]},
                luck=float(luck[place]),
            )
            for place in np.argsort(first).tolist()
        ]

    @property
    def errors(self) -> Mapping[tuple[str, str, str], float]:
        """Failed executions by policy, prompt type and type of error."""
        return self._counts(lambda key: key.error if key.success is False else None)

    @property
    def kinds(self) -> Mapping[tuple[str, str, str], float]:
        """Messages by policy, prompt type and kind (execute, search, info, format_error, rejected, finish, stop)."""
        return self._counts(lambda key: key.kind)

    @property
    def executions(self) -> Mapping[tuple[str, str, str], float]:
        """Executions by policy, prompt type and tool."""
        return self._counts(lambda key: None if key.success is None else key.tool)

    @property
    def costliest(self) -> tuple[CostlyCall, ...]:
        """The calls with the highest regret, at most `NUM_KEPT`."""
        return self.calls.costliest()

    def _counts(self, name_of: Callable[[_CallKey], str | None]) -> Mapping[tuple[str, str, str], float]:
        counts: defaultdict[tuple[str, str, str], float] = defaultdict(float)
        for key, cell in self.calls.cells.items():
            name = name_of(key)
            if name is not None:
                counts[key.policy, key.prompt_type, name] += cell.calls
        return counts

    def _tools(self) -> dict[tuple[str, str, str], _Cell]:
        """Return the sums by policy, prompt type and tool: groups as they were first met, tools by name."""
        cells: dict[tuple[str, str], dict[str, _Cell]] = {}
        for key, cell in self.calls.cells.items():
            cells.setdefault(key[:2], {}).setdefault(key.tool, _Cell()).merge(cell)
        return {(*group, tool): cell for group, tools in cells.items() for tool, cell in sorted(tools.items())}

    def _parts(self, dimension: str) -> tuple[list[str], NDArray[np.int64]]:
        """Return the names of a dimension's parts and the part of each row, shape (num_rows,)."""
        table = self.table
        if dimension == "policy":
            return list(table.policies), table.policy.astype(np.int64)
        if dimension == "prompt":
            return list(table.prompts), table.prompt.astype(np.int64)
        by_flaw = dimension == "flaw"
        names = [flaw[0] for flaw in table.flaws] if by_flaw else [task.task_type for task in table.tasks]
        keys = list(dict.fromkeys(names))
        of_name = np.array([keys.index(name) for name in names], dtype=np.int64)
        return keys, of_name[table.flaw] if by_flaw else of_name[table.task]
