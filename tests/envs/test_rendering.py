"""Pictures of episodes."""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import RenderCollection
from hypothesis import given, settings
from hypothesis import strategies as st

import resilisim  # noqa: F401  (registers the ids)
from resilisim.envs import ConversationEnv
from resilisim.envs.rendering import HEIGHT, STATUS_COLOURS, WIDTH, Scene, ToolState, draw
from resilisim.envs.workflow import WorkflowEnv, WorkflowVectorEnv
from resilisim.errors import InvalidInputError, MissingExtraError
from resilisim.tasks.benchmark import benchmark_tasks

TASK = benchmark_tasks()[0]
SHAPE = (HEIGHT, WIDTH, 3)


def area(picture, status: str) -> int:
    """How many pixels have the colour of a status."""
    return int((picture == np.array(STATUS_COLOURS[status], dtype=np.uint8)).all(axis=2).sum())


@settings(max_examples=25)
@given(
    number=st.sampled_from([1, 2, 30, 77, 300, 1000, 5000]),
    required=st.integers(0, 40),
    name=st.text(max_size=150),
    words=st.text(max_size=3000),
    turn=st.integers(0, 20),
    status=st.sampled_from(list(STATUS_COLOURS)),
)
def test_any_scene_is_drawn(number, required, name, words, turn, status):
    tools = tuple(ToolState(f"{name}{place}", status if place % 3 else "success", place % 4) for place in range(number))
    listed = tuple(tool.name for tool in tools[:required])
    picture = draw(Scene(name, turn, 10, tools, listed, words, words, status, words[:50], turn > 9))
    assert picture.shape == SHAPE
    assert picture.dtype == np.uint8
    assert area(picture, "success") > 0


def test_every_tool_has_its_colour_in_large_libraries():
    tools = [ToolState(f"tool_{place}", "not attempted") for place in range(1000)]
    before = draw(Scene("a", 0, 10, tuple(tools), (), "", ""))
    tools[999] = ToolState("tool_999", "failed", 1)
    after = draw(Scene("a", 0, 10, tuple(tools), (), "", ""))
    assert area(before, "failed") == 0 < area(after, "failed")


def test_pictures_follow_a_workflow():
    env = WorkflowEnv(tasks=[TASK], base=1.0, not_executed=1.0, render_mode="rgb_array")
    env.reset(seed=1)
    pictures = [env.render()]
    for name in TASK.required_tools:
        *_, terminated, _, _ = env.step(env.core.library.index(name))
        pictures.append(env.render())
    assert terminated
    green = [area(picture, "success") for picture in pictures]
    assert green[0] == 0
    assert green == sorted(set(green)), "each success adds to what is green"
    assert area(pictures[-1], "failed") == 0


def test_pictures_follow_a_conversation():
    env = ConversationEnv(base=1e-9, render_mode="rgb_array", protocol="native")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.render()
    env.reset(seed=1, options={"task": TASK})
    first = env.render()
    env.step({"tool_calls": [{"id": "1", "function": {"name": "tool_call", "arguments": {"name": "network_fetcher"}}}]})
    second = env.render()
    env.step("words\x1b[31m \ud800 工具")
    assert area(first, "failed") == 0 < area(second, "failed")
    assert env.render().shape == SHAPE


def test_pictures_of_vectors_are_those_of_each_environment():
    envs = WorkflowVectorEnv(3, tasks=[TASK], render_mode="rgb_array", autoreset_mode="NEXT_STEP")
    alone = WorkflowEnv(tasks=[TASK], render_mode="rgb_array")
    envs.reset(seed=5), alone.reset(seed=7)
    for _ in range(12):
        pictures = envs.render()
        assert np.array_equal(pictures[2], alone.render())
        if alone.core.episodes["needs_reset"][0]:
            alone.reset()
            envs.step(np.zeros(3, dtype=int))
        else:
            actions = envs.action_masks().argmax(axis=1)
            envs.step(actions), alone.step(int(actions[2]))
    assert len(pictures) == 3
    assert WorkflowVectorEnv(1, tasks=[TASK]).render() is None


@pytest.mark.parametrize("name", ["Workflow", "Conversation"])
def test_gymnasium_collects_pictures(name):
    env = gymnasium.make(f"resilisim/{name}-v0", render_mode="rgb_array")
    collected = RenderCollection(env)
    collected.reset(seed=1)
    action = int(env.unwrapped.action_masks().argmax()) if name == "Workflow" else "<finish/>"
    collected.step(action)
    assert [frame.shape for frame in collected.render()] == [SHAPE, SHAPE]
    assert gymnasium.make(f"resilisim/{name}-v0", render_mode="rgb_array_list").unwrapped.render_mode == "rgb_array"


def test_without_pillow_only_drawing_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    env = WorkflowEnv(tasks=[TASK], render_mode="rgb_array")
    env.reset(seed=1)
    with pytest.raises(MissingExtraError, match=r"a picture needs 'PIL.Image' .*: pip install '\.\[video\]'"):
        env.render()


@pytest.mark.parametrize("make", [WorkflowEnv, WorkflowVectorEnv, ConversationEnv])
def test_other_modes_are_refused(make):
    with pytest.raises(InvalidInputError, match="unknown render mode 'rgb_arry': did you mean 'rgb_array'"):
        make(render_mode="rgb_arry")
