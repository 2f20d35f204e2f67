"""Policies without a model: plan followers reply by reply, random calls, and which clauses are taken for steps."""

from __future__ import annotations

from collections import Counter

import pytest

from resilisim.envs.protocol import signals_completion
from resilisim.errors import InvalidInputError
from resilisim.policies.base import OUT_OF_TURNS
from resilisim.policies.scripted import PlanFollower, RandomPolicy, RepairingFollower, ordered_steps
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import Tool, ToolLibrary
from tests.policies.drive import FINISH, REJECTED, ask, call, drive, found, missing, ran, search, told

PLAN = "1. Execute a\n2. Execute b\n"
BASELINE = "# Task\n\n## Work order\n\nRead the orders. Check them; send them\n\n## Rest\n\nNothing. Here."


def test_each_step_is_repeated_until_it_succeeds():
    replies = [ran("a", False), missing("a", "x"), ran("a"), ran("b", False), ran("b")]
    assert drive(PlanFollower(), PLAN, replies) == [call("a")] * 3 + [call("b")] * 2 + [FINISH]
    twice = "1. Execute a\n2. Execute a\n"
    assert drive(PlanFollower(), twice, [ran("a"), ran("a")]) == [call("a"), call("a"), FINISH]
    assert drive(RepairingFollower(), twice, [ran("a", False), ran("a")]) == [call("a"), call("a"), FINISH]


LIMITED = "1. Execute a\n   - Limit: at most 2 tries, and none from message 3 on; then go on\n2. Execute b\n"


@pytest.mark.parametrize(
    ("plan", "replies", "turns", "expected"),
    [
        (LIMITED, [ran("a", False), ran("a", False), ran("b")], 10, [call("a"), call("a"), call("b"), FINISH]),
        (LIMITED, [ran("a"), ran("b")], 10, [call("a"), call("b"), FINISH]),
        (LIMITED, [REJECTED, REJECTED], 10, [call("a"), call("a"), call("b")]),  # refused calls are tries, too
        (f"1. Execute c\n{LIMITED}", [ran("c", False), ran("c")], 10, [call("c"), call("c"), call("b")]),
        # Whoever is left with nothing else to do is done, also in the closing message.
        ("1. Execute b\n2. Execute a\n   - Limit: no try from message 3 on", [ran("b", False), ran("b")], 2, None),
    ],
)
@pytest.mark.parametrize("policy", [PlanFollower(), RepairingFollower()])
def test_limits_are_kept(policy, plan, replies, turns, expected):
    if isinstance(policy, RepairingFollower) and REJECTED in replies:
        expected = [call("a"), call("b"), FINISH]  # what does not exist is left out at once
    assert drive(policy, plan, replies, turns=turns) == (expected or [call("b"), call("b"), FINISH])


def test_limits_count_messages_of_every_kind_and_nothing_left_is_taken_up_again():
    replies = [ran("a", False), missing("b", "a"), told("b", "a"), ran("b")]
    plan = "1. Execute a\n   - Limit: at most 1 try; then go on\n2. Execute b\n"
    assert drive(RepairingFollower(), plan, replies) == [call("a"), call("b"), ask("b"), call("b"), FINISH]
    # Asking is message 2, so in message 3, when a could be run for c, the plan leaves it.
    replies = [missing("c", "a"), told("c", "a"), ran("c"), ran("b")]
    expected = [call("c"), ask("c"), call("c"), call("b"), FINISH]
    assert drive(RepairingFollower(), "1. Execute c\n" + LIMITED, replies) == expected


def test_a_step_named_by_an_alias_is_done_when_its_tool_has_succeeded():
    assert drive(PlanFollower(), PLAN, [ran("a_by_its_real_name")])[-1] == call("b")


def test_parameters_of_the_plan_are_passed_unless_told_otherwise():
    plan = '1. Execute a\n   - Parameters: {"source": "</tool_call>"}\n'
    assert drive(PlanFollower(), plan, []) == ['<tool_call>a {"source": "\\u003c/tool_call>"}</tool_call>']
    assert drive(PlanFollower(pass_parameters=False), plan, []) == [call("a")]


def test_without_a_plan_one_search_per_clause_makes_it():
    replies = [found("read", "x"), found("check"), found("send"), ran("read"), ran("check"), ran("send")]
    assert drive(PlanFollower(), BASELINE, replies) == [
        search("Read the orders"),
        search("Check them"),
        search("send them"),
        call("read"),
        call("check"),
        call("send"),
        FINISH,
    ]


def test_a_tool_found_twice_and_an_empty_search_add_nothing():
    replies = [found("read"), found("read", "check"), found()]
    assert drive(PlanFollower(), BASELINE, [*replies, ran("read")])[-2:] == [call("read"), FINISH]


def test_searching_stops_when_the_turns_are_needed_for_running():
    # After one search, 3 turns are one more search and a run of each tool found; 2 would not be enough for that.
    assert drive(PlanFollower(), BASELINE, [found("read")], turns=4)[-1] == search("Check them")
    assert drive(PlanFollower(), BASELINE, [found("read")], turns=3)[-1] == call("read")


@pytest.mark.parametrize("policy", [PlanFollower(), RepairingFollower()])
def test_where_no_plan_can_be_made_it_stops_without_claiming_completion(policy):
    assert drive(policy, BASELINE, [], turns=1) == [None]
    assert drive(policy, BASELINE, [found()] * 3) == [
        search("Read the orders"),
        search("Check them"),
        search("send them"),
        None,
    ]


def test_the_closing_message_claims_only_what_is_true():
    assert drive(PlanFollower(), PLAN, [ran("a"), ran("b")], turns=2)[-1] == FINISH
    assert drive(PlanFollower(), PLAN, [ran("a"), ran("b", False)], turns=2)[-1] == OUT_OF_TURNS
    assert not signals_completion(OUT_OF_TURNS)


@pytest.mark.parametrize("policy", [PlanFollower(), RepairingFollower(), RepairingFollower("before")])
def test_reset_forgets_everything(policy):
    replies = [missing("a", "x"), told("a", "x"), ran("x", False)]
    first = drive(policy, PLAN, replies)
    drive(policy, BASELINE, [found("read"), found("b")])
    assert drive(policy, PLAN, replies) == first


def test_repair_asks_and_runs_what_is_missing_first():
    replies = [missing("a", "x", "y"), told("a", "x", "y"), ran("x"), ran("y"), ran("a"), ran("b")]
    assert drive(RepairingFollower(), PLAN, replies) == [
        call("a"),
        ask("a"),
        call("x"),
        call("y"),
        call("a"),
        call("b"),
        FINISH,
    ]


def test_repair_goes_down_to_dependencies_of_dependencies():
    replies = [missing("a", "x"), told("a", "x"), missing("x", "y"), told("x", "y"), ran("y"), ran("x"), ran("a")]
    assert drive(RepairingFollower(), PLAN, replies) == [
        call("a"),
        ask("a"),
        call("x"),
        ask("x"),
        call("y"),
        call("x"),
        call("a"),
        call("b"),
    ]


def test_repair_does_not_ask_what_the_prompt_says():
    plan = "1. Execute a\n   - Requires: x, b\n2. Execute b\n"
    # b is needed by a, so it is moved forward; afterwards it is not run again.
    replies = [missing("a", "x", "b"), ran("x"), ran("b"), ran("a")]
    assert drive(RepairingFollower(), plan, replies) == [call("a"), call("x"), call("b"), call("a"), FINISH]


def test_repair_takes_the_names_in_the_failure_if_it_may_not_ask():
    replies = [missing("a", "x", failed=("y",)), ran("x"), ran("y"), ran("a")]
    assert drive(RepairingFollower("never"), PLAN, replies) == [call("a"), call("x"), call("y"), call("a"), call("b")]


def test_repair_may_ask_before_the_first_call():
    replies = [told("a", "x"), told("x"), ran("x"), ran("a"), told("b", "a"), ran("b")]
    assert drive(RepairingFollower("before"), PLAN, replies) == [
        ask("a"),
        ask("x"),
        call("x"),
        call("a"),
        ask("b"),
        call("b"),
        FINISH,
    ]


def test_repair_in_advance_believes_a_plan_that_states_requirements():
    plan = "1. Execute a\n   - Requires: x\n2. Execute b\n"
    assert drive(RepairingFollower("before"), plan, [ran("x"), ran("a")]) == [call("x"), call("a"), call("b")]
    # Once b fails for a dependency, the plan is not believed any more.
    replies = [ran("x"), ran("a"), missing("b", "y"), told("b", "y")]
    assert drive(RepairingFollower("before"), plan, replies)[-2:] == [ask("b"), call("y")]


@pytest.mark.parametrize("when", ["before", "after", "never"])
def test_circular_dependencies_trap_no_repair(when):
    policy = RepairingFollower(when)
    dependencies = {"a": "b", "b": "a"}
    policy.reset(PLAN, {"turns_left": 30})
    info, messages = {"turns_left": 30}, []
    for turns_left in range(29, 19, -1):
        message = policy.act("reply", info)
        messages.append(message)
        tool = message.split(">")[1].split("<")[0]
        answer = told(tool, dependencies[tool]) if "tool_info" in message else missing(tool, dependencies[tool])
        info = {"turns_left": turns_left, **answer}
    assert sum("tool_info" in message for message in messages) <= 2
    assert "tool_call" in messages[-1]


def test_repair_asks_only_once_even_without_an_answer():
    replies = [missing("a", "x"), {"event": "info"}, ran("a", False)]
    assert drive(RepairingFollower(), PLAN, replies) == [call("a"), ask("a"), call("a"), call("a")]


def test_repair_drops_refused_parameters_then_refused_tools():
    plan = '1. Execute a\n   - Parameters: {"source": 5}\n2. Execute b\n'
    assert drive(RepairingFollower(), plan, [REJECTED, REJECTED]) == [
        '<tool_call>a {"source": 5}</tool_call>',
        call("a"),
        call("b"),
    ]


def test_an_unknown_time_to_ask_is_refused():
    with pytest.raises(InvalidInputError, match="did you mean 'after'"):
        RepairingFollower("aftr")


LIBRARY = ToolLibrary([Tool(name, f"Does {name}.") for name in ("read_file", "parse", "write")])


def first_messages(count, **options):
    policy = RandomPolicy(library=LIBRARY, **options)
    return [drive(policy, f"prompt {number}", [])[0] for number in range(count)]


def test_shares_of_messages():
    counts = Counter(first_messages(4000))
    # Standard errors: 0.0034 for finishing (p = 0.05), 0.0017 or less for one search, 0.0071 for one tool.
    assert counts[FINISH] / 4000 == pytest.approx(0.05, abs=0.014)
    for tool in LIBRARY.names:
        assert counts[f"<tool_call>{tool}</tool_call>"] / 4000 == pytest.approx(0.85 / 3, abs=0.029)
        query = tool.replace("_", " ")
        assert counts[f"<tool_search>{query}</tool_search>"] / 4000 == pytest.approx(0.1 / 3, abs=0.012)
    assert len(counts) == 7


def test_the_same_episode_gives_the_same_messages():
    replies = [ran("read"), ran("parse", False)] * 4
    policy = RandomPolicy(library=LIBRARY)
    first = drive(policy, "prompt", replies)
    drive(policy, "another prompt", replies)
    assert drive(policy, "prompt", replies) == first
    assert drive(RandomPolicy(library=LIBRARY), "prompt", replies) == first
    assert drive(RandomPolicy(seed=1, library=LIBRARY), "prompt", replies) != first
    assert drive(policy, "prompt", replies[:3], turns=3)[-1] == FINISH


def test_equal_replies_do_not_freeze_it():
    messages = drive(RandomPolicy(library=LIBRARY), "prompt", [ran("parse", False)] * 40, turns=99)
    assert len(set(messages)) > 3


@pytest.mark.parametrize(
    ("work_order", "steps"),
    [
        (
            "Owner: Ada. It was late.\n1. Read the weights.\n2. Please check them; then send them\nThanks, Ada",
            ["Read the weights", "Please check them", "then send them"],
        ),
        ("Dear all, the file is broken. It lies in /data.", ["Dear all, the file is broken", "It lies in /data"]),
        ("Readings are late. Read-outs differ. READ the log", ["READ the log"]),
        ("", []),
    ],
)
def test_orders_are_told_from_background(work_order, steps):
    assert ordered_steps(work_order) == steps


def test_the_steps_of_most_benchmark_tasks_are_found():
    tasks = benchmark_tasks()[::20]
    exact = sum(len(ordered_steps(task.description)) == len(task.required_tools) for task in tasks)
    assert exact / len(tasks) > 0.8
