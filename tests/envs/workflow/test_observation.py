"""Every column of an observation, computed again in plain Python from what happened in the episode."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from resilisim.envs.workflow import columns
from resilisim.envs.workflow.actions import (
    ACTION_TYPES,
    META_CREATE_CHECKPOINT,
    action_type_of,
    meta_action_index,
    tool_of,
)
from resilisim.envs.workflow.columns import HIDDEN_TASK_COLUMNS, HIDDEN_TOOL_COLUMNS, STATUSES
from resilisim.envs.workflow.env import WorkflowEnv
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.simulator.law import NOT_EXECUTED, SUCCEEDED
from resilisim.simulator.state import CONSECUTIVE_FAILURES, LOOP_COUNT, NUM_FAILURES, TURNS_USED
from resilisim.tasks.benchmark import benchmark_tasks
from tests.envs.workflow.playing import random_actions

TASKS = benchmark_tasks()[:60]
NUM_TOOLS = 30
RESTORES = np.array([ACTION_TYPES[action_type_of(action, NUM_TOOLS)] == "RESTORE_CHECKPOINT" for action in range(283)])
CHECKPOINT = meta_action_index(META_CREATE_CHECKPOINT, NUM_TOOLS)
FAILURES = ("FAILED", "TIMEOUT", "DEPENDENCY_FAILED")


def stored(share):
    """A share as a column stores it."""
    return math.floor(255 * min(1.0, max(0.0, share)) + 0.5)


@dataclass
class History:
    """What happened to each tool in an episode, from the actions and the infos alone."""

    statuses: list[str] = field(default_factory=lambda: ["NOT_ATTEMPTED"] * NUM_TOOLS)
    retries: list[int] = field(default_factory=lambda: [0] * NUM_TOOLS)
    saved: list[int | None] = field(default_factory=lambda: [None] * NUM_TOOLS)
    last_step: list[int] = field(default_factory=lambda: [0] * NUM_TOOLS)
    success_order: list[int] = field(default_factory=lambda: [0] * NUM_TOOLS)
    sequence: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    running: int | None = None
    checkpoint: bool = False
    progress: float = 0.0

    def enter(self, core, problem, action, legal, changes):
        """Enter an action and the executions (tool, status shown by its info) that it led to."""
        kind, tool = ACTION_TYPES[action_type_of(action, NUM_TOOLS)], tool_of(action, NUM_TOOLS)
        if legal and tool >= 0:
            self.last_step[tool] = core.episode_state(0).counters[TURNS_USED]
        for executed, status in changes:
            self._execution(problem, executed, status)
        if legal:
            self._other(core, kind, tool)

    def _execution(self, problem, tool, status):
        if status == "SUCCESS":
            self.sequence.append(tool)
            if self.success_order[tool] == 0:
                self.success_order[tool] = len(self.sequence)
                if problem.place[tool] >= 0:
                    self.places.append(problem.place[tool])
            self.statuses[tool] = "SUCCESS"
        else:
            self.retries[tool] += 1
            if self.success_order[tool] == 0:
                self.statuses[tool] = status

    def _other(self, core, kind, tool):
        chosen = range(NUM_TOOLS) if tool < 0 else [tool]
        if kind == "RECOVER_ERROR" and tool >= 0:
            self.retries[tool] = 0
        elif kind == "CHECK_DEPENDENCIES":
            for name in core.library.dependencies(core.library.names[tool]):
                dependency = core.library.index(name)
                if self.statuses[dependency] == "NOT_ATTEMPTED":
                    self.statuses[dependency] = "QUEUED"
        elif kind == "CREATE_CHECKPOINT":
            for each in chosen:
                self.saved[each] = self.retries[each]
            self.checkpoint = self.checkpoint or tool < 0
        elif kind == "RESTORE_CHECKPOINT":
            for each in chosen:
                if self.saved[each] is not None:
                    self.retries[each] = min(self.retries[each], self.saved[each])

    def grow(self, problem):
        """Let progress grow to what the required tools that succeeded stand for."""
        bonus = 0.1 if self.places and self.places == list(range(len(self.places))) else 0.0
        self.progress = max(self.progress, min(1.0, len(self.places) / len(problem.required) + bonus))


def confidence(core, task, tool, sequence, patterns):
    """The composite confidence: weights .25, .30, .25, .20 on rule, embedding, pattern, task."""
    names, context = core.library.names, core.context
    recent = [names[other] for other in sequence[-2:]]
    best = max([patterns.get((*recent[-count:], names[tool]), 0.0) for count in range(1, len(recent) + 1)], default=0.0)
    embedding = max(0.0, float(context.similarity[task, tool]))
    rule, by_task = float(context.rule_confidence[task, tool]), float(context.task_confidence[task, tool])
    return min(1.0, 0.25 * rule + 0.30 * embedding + 0.25 * best + 0.20 * by_task)


def expected_tools(env, history, patterns, rate):
    """Return the matrix (num_tools, NUM_TOOL_COLUMNS) that an observation should show, unless something is hidden."""
    core = env.core
    library, task = core.library, int(core.episodes["task"][0])
    problem, state = core.problem(0), core.episode_state(0)
    due = [tool for tool in problem.required if state.status[tool] != SUCCEEDED]
    matrix = np.zeros((NUM_TOOLS, columns.NUM_TOOL_COLUMNS), dtype=np.uint8)
    for tool, name in enumerate(library.names):
        needed = [library.index(dependency) for dependency in library.dependencies(name)]
        not_executed = sum(state.status[dependency] == NOT_EXECUTED for dependency in needed)
        failed = sum(state.status[dependency] == 1 for dependency in needed)
        chance = 0.8 * 0.5**not_executed * 0.7**failed
        if core.options.law == "training":
            base = 0.95 if rate < 0.1 else 0.90 if rate < 0.3 else 0.85
            by_task = float(core.context.task_confidence[task, tool])
            chance = base * 0.8 ** (not_executed + failed) * (1 + 0.3 * by_task)
        direct = [rank for rank, other in enumerate(due, 1) if name in library.dependencies(library.names[other])]
        closures = [library.closure((library.names[other],)) for other in due]
        descendants = [
            rank
            for rank, (other, closure) in enumerate(zip(due, closures, strict=True), 1)
            if other != tool and name in closure
        ]
        matrix[tool] = [
            STATUSES.index("RUNNING" if history.running == tool else history.statuses[tool]),
            problem.place[tool] + 1,
            due.index(tool) + 1 if tool in due else 0,
            state.executions[tool],
            history.retries[tool],
            not_executed,
            failed,
            stored(chance),
            len(direct),
            min(direct, default=0),
            min(descendants, default=0),
            library[name].dependency_metadata.level,
            len(needed),
            core.context.operation_type[tool],
            stored(float(core.context.similarity[task, tool])),
            stored(confidence(core, task, tool, history.sequence, patterns)),
            core.context.candidates[task, tool],
            history.last_step[tool],
            history.success_order[tool],
        ]
    return matrix


def expected_task(env, history, rate, stage):
    """Return the vector (NUM_TASK_COLUMNS,) that an observation should show, unless something is hidden."""
    core, problem, state = env.core, env.core.problem(0), env.core.episode_state(0)
    training, types = core.options.law == "training", core.context.operation_type
    phased = training or core.options.reward == "two_phase"
    reached = [problem.required[place] for place in history.places]
    counters = state.counters

    def milestones(tools):
        kinds = {int(types[tool]) for tool in tools} - {0}
        return len(kinds) + (4 in kinds)

    shown = np.zeros(columns.NUM_TASK_COLUMNS, dtype=np.uint8)
    shown[:20] = core.context.features[core.episodes["task"][0]]
    max_turns = core.rules.max_turns
    base = 0.8 if not training else 0.95 if rate < 0.1 else 0.90 if rate < 0.3 else 0.85
    shown[20:] = [
        stored(history.progress),
        counters[TURNS_USED],
        max_turns - counters[TURNS_USED],
        len(problem.required),
        len(problem.required) - len(reached),
        milestones(reached),
        milestones(problem.required),
        counters[NUM_FAILURES],
        counters[CONSECUTIVE_FAILURES],
        255 if training else stored(0.9 ** counters[NUM_FAILURES]),
        history.places != list(range(len(history.places))),
        counters[LOOP_COUNT],
        stored(base),
        rate >= 0.3 if phased else 0,
        stage if phased else 0,
        history.checkpoint,
        history.running is not None,
        max((int(types[tool]) for tool in set(history.sequence) if types[tool] <= 4), default=0),
    ]
    return shown


def assert_shown(env, observation, history, settings):
    tools = expected_tools(env, history, settings["patterns"], settings["rate"])
    task = expected_task(env, history, settings["rate"], settings["stage"])
    if env.core.options.required == "hidden":
        tools[:, list(HIDDEN_TOOL_COLUMNS)] = 0
        task[list(HIDDEN_TASK_COLUMNS)] = 0
    for column, name in enumerate(columns.TASK_COLUMNS):
        assert observation["task"][column] == task[column], name
    wrong = np.argwhere(observation["tools"] != tools)
    assert not len(wrong), [(tool, columns.TOOL_COLUMNS[column]) for tool, column in wrong]
    np.testing.assert_array_equal(observation["action_mask"], env.action_masks())


OPTIONS = [
    {},
    {"reward": "two_phase", "required": "hidden"},
    {"law": "training", "reward": "two_phase"},
    {"law": "training", "required": "hidden", "filters": ("semantic", "dependency", "constraint")},
]


@pytest.mark.parametrize("rate", [0.05, 0.35])
@pytest.mark.parametrize("options", OPTIONS)
def test_every_column_is_what_its_line_says(options, rate):
    env = WorkflowEnv(tasks=TASKS, **options)
    names = env.core.library.names
    patterns = {(one, names[place * 7 % 30]): place / 30 for place, one in enumerate(names)}
    patterns |= {(names[place * 3 % 30], one, names[place * 11 % 30]): place / 40 for place, one in enumerate(names)}
    settings = {"patterns": patterns, "rate": rate, "stage": 3}
    env.set_patterns(patterns)
    env.set_running_success(rate)
    env.set_stage(3)
    generator = np.random.default_rng(1)
    kinds, statuses = set(), set()
    for episode in range(40):
        observation, _ = env.reset(seed=episode)
        problem, history, ended = env.core.problem(0), History(), False
        assert_shown(env, observation, history, settings)
        while not ended:
            mask = env.action_masks()
            action = int(random_actions(mask[None], generator, illegal=0.1)[0])
            if generator.random() < 0.4:  # go for the required tools, so that there is progress to show
                due = [tool for tool in problem.required if history.success_order[tool] == 0]
                action = next((a for tool in due for a in (tool, 62 + tool) if mask[a]), action)
            rare = np.flatnonzero(mask & RESTORES)
            if len(rare) and generator.random() < 0.5:
                action = int(generator.choice(rare))
            elif mask[CHECKPOINT] and generator.random() < 0.1:
                action = CHECKPOINT
            kind = ACTION_TYPES[action_type_of(action, NUM_TOOLS)]
            before = env.core.episode_state(0).executions
            started, legal = history.running, bool(mask[action])
            history.running = None
            observation, _, ended, _, info = env.step(action)
            tool = tool_of(action, NUM_TOOLS)
            after = env.core.episode_state(0).executions
            changes = []
            for executed in [started, tool if legal and kind in ("INVOKE_TOOL", "RETRY_TOOL") else None]:
                if executed is not None and after[executed] > before[executed]:
                    success = bool(env.core.episodes["successes"][0, executed] > history.sequence.count(executed))
                    shown = STATUSES[observation["tools"][executed, columns.STATUS]]
                    assert success or shown == "SUCCESS" or shown in FAILURES
                    changes.append((executed, "SUCCESS" if success else "FAILED" if shown == "SUCCESS" else shown))
            if changes:
                assert info["execution"]["tool"] == names[changes[-1][0]]
            if legal and kind == "PARALLEL_EXECUTE":
                history.running = tool
            history.enter(env.core, problem, action, legal, changes)
            history.grow(problem)
            assert_shown(env, observation, history, settings)
            kinds.add(kind)
            statuses |= set(np.unique(observation["tools"][:, columns.STATUS]).tolist())
    assert {0, 3} < statuses
    if env.core.options.law == "training" and not env.core.options.filters:
        assert kinds == set(ACTION_TYPES)
        assert {0, 1, 2, 3, 6} <= statuses


def test_hidden_tasks_that_differ_in_the_required_list_only_look_the_same():
    """Under equal outcomes; the text, type, inputs and outputs are the same, so nothing else may give the list away."""
    task = TASKS[0]
    other = replace(task, required_tools=(*reversed(task.required_tools), "network_router"))
    for law in ("benchmark", "training"):
        options = {"law": law, "required": "hidden", "filters": ("dependency",), "max_turns": 20}
        pair = [WorkflowEnv(tasks=[one], **options) for one in (task, other)]
        assert pair[0].core.tasks[0].required_tools != pair[1].core.tasks[0].required_tools
        shown = [env.reset(options={"task": 0, "episode_seed": 5})[0] for env in pair]
        generator = np.random.default_rng(0)
        ended = [False, False]
        for _ in range(20):
            for name, array in shown[0].items():
                np.testing.assert_array_equal(array, shown[1][name], err_msg=name)
            if any(ended):
                break
            action = random_actions(shown[0]["action_mask"][None], generator)[0]
            stepped = [env.step(action) for env in pair]
            shown, ended = [step[0] for step in stepped], [step[2] for step in stepped]
        assert shown[0]["task"][columns.STEPS_USED] > 3


def test_hidden_columns_are_zero():
    envs = WorkflowVectorEnv(64, tasks=TASKS, required="hidden", reward="two_phase", autoreset_mode="SAME_STEP")
    observations, _ = envs.reset(seed=0)
    generator = np.random.default_rng(0)
    for _ in range(60):
        assert not observations["tools"][:, :, list(HIDDEN_TOOL_COLUMNS)].any()
        assert not observations["task"][:, list(HIDDEN_TASK_COLUMNS)].any()
        observations, *_ = envs.step(random_actions(observations["action_mask"], generator))


def test_observations_do_not_change_later_unless_views_are_asked_for():
    for copy in (True, False):
        envs = WorkflowVectorEnv(8, tasks=TASKS, autoreset_mode="SAME_STEP", copy=copy)
        observations, _ = envs.reset(seed=0)
        handed_out = [observations]
        kept = [{name: array.copy() for name, array in observations.items()}]
        for step in range(25):
            observations, *_ = envs.step(np.full(8, step))
            handed_out.append(observations)
            kept.append({name: array.copy() for name, array in observations.items()})
        for given, copied in zip(handed_out[:-1], kept[:-1], strict=True):
            same = all(np.array_equal(given[name], copied[name]) for name in given)
            assert same == copy
            assert all(np.shares_memory(given[name], envs.core.episodes) != copy for name in given)


def test_scalar_observations_do_not_change_later():
    env = WorkflowEnv(tasks=TASKS)
    first, _ = env.reset(seed=0)
    kept = {name: array.copy() for name, array in first.items()}
    env.step(0)
    for name, array in first.items():
        np.testing.assert_array_equal(array, kept[name])


def test_each_column_has_a_name():
    assert len(columns.TOOL_COLUMNS) == columns.NUM_TOOL_COLUMNS
    assert len(columns.TASK_COLUMNS) == columns.NUM_TASK_COLUMNS
    for names in (columns.TOOL_COLUMNS, columns.TASK_COLUMNS[columns.NUM_TASK_FEATURES :]):
        for name in names:
            assert names.index(name) + (0 if names is columns.TOOL_COLUMNS else 20) == getattr(columns, name.upper())
