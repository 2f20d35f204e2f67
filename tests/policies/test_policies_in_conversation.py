"""Scripted policies in the real Conversation-v0: their success rates are the computed ones.

Rates are means over seeded episodes and are compared within 4 standard errors of the computed value (chance of a wrong
alarm 6e-5 each); the seeds are fixed, so a test that passes keeps passing.
"""

from __future__ import annotations

import functools
import math

import pytest

from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.session import Session
from resilisim.evaluation.episode.play import play_episode
from resilisim.policies import make_policy
from resilisim.policies.base import is_privileged
from resilisim.simulator.exact import solve
from resilisim.simulator.exact.plan_following import plan_following
from resilisim.simulator.problem import build_problem, start_state
from resilisim.tasks import Task
from resilisim.tool_library import default_library
from resilisim.workflows import ExactPlanner, Step
from resilisim.workflows.plan_text import render_plan
from resilisim.workflows.prompts import Prompt
from tests.simulator.brute_force import small_library

EPISODES = 1000
LIBRARY = default_library()
TASKS = {
    "alone": ("file_operations_reader", "data_processing_parser", "data_processing_filter"),
    "outside": ("file_operations_reader", "data_processing_transformer", "file_operations_writer"),
    "long": (
        "network_fetcher",
        "data_processing_parser",
        "network_validator",
        "data_processing_transformer",
        "network_poster",
    ),
}


@functools.cache
def environment(**options):
    return ConversationEnv(library=LIBRARY, search="lexical", **options)


def task_of(name):
    return Task.from_mapping({"required_tools": list(TASKS[name])}, LIBRARY)


def play(policy, env, task, prompt, seed):
    """Play one episode and return its outcome and the messages."""
    session = Session(env, task, prompt, seed, privileged=is_privileged(policy))
    policy.reset(session.reply.observation, session.reply.info)
    messages = []
    while not session.ended:
        messages.append(policy.act(session.reply.observation, session.reply.info))
        session.send(messages[-1])
    return int((session.score or {}).get("level") == "full_success"), messages


def prompt_of(task, kind):
    """Return a prompt type, or the plan that is nothing but the required list."""
    if kind == "required list":
        return Prompt(render_plan([Step(tool) for tool in task.required_tools]), "optimal")
    return kind


@functools.cache
def success_rate(policy, name, prompt, episodes=EPISODES, parameters="ignore", **options):
    """Return the share of full successes; how parameters are checked does not change the law, so most runs skip it."""
    task, env = task_of(name), environment(parameters=parameters)
    made = make_policy(policy, **options)
    return sum(play(made, env, task, prompt_of(task, prompt), seed)[0] for seed in range(episodes)) / episodes


def within_four_standard_errors(rate, expected, episodes=EPISODES):
    return abs(rate - expected) <= 4.0 * math.sqrt(expected * (1.0 - expected) / episodes)


@pytest.mark.parametrize("name", TASKS)
def test_the_plan_follower_reaches_what_its_plan_is_worth(name):
    tools = ExactPlanner(LIBRARY).plan(task_of(name)).tools
    worth = plan_following(build_problem(LIBRARY, tools))
    assert within_four_standard_errors(success_rate("plan-follower", name, "optimal"), worth)


@pytest.mark.parametrize("name", TASKS)
def test_the_exact_optimum_reaches_the_optimum(name):
    problem = build_problem(LIBRARY, TASKS[name])
    optimum = solve(problem).value(start_state(problem))
    assert within_four_standard_errors(success_rate("exact-optimum", name, "baseline"), optimum)


def test_the_optimal_plan_is_worth_more_than_the_required_list_where_dependencies_are_outside():
    listed = success_rate("plan-follower", "outside", "required list")
    assert within_four_standard_errors(listed, plan_following(build_problem(LIBRARY, TASKS["outside"])))
    assert success_rate("plan-follower", "outside", "optimal") > listed + 0.1
    # Mending the same list after failures helps; asking first costs a turn each time and eats up the gain.
    assert success_rate("repairing-follower", "outside", "required list", ask="never") > listed + 0.02


@pytest.mark.parametrize("name", ["plan-follower", "repairing-follower", "exact-optimum", "random"])
def test_both_protocols_give_the_same_episodes(name):
    policy, task = make_policy(name), task_of("outside")
    for seed in range(10):
        text = play(policy, environment(), task, "optimal", seed)
        native = play(policy, environment(protocol="native"), task, "optimal", seed)
        if name != "random":  # it chooses by what it reads, and that differs
            assert text == native


def test_followers_on_a_baseline_prompt_solve_tasks_by_searching():
    work_order = "File operations reader. Data processing parser."
    mapping = {"required_tools": ["file_operations_reader", "data_processing_parser"], "description": work_order}
    task = Task.from_mapping(mapping, LIBRARY)
    for name in ("plan-follower", "repairing-follower"):
        _, messages = play(make_policy(name), environment(), task, "baseline", seed=0)
        assert messages[:2] == [
            "<tool_search>File operations reader</tool_search>",
            "<tool_search>Data processing parser</tool_search>",
        ]
        calls = [message for message in messages if "tool_call" in message]
        assert list(dict.fromkeys(calls)) == [f"<tool_call>{tool}</tool_call>" for tool in task.required_tools]
        # Two turns go to searching: eight are left.
        worth = plan_following(build_problem(LIBRARY, task.required_tools), 8)
        policy, env = make_policy(name), environment(parameters="ignore")
        rate = sum(play(policy, env, task, "baseline", seed)[0] for seed in range(400)) / 400
        assert within_four_standard_errors(rate, worth, 400)


def test_strict_mode_changes_nothing_for_plans_and_the_optimum():
    ignored = success_rate("plan-follower", "alone", "optimal", episodes=50)
    assert success_rate("plan-follower", "alone", "optimal", episodes=50, parameters="strict") == ignored
    lenient = success_rate("exact-optimum", "outside", "baseline", episodes=20)
    assert success_rate("exact-optimum", "outside", "baseline", episodes=20, parameters="strict") == lenient > 0
    assert success_rate("random", "alone", "optimal", episodes=200) < 0.05, "random calls are far below"


def test_the_exact_optimum_searches_where_only_that_leaves_a_row_of_equal_calls():
    library = small_library({"good": [], "bad": []}, {"good": 0.9, "bad": 0.1})
    task = Task.from_mapping({"required_tools": ["good", "bad"], "description": "Do good, then bad."}, library)
    env = ConversationEnv(
        library=library, history=1.0, max_turns=14, max_consecutive_failures=3, loop_length=2, search=lambda *_: []
    )
    records = [play_episode(env, make_policy("exact-optimum"), task, "baseline", seed) for seed in range(40)]
    assert any(step["kind"] == "search" for record in records for step in record["steps"])
    assert all(abs(record["regret"]) < 1e-9 for record in records)
