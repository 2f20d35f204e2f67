"""What a failed episode is put down to: the first failure that no later step made good."""

from __future__ import annotations

import pytest

from resilisim.policies.llm.run import EpisodeEnded
from resilisim.policies.llm.tools import ToolResult
from tests.policies.llm.plan_execute.test_agent import FAILED, Play, call, executor, plan, planner, replanner

DIRECT = {"executor": "direct", "replan": "failure"}
A, B = call(1, "fetch", {"key": "a"}), call(2, "fetch", {"key": "b"})
LATER = ToolResult("fetch failed.", "NO_SUCH_KEY: b")


def test_another_step_that_succeeds_makes_nothing_good():
    script = [
        planner(plan(A, B, call(3, "store"))),
        replanner(plan(B, call(3, "store")), "FAILED: fetch: TIMEOUT"),
        replanner("?"),
        replanner("?"),
    ]
    played = Play(script, fetch=[FAILED, "b"], store=[FAILED], **DIRECT)
    assert played.failures[0] == ("tool", "fetch: TIMEOUT: late"), "not the failure of storing, which came after it"
    assert [component for component, _ in played.failures] == ["tool", "replanner"]


def test_a_step_that_is_not_done_because_of_a_failed_one_is_no_failure_of_its_own():
    needy = call(2, "store", {"what": {"id": "{step_1}"}})
    script = [planner(plan(A, needy)), replanner(plan(needy)), *[replanner("?")] * 2]
    played = Play(script, fetch=[FAILED], **DIRECT)
    assert played.plan[1]["kind"] == "reference"
    assert played.failures[0] == ("tool", "fetch: TIMEOUT: late"), "and not the planner's reference to it"


@pytest.mark.parametrize(
    "replans",
    [
        [plan(call(3, "fetch", {"key": "a"}), B)],  # the same once more
        [plan(call(3, "fetch", {"key": "other"}), B)],  # something else in its place
        [plan(B), plan(call(3, "fetch", {"key": "a"}), call(4, "fetch", {"key": "b"}))],  # the same, some time later
    ],
)
def test_what_is_made_good_fails_no_episode(replans):
    script = [planner(plan(A, B)), *map(replanner, replans), *[replanner("?")] * 2]
    answers = [FAILED, "a", LATER] if len(replans) == 1 else [FAILED, LATER, "a", FAILED]
    played = Play(script, fetch=answers, **DIRECT)
    assert played.answer is None
    assert len([entry for entry in played.plan if entry["status"] == "failed"]) == 1 + len(replans)
    assert played.failures[0] == ("tool", "fetch: NO_SUCH_KEY: b")
    assert len(played.failures) == 2, "only what is left of them, and the replanner"


def test_an_answer_after_a_start_from_scratch_makes_good_what_failed_before():
    script = [planner('{"steps": []}'), planner(plan("a")), executor("Action: finish[A]")]
    played = Play(script, restart=True, replan="failure")
    assert (played.answer, played.failures) == ("A", [])
    script = [planner('{"steps": []}'), planner(plan(A))]
    played = Play(script, fetch=[EpisodeEnded()], restart=True, **DIRECT)
    assert (played.answer, played.failures) == (EpisodeEnded, [("planner", "the plan is empty")])
