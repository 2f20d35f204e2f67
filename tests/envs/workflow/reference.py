"""Workflow-v0 once more, plainly: every number recomputed from the history of an episode, for comparison.

Nothing here is fast or incremental, and nothing of the package's kernel is used; the texts followed are SPEC section 5
as documented in `columns`, `masking`, `bookkeeping`, `laws` and `rewards`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.workflow import spaces
from resilisim.envs.workflow.context import TaskContext
from resilisim.envs.workflow.kernels.training_law import MAX_STAGE, STAGES
from resilisim.envs.workflow.options import WorkflowOptions
from resilisim.envs.workflow.spaces import ACTION_TYPES, action_type_of, num_actions, tool_of
from resilisim.seeding import PURPOSE_FAILURE, PURPOSE_SUCCESS, episode_key, tool_key, uniform_bits
from resilisim.simulator.law import Law
from resilisim.tasks import Task
from resilisim.tasks.task import TEMPLATE_OF_TYPE
from resilisim.tool_library import ToolLibrary
from resilisim.tool_library.tool import SEMANTIC_TYPES

SHOWN_WITHOUT_LIST = (spaces.TASK_PROGRESS, spaces.TASK_MILESTONES, spaces.TASK_MILESTONES_EXPECTED)
FAILURES = (spaces.STATUS_FAILED, spaces.STATUS_TIMEOUT, spaces.STATUS_DEPENDENCY_FAILED)


@dataclass(frozen=True)
class Execution:
    step: int
    tool: int
    success: bool
    status: int


def in_bytes(share: float) -> int:
    return math.floor(255 * min(1.0, max(0.0, share)) + 0.5)


def longest_ascending(places: list[int]) -> int:
    for size in range(len(places), 0, -1):
        if any(list(run) == sorted(run) for run in combinations(places, size)):
            return size
    return 0


@dataclass
class Reference:
    """One episode; `step` answers like the environment, from scratch."""

    library: ToolLibrary
    task: Task
    options: WorkflowOptions
    context: TaskContext
    row: int  # of the task in the context
    seed: int
    running_success: float = 0.0
    stage: int = MAX_STAGE
    patterns: dict[tuple[str, ...], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = self.library.names
        self.num_tools = len(names)
        self.needs = [[self.library.index(name) for name in self.library.dependencies(tool)] for tool in names]
        self.ancestors = [
            {self.library.index(name) for name in self.library.closure((tool,))} - {index}
            for index, tool in enumerate(names)
        ]
        self.required = [self.library.index(name) for name in self.task.required_tools]
        self.closure = {self.library.index(name) for name in self.library.closure(self.task.required_tools)}
        self.types = [int(code) for code in self.context.operation_type]
        self.actions = [self.decoded(action) for action in range(num_actions(self.num_tools))]
        self.without_list = self.options.required == "none"
        self.key = episode_key(self.options.salt, self.seed, self.task.instance_id)
        self.training = self.options.law == "training"
        self.printed = self.options.printed_rules
        rules = self.options.end_rules()
        adapts = self.training and self.options.max_turns is None
        self.max_steps = STAGES[self.stage].max_turns if adapts else rules.max_turns
        self.history: list[Execution] = []
        self.shown = [spaces.STATUS_NOT_ATTEMPTED] * self.num_tools
        self.retries = [0] * self.num_tools
        self.saved: list[int | None] = [None] * self.num_tools
        self.saved_row: int | None = None
        self.validated: set[int] = set()
        self.selected = [0] * self.num_tools
        self.running: int | None = None
        self.row_of_failures = 0
        self.steps = 0
        self.loop: list[tuple[Any, ...]] = []
        self.progress = 0.0
        self.total = 0.0
        self.last_type = ""
        self.ended: str | None = None

    # What the history says.

    def successes(self) -> list[int]:
        return [one.tool for one in self.history if one.success]

    def first_successes(self) -> list[int]:
        return list(dict.fromkeys(self.successes()))

    def executed(self, tool: int) -> int:
        return [one.tool for one in self.history].count(tool)

    def failures(self) -> int:
        return sum(not one.success for one in self.history)

    def required_places(self) -> list[int]:
        if self.without_list:
            return []
        return self.listed_places()

    def listed_places(self) -> list[int]:
        return [self.required.index(tool) for tool in self.first_successes() if tool in self.required]

    def in_order(self) -> bool:
        places = self.required_places()
        return places == list(range(len(places)))

    def order_broken(self) -> bool:
        return not self.in_order()

    def full_success(self) -> bool:
        return self.listed_places() == list(range(len(self.required)))

    def expected_types(self) -> set[int]:
        if not self.without_list:
            return {self.types[tool] for tool in self.required} - {0}
        steps = TEMPLATE_OF_TYPE[self.task.task_type].steps
        return {1 + list(SEMANTIC_TYPES).index(step.semantic_type) for step in steps}

    def milestones(self) -> int:
        done = [tool for tool in self.first_successes() if self.without_list or tool in self.required]
        types = {self.types[tool] for tool in done} & self.expected_types()
        return len(types) + (4 in types)

    def computed_progress(self) -> float:
        if self.without_list:
            expected = len(self.expected_types()) + (4 in self.expected_types())
            tools = min(1.0, len(self.first_successes()) / 5)
            return 0.3 * (self.milestones() / expected) + 0.4 * tools + 0.3 * min(1.0, self.steps / 20)
        return self.coverage() + (0.1 if self.printed or (self.required_places() and self.in_order()) else 0.0)

    def coverage(self) -> float:
        if self.without_list:
            return 0.0
        if self.printed:
            return sum(self.executed(tool) > 0 for tool in self.required) / len(self.required)
        return len(self.required_places()) / len(self.required)

    def phase(self) -> int:
        return int(self.running_success >= 0.3)

    # Law and luck.

    def unmet(self, tool: int) -> tuple[int, int]:
        if not self.needs[tool]:
            return 0, 0
        never = sum(self.executed(other) == 0 for other in self.needs[tool])
        done = self.successes()
        return never, sum(other not in done for other in self.needs[tool]) - never

    def base(self) -> float:
        return 0.95 if self.running_success < 0.1 else 0.9 if self.running_success < 0.3 else 0.85

    def probability(self, tool: int, with_history: bool = True, clean: bool = False) -> float:
        never, failed = (0, 0) if clean else self.unmet(tool)
        if self.training:
            value = self.base() * (1.0 + 0.3 * float(self.context.task_confidence[self.row, tool]))
            for _ in range(never + failed):
                value *= 0.8
            for _ in range(self.retries[tool] if with_history else 0):
                value *= 0.95
            return min(1.0, value)
        law: Law = self.options.failure_model()
        own = self.library[self.library.names[tool]].success_probability
        return law.probability(law.base if own is None else own, never, failed, self.failures() if with_history else 0)

    def execute(self, tool: int, step: int) -> float:
        name = self.library.names[tool]
        attempt = self.executed(tool)
        key = tool_key(*self.key, name)
        bits = uniform_bits(*key, attempt, PURPOSE_SUCCESS)
        success = bits < math.ceil(Fraction(self.probability(tool)) * 2**53)
        had_succeeded = tool in self.successes()
        if success:
            status = spaces.STATUS_SUCCESS
        elif bits < math.ceil(Fraction(self.probability(tool, clean=True)) * 2**53):
            status = spaces.STATUS_DEPENDENCY_FAILED
        else:
            errors = [error.code for error in self.library[name].failure_errors]
            drawn = errors[uniform_bits(*key, attempt, PURPOSE_FAILURE) % len(errors)]
            status = spaces.STATUS_TIMEOUT if drawn == "TIMEOUT" else spaces.STATUS_FAILED
        pattern = self.pattern(tool) if success else 0.0
        self.history.append(Execution(step, tool, success, status))
        self.row_of_failures = 0 if success else self.row_of_failures + 1
        self.retries[tool] += not success
        if success or not had_succeeded:
            self.shown[tool] = status
        row_limit = STAGES[self.stage].max_errors + 1 if self.training else self.options.max_consecutive_failures
        if not success and self.row_of_failures == row_limit:
            self.ended = "consecutive_failures"
        return self.pay_of_execution(tool, success, attempt == 0, success and not had_succeeded, pattern)

    # Confidence and mask.

    def pattern(self, tool: int) -> float:
        if not self.patterns:
            return 0.0
        names = [self.library.names[index] for index in self.successes()]
        ends = [tuple(names[-size:]) for size in (1, 2) if len(names) >= size]
        return max([self.patterns.get((*end, self.library.names[tool]), 0.0) for end in ends], default=0.0)

    def composite(self, tool: int) -> float:
        static = float(self.context.static_confidence[self.row, tool])
        return min(1.0, static + 0.25 * float(np.float32(self.pattern(tool))))

    def passes(self, tool: int) -> bool:
        filters = self.options.filters
        if "constraint" in filters:
            if self.shown[tool] == spaces.STATUS_SUCCESS or self.retries[tool] >= 3:
                return False
            other = self.running
            if other is not None and (other in self.ancestors[tool] or tool in self.ancestors[other]):
                return False
        if "dependency" in filters and sum(self.unmet(tool)):
            return False
        return "semantic" not in filters or self.composite(tool) > 0.3

    def fallback(self, passing: set[int]) -> tuple[list[int], float]:
        """Return what Algorithm 1 offers in the present state, and the confidence of it; nothing if it is not asked."""
        unfinished = [tool for tool in range(self.num_tools) if self.shown[tool] != spaces.STATUS_SUCCESS]
        if self.running is not None or passing.intersection(unfinished):
            return [], 0.0
        scores, candidates = self.context.similarity[self.row], self.context.candidates[self.row]
        best = sorted((tool for tool in unfinished if candidates[tool]), key=lambda tool: -scores[tool])[:2]
        if best:
            return best, 0.35
        return [tool for tool in unfinished if not self.needs[tool] and self.steps < 10], 0.30

    def legal(self) -> tuple[set[tuple[str, int | None]], bool]:
        """Return the legal actions, and whether the episode has a way forward."""
        passing = {tool for tool in range(self.num_tools) if self.passes(tool)}
        executable = passing - {self.running}
        forward = any(self.shown[tool] != spaces.STATUS_SUCCESS for tool in executable)
        before_fallback = forward
        offered, _ = self.fallback(passing)
        executable |= set(offered)
        forward = forward or bool(offered)
        actions: set[tuple[str, int | None]] = set()
        for tool in executable:
            actions.add(("RETRY_TOOL" if self.shown[tool] in FAILURES else "INVOKE_TOOL", tool))
            if self.training and self.shown[tool] != spaces.STATUS_SUCCESS:
                actions.add(("PARALLEL_EXECUTE", tool))
        if self.training:
            actions |= self.other_actions()
            recovery = {(name, tool) for name, tool in actions if name in ("RECOVER_ERROR", "RESTORE_CHECKPOINT")}
            if not forward and self.running is None and recovery:
                actions, forward = recovery, True
        elif not executable:
            actions.add(("NO_OP", None))
        return actions, before_fallback if self.printed else forward or self.running is not None

    def other_actions(self) -> set[tuple[str, int | None]]:
        actions: set[tuple[str, int | None]] = {("NO_OP", None), ("CREATE_CHECKPOINT", None)}
        restorable = False
        for tool in range(self.num_tools):
            if self.shown[tool] == spaces.STATUS_SUCCESS:
                if tool not in self.validated:
                    actions.add(("VALIDATE_OUTPUT", tool))
                continue
            if self.shown[tool] in FAILURES and self.retries[tool] > 0:
                actions.add(("RECOVER_ERROR", tool))
            if self.saved[tool] != self.retries[tool]:
                actions.add(("CREATE_CHECKPOINT", tool))
            if self.may_restore(tool):
                actions.add(("RESTORE_CHECKPOINT", tool))
                restorable = True
            if any(self.shown[other] == spaces.STATUS_NOT_ATTEMPTED for other in self.needs[tool]):
                actions.add(("CHECK_DEPENDENCIES", tool))
        if restorable or (self.saved_row is not None and self.saved_row < self.row_of_failures):
            actions.add(("RESTORE_CHECKPOINT", None))
        if self.row_of_failures > 0:
            actions.add(("RECOVER_ERROR", None))
        return actions

    def may_restore(self, tool: int) -> bool:
        saved = self.saved[tool]
        return saved is not None and saved < self.retries[tool]

    def mask(self) -> NDArray[np.int8]:
        legal, _ = self.legal()
        no_duplicates = len(self.actions) - 4  # from here on actions without a tool
        return np.array(
            [
                meant in legal and (meant[1] is not None or action >= no_duplicates)
                for action, meant in enumerate(self.actions)
            ],
            np.int8,
        )

    def decoded(self, action: int) -> tuple[str, int | None]:
        tool = tool_of(action, self.num_tools)
        return ACTION_TYPES[action_type_of(action, self.num_tools)], None if tool < 0 else tool

    # A step.

    def step(self, action: int) -> tuple[float, bool]:
        """Let an action happen; return the reward and whether the episode has ended."""
        legal = bool(self.mask()[action])
        name, tool = self.actions[action]
        executes = legal and name in ("INVOKE_TOOL", "RETRY_TOOL")
        signature: tuple[Any, ...] | None = None
        if not legal:
            signature = ("illegal", action)
        elif name == "NO_OP":
            signature = ("NO_OP",)
        elif executes and tool in self.successes():
            signature = ("again", tool)
        milestones_before = self.milestones()
        started, self.running = self.running, None
        pay = 0.0
        if legal and name == "PARALLEL_EXECUTE" and tool is not None:
            self.running = tool
            self.shown[tool] = spaces.STATUS_RUNNING
        if started is not None:
            pay += self.execute(started, self.steps + 1)
        if executes and tool is not None and self.ended is None:
            pay += self.execute(tool, self.steps + 1)
        if legal and not executes:
            self.keep_books(name, tool)
        self.steps += 1
        if legal and tool is not None:
            self.selected[tool] = self.steps
        if signature is None or (self.loop and self.loop[-1] != signature):
            self.loop = []
        if signature is not None:
            self.loop.append(signature)
        if not self.training and self.options.loop_length and self.ended is None:
            self.ended = "loop" if len(self.loop) >= self.options.loop_length else None
        before = self.progress
        self.progress = max(before, min(1.0, self.computed_progress()))
        if self.ended is None:
            self.ended = self.how_it_ended()
        success = self.success() if self.ended is not None else False
        reward = pay + self.pay_of_step(name, success, self.progress - before, self.milestones() - milestones_before)
        if self.options.reward == "full_success":
            reward = float(self.ended is not None and (success if self.is_early() else self.full_success()))
        self.last_type = name
        self.total += reward
        return reward, self.ended is not None

    def keep_books(self, name: str, tool: int | None) -> None:
        chosen = range(self.num_tools) if tool is None else (tool,)
        if name == "VALIDATE_OUTPUT" and tool is not None:
            self.validated.add(tool)
            self.row_of_failures = 0
        elif name == "RECOVER_ERROR":
            if tool is None:
                self.row_of_failures = 0
            else:
                self.retries[tool] = 0
        elif name == "CHECK_DEPENDENCIES" and tool is not None:
            for other in self.needs[tool]:
                if self.shown[other] == spaces.STATUS_NOT_ATTEMPTED:
                    self.shown[other] = spaces.STATUS_QUEUED
        elif name == "CREATE_CHECKPOINT":
            for one in chosen:
                self.saved[one] = self.retries[one]
            if tool is None:
                self.saved_row = self.row_of_failures
        elif name == "RESTORE_CHECKPOINT":
            for one in chosen:
                saved = self.saved[one]
                if saved is not None:
                    self.retries[one] = min(saved, self.retries[one])
            if tool is None and self.saved_row is not None:
                self.row_of_failures = min(self.saved_row, self.row_of_failures)

    def how_it_ended(self) -> str | None:
        complete = self.full_success()
        if self.training:
            by_progress = self.printed or self.without_list
            complete = self.coverage() >= 1.0 or (by_progress and self.progress >= 1.0)
        if complete:
            return "completion"
        if self.steps >= self.max_steps:
            return "turns"
        return "deadlock" if self.training and not self.legal()[1] else None

    def is_early(self) -> bool:
        return self.stage < MAX_STAGE and not self.printed

    def success(self) -> bool:
        if not self.training and not self.is_early():
            return self.full_success()
        late = self.ended in ("turns", "deadlock") and self.progress >= 0.5
        if self.printed:
            return self.progress >= 0.95 or self.coverage() >= 1.0 or late
        stage = STAGES[self.stage]
        needed = max(1, math.floor(Fraction(str(stage.required_coverage)) * len(self.required)))
        enough = self.progress >= stage.min_progress
        enough = enough and (self.without_list or len(self.required_places()) >= needed)
        ends = ("completion", "turns", "deadlock")
        return enough and self.failures() <= stage.max_errors and self.ended in ends

    # The two-phase reward.

    def pay_of_execution(self, tool: int, success: bool, first: bool, first_success: bool, pattern: float) -> float:
        pay = 2.0 * max(0.0, float(self.context.similarity[self.row, tool]))
        pay += 0.5 * float(np.float32(pattern)) + 0.5 * float(self.context.task_confidence[self.row, tool])
        required = tool in self.required and not self.without_list
        if self.phase() == 0:
            pay += 0.0 if self.printed else 3.0
            pay += 30.0 if first else 0.0
            pay += 50.0 if required and success and (first_success or self.printed) else 0.0
        elif required and first_success and not self.printed:
            pay += self.order_pay(every=False)
        if not success:
            pay -= 0.0 if self.running_success < 0.1 else 2.0 if self.running_success < 0.3 else 5.0
        count = self.executed(tool) if self.printed else self.successes().count(tool)
        return pay - (1.0 if self.phase() == 0 else 5.0) * max(0, count - 1)

    def order_pay(self, every: bool) -> float:
        places = self.required_places()
        ranks = [sorted(places).index(place) for place in places]
        swaps = sum(first > second for first, second in combinations(places, 2))
        if swaps < 2:
            return (15.0 if swaps == 0 else 5.0) * (len(places) if every else 1)
        off = [abs(position - rank) for position, rank in enumerate(ranks)]
        return -5.0 * (sum(off) if every else off[-1])

    def pay_of_step(self, name: str, success: bool, gain: float, milestones: int) -> float:
        pay = 100.0 * gain + 40.0 * milestones
        weight = (10.0 if self.printed else 0.0) + (10.0 if self.steps < 10 else 0.0)
        pay += (weight + (20.0 if self.progress > 0.8 else 0.0)) * gain
        pay -= 10.0 if name == self.last_type == "NO_OP" else 0.0
        if self.phase() == 0:
            pay += 3.0 if self.printed and name != "NO_OP" else 0.0
        else:
            pay += self.order_pay(every=True) if self.printed and self.required_places() else 0.0
            if self.printed or (self.ended is not None and success):
                target = 1.5 * (5 if self.without_list else len(self.closure))
                pay += 20.0 * max(0.0, target - self.steps) / target + (10.0 if self.failures() == 0 else 0.0)
        if self.ended is None:
            return pay
        if not success:
            return pay + 50.0 * self.progress
        if self.phase() == 0:
            return pay + 150.0 + 50.0 * self.coverage()
        return pay + 100.0 + 50.0 * longest_ascending(self.required_places()) / len(self.required)

    # What is shown.

    def observation(self) -> dict[str, NDArray[Any]]:
        tools = np.zeros((self.num_tools, spaces.NUM_TOOL_COLUMNS), np.int64)
        done = self.first_successes()
        due = [tool for tool in self.required if tool not in done]
        passing = {tool for tool in range(self.num_tools) if self.passes(tool)}
        offered, offered_confidence = self.fallback(passing)
        for tool in range(self.num_tools):
            never, failed = self.unmet(tool)
            dependents = [place + 1 for place, other in enumerate(due) if tool in self.needs[other]]
            descendants = [place + 1 for place, other in enumerate(due) if tool in self.ancestors[other]]
            tools[tool] = [
                self.shown[tool],
                self.required.index(tool) + 1 if tool in self.required else 0,
                due.index(tool) + 1 if tool in due else 0,
                self.executed(tool),
                self.retries[tool],
                never,
                failed,
                in_bytes(self.probability(tool, with_history=False)),
                len(dependents),
                min(dependents, default=0),
                min(descendants, default=0),
                self.level(tool),
                len(self.needs[tool]),
                self.types[tool],
                in_bytes(float(self.context.similarity[self.row, tool])),
                in_bytes(offered_confidence if tool in offered else self.composite(tool)),
                self.context.candidates[self.row, tool],
                self.selected[tool],
                self.successes().index(tool) + 1 if tool in done else 0,
            ]
        required_types = self.expected_types()
        flow = [self.types[tool] for tool in done if self.types[tool] <= 4]
        shows_phase = self.training or self.options.reward == "two_phase"
        task = np.array(
            [
                *self.context.features[self.row],
                in_bytes(self.progress),
                self.steps,
                self.max_steps - self.steps,
                len(self.required),
                len(due),
                self.milestones(),
                len(required_types) + (4 in required_types),
                self.failures(),
                self.row_of_failures,
                255 if self.training else in_bytes(self.options.history ** self.failures()),
                self.order_broken(),
                len(self.loop),
                in_bytes(self.base() if self.training else self.options.base),
                self.phase() if shows_phase else 0,
                self.stage if shows_phase else 0,
                self.saved_row is not None,
                self.running is not None,
                max(flow, default=0),
            ],
            np.int64,
        )
        if self.options.required != "shown":
            tools[:, list(spaces.HIDDEN_TOOL_COLUMNS)] = 0
            shown = SHOWN_WITHOUT_LIST if self.without_list else ()
            task[[column for column in spaces.HIDDEN_TASK_COLUMNS if column not in shown]] = 0
        return {
            "tools": np.minimum(tools, 255).astype(np.uint8),
            "task": np.minimum(task, 255).astype(np.uint8),
            "action_mask": self.mask(),
        }

    def level(self, tool: int) -> int:
        return 1 + max(map(self.level, self.needs[tool])) if self.needs[tool] else 0
