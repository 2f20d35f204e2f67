"""Patterns of recovery, reply by reply: when they pause, leave a tool alone, turn to another, and give up."""

from __future__ import annotations

import pytest

from resilisim.errors import InvalidInputError
from resilisim.policies import make_policy
from resilisim.policies.base import FINISH_TEXT, OUT_OF_TURNS, WAIT_TEXT
from resilisim.policies.base import call_message as call
from resilisim.policies.base import search_message as search
from resilisim.policies.recovery import AlternativeFirst, CircuitBreaker, RetryBackoff
from resilisim.tool_library import Tool, ToolLibrary
from tests.policies.test_scripted import PLAN, Reply, drive, found, ran

WAITED: Reply = {"event": "wait"}


def test_pauses_double_until_the_step_is_given_up_and_the_plan_goes_on() -> None:
    failed = ran("a", False)
    replies = [failed, WAITED, failed, WAITED, WAITED, failed, ran("b")]
    expected = [call("a"), WAIT_TEXT, call("a"), WAIT_TEXT, WAIT_TEXT, call("a"), call("b"), FINISH_TEXT]
    assert drive(RetryBackoff(attempts=3), PLAN, replies, turns=12, offers_wait=True) == expected
    at_once = [call("a"), call("a"), call("a"), call("b"), FINISH_TEXT]
    assert drive(RetryBackoff(attempts=3), PLAN, [failed] * 3 + [ran("b")], turns=12) == at_once
    pauses = [failed, WAITED, failed, *[WAITED] * 2, failed, *[WAITED] * 4, failed, *[WAITED] * 4]
    longest = drive(RetryBackoff(9), "1. Execute a", pauses, 40, offers_wait=True)
    assert longest[-6:] == [call("a"), WAIT_TEXT, WAIT_TEXT, WAIT_TEXT, WAIT_TEXT, call("a")], "four turns at most"
    assert drive(RetryBackoff(), PLAN, [failed, WAITED], turns=2, offers_wait=True)[-1] == OUT_OF_TURNS


def test_an_open_circuit_leaves_its_tool_alone_and_closes_by_one_try() -> None:
    policy = CircuitBreaker(failures=2, cooldown=2)
    replies = [ran("a", False), ran("a", False), ran("b", False), ran("b"), ran("a", False)]
    expected = [call("a"), call("a"), call("b"), call("b"), call("a")]
    assert drive(policy, PLAN, replies, offers_wait=True) == [*expected, WAIT_TEXT], (
        "half open, it opens by one failure"
    )
    assert drive(policy, PLAN, replies)[-1] == call("a"), "where nothing else can be done"
    assert drive(policy, PLAN, [*replies, WAITED, WAITED, ran("a")], offers_wait=True)[-2:] == [call("a"), FINISH_TEXT]


def test_another_tool_is_tried_first_and_the_plans_own_are_none() -> None:
    library = ToolLibrary([Tool("a", "Reads.", equivalents=("c",)), Tool("b", "Sends."), Tool("c", "Reads, too.")])
    policy = AlternativeFirst(library=library)
    replies = [ran("a", False), ran("c", False), ran("a", False), ran("c"), ran("b", False), found("a", "b")]
    expected = [call("a"), call("c"), call("a"), call("c"), call("b"), search("b"), call("b")]
    assert drive(policy, PLAN, replies) == expected
    searched = [ran("a", False), found("a", "x"), ran("x", False), ran("a", False)]
    assert drive(AlternativeFirst(), PLAN, searched) == [call("a"), search("a"), call("x"), call("a"), call("x")]


@pytest.mark.parametrize(
    "spec", ["retry-backoff[attempts=0]", "circuit-breaker[failures=0]", "circuit-breaker[cooldown=0]"]
)
def test_counts_are_at_least_one(spec: str) -> None:
    with pytest.raises(InvalidInputError, match="is 0: expected"):
        make_policy(spec)
