"""Patterns that a trainer sets are shown at once, also by episodes that run."""

from __future__ import annotations

import pytest

from resilisim.envs.workflow import columns
from resilisim.envs.workflow.core import decode_action
from resilisim.envs.workflow.env import WorkflowEnv
from resilisim.errors import InvalidInputError


def confidence_shown_and_decoded(env, tool):
    shown = int(env.core.observation["tools"][0, tool, columns.CONFIDENCE])
    return shown, int(255 * decode_action(env.core, tool).confidence + 0.5)


def test_running_episodes_follow_new_patterns():
    env = WorkflowEnv(tasks="validation", filters=("semantic",))
    names = env.core.library.names
    env.reset(seed=0)
    legal = int(env.action_masks()[:30].argmax())
    env.step_with_outcome(legal, columns.SUCCESS)
    plain = confidence_shown_and_decoded(env, 29)
    env.set_patterns({(names[legal], names[29]): 1.0})
    raised = confidence_shown_and_decoded(env, 29)
    assert plain[0] == plain[1]
    assert raised[0] == raised[1]
    assert raised[0] - plain[0] in (63, 64)  # a quarter of 255, between two roundings
    assert env.action_masks()[29]
    env.set_patterns({})
    assert confidence_shown_and_decoded(env, 29) == plain


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"filters": 5}, "filters is 5: expected a list"),
        ({"tasks": 5}, "tasks is 5: expected one of train"),
        ({"max_turns": 2.5}, "max_turns is 2.5: expected a whole number"),
    ],
)
def test_values_of_a_wrong_type_are_refused_in_one_line(options, message):
    with pytest.raises(InvalidInputError, match=message):
        WorkflowEnv(**options)
