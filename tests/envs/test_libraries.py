"""What RL libraries do first with an environment: arguments that they try, types that they want."""

from __future__ import annotations

import importlib

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import FlattenObservation
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3.common.env_checker import check_env as check_sb3_env
from stable_baselines3.common.env_util import make_vec_env

import resilisim
from resilisim.envs import ConversationEnv, EnvironmentSettings
from resilisim.envs.text_space import UnicodeText
from resilisim.envs.workflow import WorkflowEnv, WorkflowOptions, WorkflowVectorEnv
from resilisim.errors import InvalidInputError, UnknownArgumentError
from resilisim.options import options_of
from resilisim.tasks.benchmark import benchmark_tasks

TASKS = benchmark_tasks()[:3]
DOORS = {
    "WorkflowEnv": WorkflowEnv,
    "WorkflowVectorEnv": WorkflowVectorEnv,
    "ConversationEnv": ConversationEnv,
    "with_options": EnvironmentSettings().with_options,
    "open_session": resilisim.open_session,
    "gymnasium.make Workflow": lambda **given: gymnasium.make("resilisim/Workflow-v0", **given),
    "gymnasium.make Conversation": lambda **given: gymnasium.make("resilisim/Conversation-v0", **given),
    "module:id": lambda **given: gymnasium.make("resilisim:resilisim/Workflow-v0", **given),
    "gymnasium.make_vec": lambda **given: gymnasium.make_vec("resilisim/Workflow-v0", num_envs=2, **given),
    "evaluate": lambda **given: resilisim.evaluate("plan-follower", TASKS[:1], **given),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", ["frameskip", "from_pixels", "max_trns", "continuous"])
def test_an_unknown_argument_is_a_type_error_in_pythons_words(door, name):
    with pytest.raises(TypeError, match=f"got an unexpected keyword argument '{name}'") as caught:
        DOORS[door](**{name: 1})
    assert isinstance(caught.value, UnknownArgumentError)
    assert isinstance(caught.value, InvalidInputError), "it is our own error as well"
    assert "did you mean" in str(caught.value) or "expected one of" in str(caught.value)


KNOWN = {*options_of(WorkflowOptions), *WorkflowOptions.__dataclass_fields__}


@given(st.from_regex(r"\A[a-z_]{1,20}\Z").filter(lambda name: name not in KNOWN), st.none() | st.integers() | st.text())
def test_any_other_name_is_refused_so(name, value):
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        WorkflowOptions().with_options({name: value})


def test_stable_baselines_makes_a_vector_by_id():
    envs = make_vec_env("resilisim/Workflow-v0", n_envs=2, env_kwargs={"tasks": TASKS})
    envs.seed(3)
    observation = envs.reset()
    assert observation["tools"].shape == (2, 30, 19)
    actions = [int(mask.argmax()) for mask in envs.env_method("action_masks")]
    envs.step(actions)
    assert envs.render().ndim == 3


@pytest.mark.parametrize("law", ["benchmark", "training", "outages"])
def test_float_observations_are_the_same_numbers(law):
    options = {"tasks": TASKS, "law": law}
    floats, bytes_ = WorkflowEnv(observation_dtype="float32", **options), WorkflowEnv(**options)
    check_env(floats, skip_render_check=True)
    first, second = floats.reset(seed=4)[0], bytes_.reset(seed=4)[0]
    ended = False
    while not ended:
        assert first in floats.observation_space
        for name, array in first.items():
            assert array.dtype == (np.int8 if name == "action_mask" else np.float32)
            assert np.array_equal(array, second[name])
        action = int(np.flatnonzero(bytes_.action_masks())[-1])
        (first, *mine), (second, *theirs) = floats.step(action), bytes_.step(action)
        assert mine == theirs
        ended = mine[1]
    flat = FlattenObservation(floats)
    assert flat.observation_space.dtype == np.float32
    assert flat.reset(seed=1)[0].dtype == np.float32


@pytest.mark.parametrize("hand_out", [True, False])
def test_float_observations_of_vectors(hand_out):
    envs = WorkflowVectorEnv(
        3, tasks=TASKS, autoreset_mode="SAME_STEP", copy=hand_out, observation_dtype="float32", law="outages"
    )
    observation, _ = envs.reset(seed=1)
    infos: dict[str, object] = {}
    while "final_obs" not in infos:
        assert observation in envs.observation_space
        observation, *_, infos = envs.step(envs.action_masks().argmax(axis=1))
    assert infos["final_obs"]["tools"].dtype == np.float32


@pytest.mark.filterwarnings("ignore")
def test_stable_baselines_accepts_float_observations():
    check_sb3_env(WorkflowEnv(tasks=TASKS, observation_dtype="float32"), skip_render_check=True)


def test_texts_are_gymnasiums_texts():
    space = UnicodeText(50, seed=1)
    assert isinstance(space, gymnasium.spaces.Text), "what converts that space converts this one"
    flat = gymnasium.spaces.flatten_space(space)
    for _ in range(50):
        text = space.sample()
        points = gymnasium.spaces.flatten(space, text)
        assert points in flat
        assert gymnasium.spaces.unflatten(space, points) == text
    assert gymnasium.spaces.flatdim(space) == 50


def test_gymnasium_imports_the_module_that_an_id_names():
    registry = gymnasium.envs.registration.registry
    kept = {name: registry.pop(name) for name in [*registry] if name.startswith("resilisim/")}
    try:
        importlib.reload(resilisim)
        assert gymnasium.make("resilisim:resilisim/Workflow-v0", tasks=TASKS).spec.id == "resilisim/Workflow-v0"
    finally:
        registry.update(kept)


@pytest.mark.parametrize("form", [int, np.int64, np.int32, np.uint8, np.array, torch.tensor])
def test_actions_come_as_policies_predict_them(form):
    env = WorkflowEnv(tasks=TASKS)
    env.reset(seed=1)
    action = int(env.action_masks().argmax())
    assert form(action) in env.action_space or form is torch.tensor
    assert env.step(form(action))[-1]["execution"]["tool"] == env.core.library.names[action]


@pytest.mark.parametrize("action", [-1, 283, 2**70, 1.0, "1", None, np.array([1]), np.array([1, 2]), np.float32(1), ()])
def test_what_is_no_action_is_refused(action):
    env = WorkflowEnv(tasks=TASKS)
    env.reset(seed=1)
    with pytest.raises(InvalidInputError, match="expected 0 to 282"):
        env.step(action)
