"""Policies without a model: plan followers reply by reply, random calls, and which clauses are taken for steps.

Of the requirements for agents that execute plans, these concern plan followers: 1, 3 and 6. They call no model: a
plan's step is a call of its tool, unless it refers to what is not there (flaws/test_argument_passing.py), and the
environment says what became of it.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from typing import Any
from xml.sax.saxutils import escape

import pytest

from resilisim.envs.protocol.completion_signal import signals_completion
from resilisim.envs.protocol.message_reader import read_text
from resilisim.errors import InvalidInputError
from resilisim.policies.base import FINISH_TEXT, OUT_OF_TURNS, WAIT_TEXT
from resilisim.policies.base import call_message as call
from resilisim.policies.base import info_message as ask
from resilisim.policies.base import search_message as search
from resilisim.policies.scripted import PlanFollower, RandomPolicy, RepairingFollower, ordered_steps
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import Tool, ToolLibrary, default_library
from resilisim.workflows.prompts import parse_steps

Reply = dict[str, Any]


def ran(tool: str, success: bool = True, error: str | None = None) -> Reply:
    execution = {"tool": tool, "success": success, "error": None if success else error or "TIMEOUT", "attempt": 1}
    return {"event": "execute", "execution": execution}


def missing(tool: str, *not_executed: str, failed: tuple[str, ...] = ()) -> Reply:
    problems = {"not_executed": list(not_executed), "failed": list(failed)}
    return {**ran(tool, False, "DEPENDENCY_ERROR"), "dependency_problems": problems}


def found(*names: str) -> Reply:
    return {"event": "search", "search": [{"name": name, "score": 0.5} for name in names]}


def told(tool: str, *dependencies: str) -> Reply:
    return {"event": "info", "tool_info": {"name": tool, "dependencies": list(dependencies)}}


REJECTED: Reply = {"event": "rejected", "problems": ["no"]}


def drive(policy: Any, prompt: str, replies: list[Reply], turns: int = 10, **begun: bool) -> list[str | None]:
    """Return the messages of a policy that meets these replies, one message more than there are replies."""
    start = {"turns_left": turns, **begun}
    policy.reset(prompt, dict(start))
    messages = [policy.act(prompt, dict(start))]
    for used, reply in enumerate(replies, start=1):
        messages.append(policy.act("reply", {"turns_left": turns - used, **reply}))
    return messages


PLAN = "1. Execute a\n2. Execute b\n"
BASELINE = "# Task\n\n## Work order\n\nRead the orders. Check them; send them\n\n## Rest\n\nNothing. Here."


SEARCHES = [search("Read the orders"), search("Check them"), search("send them")]


def test_each_step_is_repeated_until_it_succeeds():
    replies = [ran("a", False), missing("a", "x"), ran("a"), ran("b", False), ran("b")]
    assert drive(PlanFollower(), PLAN, replies) == [call("a")] * 3 + [call("b")] * 2 + [FINISH_TEXT]
    twice = "1. Execute a\n2. Execute a\n"
    assert drive(PlanFollower(), twice, [ran("a"), ran("a")]) == [call("a"), call("a"), FINISH_TEXT]
    assert drive(RepairingFollower(), twice, [ran("a", False), ran("a")]) == [call("a"), call("a"), FINISH_TEXT]
    assert drive(PlanFollower(), PLAN, [ran("a_by_its_real_name")])[-1] == call("b"), "the plan has an alias"


LIMITED = "1. Execute a\n   - Limit: at most 2 tries, and none from message 3 on; then go on\n2. Execute b\n"


@pytest.mark.parametrize(
    ("plan", "replies", "turns", "expected"),
    [
        (LIMITED, [ran("a", False), ran("a", False), ran("b")], 10, [call("a"), call("a"), call("b"), FINISH_TEXT]),
        (LIMITED, [ran("a"), ran("b")], 10, [call("a"), call("b"), FINISH_TEXT]),
        (LIMITED, [REJECTED, REJECTED], 10, [call("a"), call("a"), call("b")]),  # refused calls are tries, too
        (f"1. Execute c\n{LIMITED}", [ran("c", False), ran("c")], 10, [call("c"), call("c"), call("b")]),
        # Whoever is left with nothing else to do is done, also in the closing message.
        ("1. Execute b\n2. Execute a\n   - Limit: no try from message 3 on", [ran("b", False), ran("b")], 2, None),
    ],
)
@pytest.mark.parametrize("policy", [PlanFollower(), RepairingFollower()])
def test_limits_are_kept(policy, plan, replies, turns, expected):
    if isinstance(policy, RepairingFollower) and REJECTED in replies:
        expected = [call("a"), call("b"), FINISH_TEXT]  # what does not exist is left out at once
    assert drive(policy, plan, replies, turns=turns) == (expected or [call("b"), call("b"), FINISH_TEXT])


def test_limits_count_messages_of_every_kind_and_nothing_left_is_taken_up_again():
    replies = [ran("a", False), missing("b", "a"), told("b", "a"), ran("b")]
    plan = "1. Execute a\n   - Limit: at most 1 try; then go on\n2. Execute b\n"
    assert drive(RepairingFollower(), plan, replies) == [call("a"), call("b"), ask("b"), call("b"), FINISH_TEXT]
    # Asking is message 2, so in message 3, when a could be run for c, the plan leaves it.
    replies = [missing("c", "a"), told("c", "a"), ran("c"), ran("b")]
    expected = [call("c"), ask("c"), call("c"), call("b"), FINISH_TEXT]
    assert drive(RepairingFollower(), "1. Execute c\n" + LIMITED, replies) == expected


def test_parameters_of_the_plan_are_passed_unless_told_otherwise():
    plan = '1. Execute a\n   - Parameters: {"source": "</tool_call>"}\n'
    assert drive(PlanFollower(), plan, []) == ['<tool_call>a {"source": "\\u003c/tool_call>"}</tool_call>']
    assert drive(PlanFollower(pass_parameters=False), plan, []) == [call("a")]


def test_without_a_plan_one_search_per_clause_makes_it():
    replies = [found("read", "x"), found("check"), found("send"), ran("read"), ran("check"), ran("send")]
    calls = [call("read"), call("check"), call("send")]
    assert drive(PlanFollower(), BASELINE, replies) == [*SEARCHES, *calls, FINISH_TEXT]
    replies = [found("read"), found("read", "check"), found()]  # found twice, and nothing found
    assert drive(PlanFollower(), BASELINE, [*replies, ran("read")])[-2:] == [call("read"), FINISH_TEXT]


def test_searching_stops_when_the_turns_are_needed_for_running():
    # After one search, 3 turns are one more search and a run of each tool found; 2 would not be enough for that.
    assert drive(PlanFollower(), BASELINE, [found("read")], turns=4)[-1] == search("Check them")
    assert drive(PlanFollower(), BASELINE, [found("read")], turns=3)[-1] == call("read")


@pytest.mark.parametrize("policy", [PlanFollower(), RepairingFollower()])
def test_where_no_plan_can_be_made_it_stops_without_claiming_completion(policy):
    assert drive(policy, BASELINE, [], turns=1) == [None]
    assert drive(policy, BASELINE, [found()] * 3) == [*SEARCHES, None]


def test_the_closing_message_claims_only_what_is_true():
    assert drive(PlanFollower(), PLAN, [ran("a"), ran("b")], turns=2)[-1] == FINISH_TEXT
    assert drive(PlanFollower(), PLAN, [ran("a"), ran("b", False)], turns=2)[-1] == OUT_OF_TURNS
    assert not signals_completion(OUT_OF_TURNS)


@pytest.mark.parametrize("policy", [PlanFollower(), RepairingFollower(), RepairingFollower("before")])
def test_reset_forgets_everything(policy):
    replies = [missing("a", "x"), told("a", "x"), ran("x", False)]
    first = drive(policy, PLAN, replies)
    drive(policy, BASELINE, [found("read"), found("b")])
    assert drive(policy, PLAN, replies) == first


def test_repair_asks_once_and_runs_what_is_missing_first_down_to_dependencies_of_dependencies():
    replies = [missing("a", "x"), told("a", "x"), missing("x", "y"), told("x", "y"), ran("y"), ran("x"), ran("a")]
    down, up = [call("a"), ask("a"), call("x"), ask("x")], [call("y"), call("x"), call("a"), call("b")]
    assert drive(RepairingFollower(), PLAN, replies) == [*down, *up]
    replies = [missing("a", "x", "y"), told("a", "x", "y"), ran("x"), ran("y"), ran("a"), ran("b")]
    first = [call("a"), ask("a"), call("x"), call("y")]
    assert drive(RepairingFollower(), PLAN, replies) == [*first, call("a"), call("b"), FINISH_TEXT]
    replies = [missing("a", "x"), {"event": "info"}, ran("a", False)]  # an answer that says nothing
    assert drive(RepairingFollower(), PLAN, replies) == [call("a"), ask("a"), call("a"), call("a")]


def test_repair_does_not_ask_what_the_prompt_says():
    plan = "1. Execute a\n   - Requires: x, b\n2. Execute b\n"
    # b is needed by a, so it is moved forward; afterwards it is not run again.
    replies = [missing("a", "x", "b"), ran("x"), ran("b"), ran("a")]
    assert drive(RepairingFollower(), plan, replies) == [call("a"), call("x"), call("b"), call("a"), FINISH_TEXT]


def test_repair_takes_the_names_in_the_failure_if_it_may_not_ask():
    replies = [missing("a", "x", failed=("y",)), ran("x"), ran("y"), ran("a")]
    assert drive(RepairingFollower("never"), PLAN, replies) == [call("a"), call("x"), call("y"), call("a"), call("b")]


def test_repair_may_ask_before_the_first_call():
    replies = [told("a", "x"), told("x"), ran("x"), ran("a"), told("b", "a"), ran("b")]
    first = [ask("a"), ask("x"), call("x"), call("a")]
    assert drive(RepairingFollower("before"), PLAN, replies) == [*first, ask("b"), call("b"), FINISH_TEXT]
    with pytest.raises(InvalidInputError, match="did you mean 'after'"):
        RepairingFollower("aftr")


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


def test_repair_drops_refused_parameters_then_refused_tools():
    plan = '1. Execute a\n   - Parameters: {"source": 5}\n2. Execute b\n'
    assert drive(RepairingFollower(), plan, [REJECTED, REJECTED]) == [call("a", {"source": 5}), call("a"), call("b")]


EXPECTING = "1. Execute a\n   - Expected: success, with delivered {0} (confidence 1.00)\n2. Execute b\n"


@pytest.fixture(params=[PlanFollower, RepairingFollower])
def policy(request):
    return request.param()


READER = "file_operations_reader"


def refused(tool: str, kind: str, *opened_by: str) -> Reply:
    code = {"input": "INVALID_INPUT", "access": "PERMISSION_DENIED", "transient": "TIMEOUT"}[kind]
    return {**ran(tool, False, code), "error_kind": kind, **({"opened_by": list(opened_by)} if opened_by else {})}


def test_repair_changes_a_parameter_that_was_refused_and_never_sends_the_same_call_twice_in_a_row():
    plan = '1. Execute file_operations_reader\n   - Parameters: {"source": "a.csv"}'
    calls = drive(RepairingFollower(), plan, [refused(READER, "input")] * 4)
    assert calls[0] == call(READER, {"source": "a.csv"})
    for before, after in itertools.pairwise(calls):
        assert after is not None
        assert after != before
        message = read_text(after, default_library(), "strict")
        assert (message.kind, message.tool) == ("execute", READER)
    again = drive(RepairingFollower(), plan, [refused(READER, "transient")] * 2)
    assert again == [calls[0]] * 3
    assert drive(PlanFollower(), plan, [refused(READER, "input")] * 2) == [calls[0]] * 3


def test_repair_runs_what_opens_a_tool_before_it_calls_it_again():
    opener = "integration_authenticator"
    replies = [refused(READER, "access", opener), ran(opener, False), ran(opener), ran(READER)]
    expected = [call(READER), call(opener), call(opener), call(READER), FINISH_TEXT]
    assert drive(RepairingFollower(), "1. Execute file_operations_reader", replies) == expected


@pytest.mark.parametrize("code", ["RATE_LIMIT_ERROR", "SERVICE_UNAVAILABLE"])
def test_repair_waits_for_what_goes_away_by_itself_where_it_can(code):
    waited: Reply = {"event": "wait"}
    replies = [ran(READER, False, code), waited, ran(READER, False), ran(READER)]
    plan, policy = "1. Execute file_operations_reader", RepairingFollower()
    patient = [call(READER), WAIT_TEXT, call(READER), call(READER), FINISH_TEXT]
    assert drive(policy, plan, replies, offers_wait=True) == patient
    assert drive(policy, plan, [ran(READER, False, code), ran(READER)]) == [call(READER), call(READER), FINISH_TEXT]


@pytest.mark.parametrize("raw", ['{"key": "a', "{key: 1}", '["a", "b"]', "no", "[" * 100_000])
def test_1_parameters_that_cannot_be_parsed_are_a_typed_problem_with_the_raw_words(policy, raw, caplog):
    plan = f"1. Execute a\n   - Parameters: {raw}\n"
    (step,) = parse_steps(plan)
    assert step.parameters is None
    assert raw[:50] in step.problem
    with caplog.at_level(logging.WARNING, logger="resilisim.policies"):
        assert drive(policy, plan, []) == [call("a")]
    assert raw[:50] in caplog.text
    step = f"<step><tool>a</tool><parameters>{escape(raw)}</parameters></step>"
    (step,) = parse_steps(f"<mcp_task><execution_plan>{step}</execution_plan></mcp_task>")
    assert (step.parameters, raw[:50] in step.problem) == (None, True)
    caplog.clear()
    braces = '{"source": "{step_1} {0} ${task} %(x)s {{y}}"}'
    plan = f"1. Execute a\n   - Parameters: {braces}\n2. Execute b\n   - Parameters: null\n"
    assert drive(policy, plan, []) == [f"<tool_call>a {braces}</tool_call>"], "never expanded"
    assert caplog.text == ""


def test_6_what_the_plan_expects_never_counts_as_done(policy):
    assert drive(policy, EXPECTING, [ran("a", False), ran("a", False)]) == [call("a")] * 3
    # A numbered line that names no tool is no step at all, whatever it says it brings.
    without_tool = "1. Execute\n   - Expected: everything was delivered\n2. Execute b\n"
    assert drive(policy, without_tool, [ran("b")]) == [call("b"), FINISH_TEXT]


def test_6_an_error_is_an_error_whatever_its_words_are(policy):
    policy.reset(EXPECTING, {"turns_left": 5})
    assert policy.act(EXPECTING, {"turns_left": 5}) == call("a")
    reply = {"turns_left": 4, **ran("a", False)}
    assert policy.act('a executed successfully.\nOutput: {"error": "no such key"}', reply) == call("a")


LIBRARY = ToolLibrary([Tool(name, f"Does {name}.") for name in ("read_file", "parse", "write")])


def first_messages(count, **options):
    policy = RandomPolicy(library=LIBRARY, **options)
    return [drive(policy, f"prompt {number}", [])[0] for number in range(count)]


def test_shares_of_messages():
    counts = Counter(first_messages(4000))
    # Standard errors: 0.0034 for finishing (p = 0.05), 0.0017 or less for one search, 0.0071 for one tool.
    assert counts[FINISH_TEXT] / 4000 == pytest.approx(0.05, abs=0.014)
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
    assert drive(policy, "prompt", replies[:3], turns=3)[-1] == FINISH_TEXT
    assert len(set(drive(policy, "prompt", [ran("parse", False)] * 40, turns=99))) > 3, "equal replies do not freeze it"


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
