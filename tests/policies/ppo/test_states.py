"""States of Workflow-v0: where actions lead, what a policy makes of it some calls ahead, and lessons made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from resilisim.envs.random_libraries import random_settings
from resilisim.envs.workflow import WorkflowOptions, spaces
from resilisim.errors import InvalidInputError
from resilisim.policies.ppo import split_look_ahead
from resilisim.policies.ppo.exact_rates import exact_rates
from resilisim.policies.ppo.features import NUM_RELATIONS
from resilisim.policies.ppo.network import Layer, WorkflowActor, WorkflowTransformer, nearness, relations_of
from resilisim.policies.ppo.states.lessons import make_lesson, with_nearest
from resilisim.policies.ppo.states.look_ahead import LookAhead
from resilisim.policies.ppo.states.transition import Transition
from resilisim.simulator import build_problem, start_state
from resilisim.simulator.exact import solve
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import default_library
from tests.policies.ppo.networks import observation, outputs

TASK = next(task for task in benchmark_tasks() if len(task.required_tools) == 3)
OPTIONS = WorkflowOptions(tasks=[TASK])
SMALL: dict[str, Any] = {
    "width": 8,
    "layers": 1,
    "heads": 2,
    "attention_tokens": 6,
    "by_state": True,
    "relations": True,
}


class Guessing:
    """Prefers actions by number, last ones first, and takes every state for worth what is done of the list."""

    reads_state_alone = True

    def judgements(self, shown: dict[str, NDArray[Any]], mask: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return preferences and values."""
        preferences = mask * np.arange(1, mask.shape[1] + 1)
        required = shown["task"][:, spaces.TASK_NUM_REQUIRED].astype(float)
        return preferences / preferences.sum(axis=1, keepdims=True), 1 - shown["task"][
            :, spaces.TASK_NUM_DUE
        ] / required

    def act(self, shown: dict[str, NDArray[Any]], mask: NDArray[Any]) -> NDArray[np.int64]:
        """Return the preferred action."""
        best: NDArray[np.int64] = self.judgements(shown, mask)[0].argmax(axis=1)
        return best


def test_what_follows_has_the_chances_of_the_law_and_states_met_twice_are_one() -> None:
    transition = Transition([TASK], OPTIONS, by_state=True)
    states = transition.starts(np.zeros(1, dtype=np.int64))
    problem = build_problem(default_library(), TASK.required_tools)
    tool = problem.required[0]
    reached = transition.after(states[np.zeros(2, dtype=np.int64)], np.array([tool, tool]))
    for parent in range(2):
        assert reached.chances[reached.parents == parent].sum() == pytest.approx(1.0)
    keys = {tuple(key) for key in transition.keys(reached.states).tolist()}
    assert len(keys) == 2, "it succeeds or fails: which error it shows decides nothing"
    by_history = Transition([TASK], OPTIONS)
    assert len({tuple(key) for key in by_history.keys(reached.states).tolist()}) > 2


def test_who_looks_ahead_to_the_end_plays_the_optimum_of_what_it_considers() -> None:
    task = next(task for task in benchmark_tasks() if len(task.required_tools) == 2)
    options = WorkflowOptions(tasks=[task], max_turns=3)
    problem = build_problem(default_library(), task.required_tools, options.failure_model(), options.end_rules())
    everything = LookAhead(Guessing(), 3, num_choices=300, margin=0.0)
    optimum = solve(problem).value(start_state(problem))
    assert exact_rates(everything, [task], options=options).low[0] == pytest.approx(optimum, abs=1e-9)
    assert exact_rates(Guessing(), [task], options=options).low[0] < 0.5 * optimum
    short = exact_rates(LookAhead(Guessing(), 1, num_choices=300, margin=0.0), [task], options=options).low[0]
    assert 0.0 < short <= optimum + 1e-12
    stubborn = exact_rates(LookAhead(Guessing(), 3, num_choices=300, margin=2.0), [task], options=options).low[0]
    assert stubborn == exact_rates(Guessing(), [task], options=options).low[0], "its own choice stays"


def test_how_far_is_looked_is_part_of_a_name() -> None:
    assert split_look_ahead("default+2") == ("default", 2)
    assert split_look_ahead("a+b") == ("a+b", 0)
    with pytest.raises(InvalidInputError, match="a look-ahead of 9 calls: expected 1 to 4"):
        LookAhead(Guessing(), 9)


def test_a_network_by_state_does_not_see_how_it_came_to_a_state_and_sees_what_shares_what() -> None:
    network = WorkflowTransformer(12, **SMALL)
    with torch.no_grad():
        for layer in network.layers:
            assert isinstance(layer, Layer)
            assert layer.relation_bias is not None
            layer.relation_bias.normal_()
        network.tool_head.weight.normal_()
    seen = observation(5, 12)
    seen["tools"][..., spaces.TOOL_STATUS] = np.where(
        seen["tools"][..., spaces.TOOL_STATUS] > 0, spaces.STATUS_FAILED, spaces.STATUS_NOT_ATTEMPTED
    )
    before = outputs(network, seen)
    for column in (spaces.TOOL_LAST_STEP, spaces.TOOL_EXECUTIONS, spaces.TOOL_SIMILARITY, spaces.TOOL_SUCCESS_ORDER):
        seen["tools"][..., column] = 7
    seen["tools"][seen["tools"][..., spaces.TOOL_STATUS] == spaces.STATUS_FAILED, spaces.TOOL_STATUS] = (
        spaces.STATUS_TIMEOUT
    )
    seen["task"][:, spaces.TASK_STEPS_USED] = 3
    torch.testing.assert_close(outputs(network, seen), before)
    seen["tools"][:, 0, spaces.TOOL_DUE] = 9
    assert not torch.equal(outputs(network, seen), before)
    tools = torch.zeros((1, 3, spaces.NUM_TOOL_COLUMNS), dtype=torch.uint8)
    tools[0, :, spaces.TOOL_DUE] = torch.tensor([1, 1, 0])
    tools[0, :, spaces.TOOL_FIRST_DEPENDENT_DUE] = torch.tensor([0, 0, 1])
    related = relations_of(tools)
    assert related.shape == (1, 3, 3, NUM_RELATIONS)
    assert related[0, :, :, 0].tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]], "stand-ins"
    assert related[0, :, :, 1].tolist() == [[0, 0, 0], [0, 0, 0], [1, 1, 0]], "who looks at what it depends on"
    assert nearness(tools)[0].argsort(descending=True).tolist() == [0, 1, 2]


@pytest.mark.parametrize("part", [None, "outage"])
def test_lessons_hold_each_state_once_with_the_best_that_can_be_done_there(part: str | None) -> None:
    drawn = random_settings(
        "lessons", 0, 2, num_tools=12, parts=[] if part is None else [part], solved=True, selected=False
    )
    network = WorkflowTransformer(12, **SMALL, law_parts=True, detailed=True)
    options = drawn.options.with_options({"detailed": True})
    lessons = [make_lesson(options, np.random.default_rng(3), WorkflowActor(network)) for _ in range(2)]
    for name, array in lessons[0].items():
        np.testing.assert_array_equal(array, lessons[1][name], err_msg="a lesson is a function of its draws")
    lesson = lessons[0]
    assert ((lesson["targets"] > 0) <= (lesson["action_mask"] > 0)).all()
    can_succeed = lesson["values"] > 0
    np.testing.assert_allclose(lesson["targets"].sum(axis=1), can_succeed, rtol=1e-5)
    left = lesson["task"][:, spaces.TASK_STEPS_LEFT]
    np.testing.assert_allclose(np.sort(lesson["values"][left == left.max()]), np.sort(drawn.optima), atol=1e-6)
    assert len(np.unique(left)) >= 3
    shown = [name for name in ("tools", "task", "tool_parts", "values") if name in lesson]
    rows = np.concatenate([lesson[name].reshape(len(left), -1) for name in shown], axis=1)
    assert len(np.unique(rows, axis=0)) == len(left) > 30, "no state is taught twice"
    few = with_nearest(lesson, np.random.default_rng(0), most=10)
    np.testing.assert_allclose(few["targets"].sum(axis=1), can_succeed, rtol=1e-5)
    required = (lesson["tools"][:, :, spaces.TOOL_DUE] == 1).any(axis=1)
    assert ((few["tools"][:, :, spaces.TOOL_DUE] == 1).any(axis=1) == required).all(), "what is due is never left out"
