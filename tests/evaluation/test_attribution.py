"""What a message was worth: the quick judgement against the definition, and the identity on random policies."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilisim.envs.conversation import ConversationEnv
from resilisim.evaluation.episode.attribution import identity_error
from resilisim.evaluation.episode.play import play_episode
from resilisim.policies.scripted import RandomPolicy
from resilisim.simulator import FINISH, STOP, EndRules, Message, build_problem, execution, next_state, start_state
from resilisim.simulator.exact import solve
from resilisim.simulator.state import has_succeeded, is_awaiting_closing
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import default_library

TOOLS = ("file_operations_reader", "data_processing_parser", "data_processing_transformer", "utility_logger")
MESSAGES = (*map(execution, TOOLS), Message("search", query="a"), Message("format_error", text="hm"), FINISH, STOP)


@settings(max_examples=200, deadline=None)
@given(
    said=st.lists(st.tuples(st.sampled_from(MESSAGES), st.booleans()), min_size=1, max_size=8),
    rules=st.sampled_from([EndRules(), EndRules(5, 2, 2), EndRules(4, 0, 0)]),
)
def test_a_judgement_is_the_two_values_that_it_stands_for(said: list[tuple[Message, bool]], rules: EndRules) -> None:
    problem = build_problem(default_library(), (TOOLS[0], TOOLS[2]), rules=rules)
    optimum, state = solve(problem), start_state(problem)
    for message, success in said:
        if state.ended_by is not None:
            break
        after = next_state(problem, state, message, success)
        executes = message.kind == "execute" and not is_awaiting_closing(problem, state)
        assert has_succeeded(state, message, after) == (executes and success)
        assert optimum.judge(state, message, after) == (optimum.action_value(state, message), optimum.value(after))
        state = after


@pytest.mark.parametrize("options", [{}, {"loop_length": 2, "max_turns": 5}, {"base": 0.5, "failed": 1.0}])
def test_the_identity_holds_for_random_policies_under_flawed_prompts(options: dict[str, Any]) -> None:
    env = ConversationEnv(search=lambda query, count: [], **options)
    for number, task in enumerate(task for task in benchmark_tasks()[::700] if len(task.required_tools) > 2):
        for prompt in ("baseline", "flawed:redundant_operation", "flawed:tool_misuse:severe"):
            for seed in range(4):
                record = play_episode(env, RandomPolicy(seed=number), task, prompt, seed)
                assert identity_error(record) < 1e-12
                assert sum(record["losses"].values()) == pytest.approx(record["regret"], abs=1e-12)
                for step in record["steps"]:
                    assert (step["label"] is None) == (step["regret"] == 0.0)
