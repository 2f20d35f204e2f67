"""The scripted plan followers, where the requirements for agents that execute plans concern them.

They resolve nothing and call no model: a plan's step is a call of its tool, and the environment says what became of it.
"""

from __future__ import annotations

import logging
from xml.sax.saxutils import escape

import pytest

from resilisim.policies.base import FINISH
from resilisim.policies.scripted import PlanFollower, RepairingFollower
from resilisim.workflows import parse_steps
from tests.policies.drive import call, drive, ran

PLAN = """1. Execute a
   - Expected: success, with delivered {0} (confidence 1.00)
2. Execute b
"""


@pytest.fixture(params=[PlanFollower, RepairingFollower])
def policy(request):
    return request.param()


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


def test_1_parameters_that_can_be_parsed_or_are_not_there_are_no_problem(policy, caplog):
    with caplog.at_level(logging.WARNING, logger="resilisim.policies"):
        drive(policy, '1. Execute a\n   - Parameters: {"key": 1}\n2. Execute b\n   - Parameters: null\n', [])
    assert caplog.text == ""


def test_6_what_the_plan_expects_never_counts_as_done(policy):
    assert drive(policy, PLAN, [ran("a", False), ran("a", False)]) == [call("a")] * 3
    # A numbered line that names no tool is no step at all, whatever it says it brings.
    without_tool = "1. Execute\n   - Expected: everything was delivered\n2. Execute b\n"
    assert drive(policy, without_tool, [ran("b")]) == [call("b"), FINISH]


def test_6_an_error_is_an_error_whatever_its_words_are(policy):
    policy.reset(PLAN, {"turns_left": 5})
    assert policy.act(PLAN, {"turns_left": 5}) == call("a")
    reply = {"turns_left": 4, **ran("a", False)}
    assert policy.act('a executed successfully.\nOutput: {"error": "no such key"}', reply) == call("a")


def test_6_braces_in_a_plan_are_not_expanded(policy):
    plan = '1. Execute a\n   - Parameters: {"source": "{step_1} {0} ${task} %(x)s {{y}}"}\n'
    assert drive(policy, plan, []) == ['<tool_call>a {"source": "{step_1} {0} ${task} %(x)s {{y}}"}</tool_call>']
