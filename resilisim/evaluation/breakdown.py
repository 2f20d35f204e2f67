"""Where the points of a run went: losses by policy, prompt, flaw, task type and tool, errors, the costliest calls.

Memory grows with policies, prompts, flaws, task types, tools and tasks, never with episodes. Sums are kept once, in the
finest division; every other one is added up from it when it is asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, get_args

from resilisim.errors import unknown_name
from resilisim.evaluation.accumulate import GroupSums, RunSums
from resilisim.evaluation.costly_calls import CostlyCall, CostlyCalls
from resilisim.evaluation.episode.record import EpisodeRecord

Dimension = Literal["policy", "prompt", "flaw", "task_type", "tool"]
DIMENSIONS: Final[tuple[str, ...]] = get_args(Dimension)

# Keys of rows for what has no name of its own.
NO_TOOL: Final = ""  # messages that ran no tool
NO_FLAW: Final = ""  # episodes whose prompt has no flaw


@dataclass(frozen=True, slots=True)
class BreakdownRow:
    """What one part of a run's episodes, or of their calls, lost.

    Attributes:
        policy: Name of the policy.
        prompt_type: Prompt type; "" where all prompts of the policy are counted together.
        key: What the row is about: the policy, prompt type, flaw type, task type or tool.
        episodes: Episodes; for a tool, those in which it was run.
        calls: Messages; for a tool, its executions.
        losses: Sum of regret by label (`LOSS_LABELS`), in points of probability; divide by `episodes` of the
            policy and prompt for the share of episodes lost.
        luck: Sum of luck.
    """

    policy: str
    prompt_type: str
    key: str
    episodes: int
    calls: int
    losses: Mapping[str, float]
    luck: float

    def to_mapping(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How often a tool was run, and how often that succeeded."""

    executions: int
    successes: int


@dataclass(slots=True)
class _Cell:
    """Sums over one part; `successes` are counted for tools only."""

    episodes: int = 0
    calls: int = 0
    luck: float = 0.0
    successes: int = 0
    losses: dict[str, float] = field(default_factory=dict)

    def merge(self, other: _Cell) -> None:
        self.episodes += other.episodes
        self.calls += other.calls
        self.luck += other.luck
        self.successes += other.successes
        for label, amount in other.losses.items():
            self.losses[label] = self.losses.get(label, 0.0) + amount


_Part = tuple[str, str, str, str]  # policy, prompt type, flaw type, task type


class Breakdown:
    """Sums over the episodes of a run, divided by what lost points can be put down to.

    Args:
        sums: The run's sums; they number the tasks.
    """

    def __init__(self, sums: RunSums) -> None:
        self._sums = sums
        self._parts: dict[_Part, _Cell] = {}
        self._tools: dict[tuple[str, str], dict[str, _Cell]] = {}
        self._errors: dict[tuple[str, str], Counter[str]] = {}
        self._kinds: dict[tuple[str, str], Counter[str]] = {}
        self._flaws: dict[tuple[str, str, str, str], GroupSums] = {}
        self._costly: dict[str, CostlyCalls] = {}

    def add(self, record: EpisodeRecord) -> None:
        """Take in one episode."""
        policy, prompt_type, flaw = record["policy"], record["prompt_type"], record["flaw"]
        part = (policy, prompt_type, NO_FLAW if flaw is None else flaw["type"], record["task_type"])
        cell = self._parts.get(part)
        if cell is None:
            cell = self._parts[part] = _Cell()
            self._prepare(policy, prompt_type)
        cell.episodes += 1
        cell.calls += len(record["steps"])
        cell.luck += record["luck"]
        for label, amount in record["losses"].items():
            cell.losses[label] = cell.losses.get(label, 0.0) + amount
        self._add_steps(record, policy, (policy, prompt_type))
        if flaw is not None:
            self._add_flaw(record, policy, flaw)

    def totals(self, dimension: str) -> list[BreakdownRow]:
        """Return one row for each part of a dimension, in the order in which parts were first met.

        Rows by "policy" count all prompts of a policy together; all others are by policy and prompt type. The key is
        the flaw's type ("" for episodes without one), the task type, or the tool ("" for messages that ran none).

        Raises:
            InvalidInputError: There is no such dimension.
        """
        if dimension not in DIMENSIONS:
            raise unknown_name("dimension", dimension, DIMENSIONS)
        if dimension == "tool":
            return [
                _row((*group, tool), cell)
                for group, tools in self._tools.items()
                for tool, cell in sorted(tools.items())
                if cell.calls
            ]
        name = _NAMES[dimension]
        found: dict[tuple[str, str, str], _Cell] = {}
        for part, cell in self._parts.items():
            found.setdefault(name(part), _Cell()).merge(cell)
        return [_row(names, cell) for names, cell in found.items()]

    @property
    def flaws(self) -> Mapping[tuple[str, str, str, str], GroupSums]:
        """Sums of the episodes under flawed prompts, by policy, flaw type, severity and method."""
        return self._flaws

    @property
    def errors(self) -> Mapping[tuple[str, str, str], int]:
        """Failed executions by policy, prompt type and type of error."""
        return _flat(self._errors)

    @property
    def kinds(self) -> Mapping[tuple[str, str, str], int]:
        """Messages by policy, prompt type and kind (execute, search, info, format_error, rejected, finish, stop)."""
        return _flat(self._kinds)

    @property
    def tool_uses(self) -> Mapping[tuple[str, str, str], ToolUse]:
        """Executions and successes by policy, prompt type and tool."""
        return {
            (*group, tool): ToolUse(cell.calls, cell.successes)
            for group, tools in self._tools.items()
            for tool, cell in sorted(tools.items())
            if tool != NO_TOOL
        }

    @property
    def costliest(self) -> tuple[CostlyCall, ...]:
        """The calls of all policies with the highest regret, at most `costly_calls.NUM_KEPT`."""
        every = CostlyCalls()
        for calls in self._costly.values():
            every.merge(calls)
        return every.ranked()

    def costliest_of(self, policy: str) -> tuple[CostlyCall, ...]:
        """Return the calls of one policy with the highest regret, at most `costly_calls.NUM_KEPT`."""
        calls = self._costly.get(policy)
        return () if calls is None else calls.ranked()

    def _prepare(self, policy: str, prompt_type: str) -> None:
        group = (policy, prompt_type)
        self._tools.setdefault(group, {NO_TOOL: _Cell()})
        self._errors.setdefault(group, Counter())
        self._kinds.setdefault(group, Counter())
        self._costly.setdefault(policy, CostlyCalls())

    def _add_steps(self, record: EpisodeRecord, policy: str, group: tuple[str, str]) -> None:
        tools, errors, kinds = self._tools[group], self._errors[group], self._kinds[group]
        ran_no_tool = 0
        for step in record["steps"]:
            kinds[step["kind"]] += 1
            if step["success"] is None:
                cell = tools[NO_TOOL]
                ran_no_tool = 1
            else:
                cell = self._add_execution(tools, errors, step["tool"] or "", step)
            cell.calls += 1
            label = step["label"]
            if label is not None:
                cell.losses[label] = cell.losses.get(label, 0.0) + step["regret"]
                self._costly[policy].add(record, step)
        tools[NO_TOOL].episodes += ran_no_tool

    def _add_execution(
        self, tools: dict[str, _Cell], errors: Counter[str], tool: str, step: Mapping[str, Any]
    ) -> _Cell:
        cell = tools.get(tool)
        if cell is None:
            cell = tools[tool] = _Cell()
        if step["success"]:
            cell.successes += 1
        else:
            errors[step["error"] or ""] += 1
        if step["attempt"] == 1:  # a tool's first execution in an episode
            cell.episodes += 1
        cell.luck += step["luck"]
        return cell

    def _add_flaw(self, record: EpisodeRecord, policy: str, flaw: Mapping[str, Any]) -> None:
        key = (policy, flaw["type"], flaw["severity"], flaw["method"])
        group = self._flaws.get(key)
        if group is None:
            group = self._flaws[key] = GroupSums(policy, record["prompt_type"], record["privileged"], record["planner"])
        task = self._sums.task_number(record)
        group.add(task, self._sums.tasks[task].fold, record)


# Policy, prompt type and key of the row that a part belongs to.
_NAMES: Final[Mapping[str, Callable[[_Part], tuple[str, str, str]]]] = {
    "policy": lambda part: (part[0], "", part[0]),
    "prompt": lambda part: (part[0], part[1], part[1]),
    "flaw": lambda part: (part[0], part[1], part[2]),
    "task_type": lambda part: (part[0], part[1], part[3]),
}


def _row(names: tuple[str, str, str], cell: _Cell) -> BreakdownRow:
    return BreakdownRow(*names, cell.episodes, cell.calls, dict(cell.losses), cell.luck)


def _flat(counters: Mapping[tuple[str, str], Counter[str]]) -> dict[tuple[str, str, str], int]:
    return {(*group, name): number for group, counter in counters.items() for name, number in sorted(counter.items())}
