"""What every agent that executes plans must do, one test per requirement, for each of them (`adapter.py`)."""

from __future__ import annotations

import importlib
import logging

import pytest

from resilisim.policies.llm.tools import ToolResult
from tests.policies.llm.plan_executors.adapter import REQUIREMENTS, Adapter, Played, Raw, Ref, Scenario, Step

MODULES = (
    "tests.policies.llm.plan_executors.plan_execute",
    "tests.policies.llm.plan_executors.kpi_chain",
)
ADAPTERS: list[Adapter] = [adapter for module in MODULES for adapter in importlib.import_module(module).ADAPTERS]


def concerned(requirement: str):
    assert requirement in REQUIREMENTS
    found = [adapter for adapter in ADAPTERS if requirement in adapter.applies]
    return pytest.mark.parametrize("adapter", found, ids=[adapter.name for adapter in found])


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture):
    """The warnings that were logged so far."""
    caplog.set_level(logging.WARNING, logger="resilisim.agents")
    return lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def failure_of(played: Played, step: int):
    found = [failure for failure in played.failures if failure.step == step]
    assert len(found) == 1, played.failures
    assert found[0].kind
    return found[0]


@concerned("1-arguments")
@pytest.mark.parametrize("raw", ['{"key": "a', "{key: }", '["a", "b"]', "{'key': {1, 2}}"])
def test_1_arguments_that_cannot_be_parsed_are_a_typed_error_with_the_raw_words(adapter, raw, warnings):
    played = adapter.play(Scenario((Step("fetch", Raw(raw)),)))
    assert played.calls == [], "neither with an empty dict nor with anything else"
    assert raw in failure_of(played, 1).excerpt
    assert played.answer is None
    assert warnings()


@concerned("2-nested")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"id": Ref(1)}, {"id": "41"}),
        ({"deep": {"er": Ref(1)}, "n": 3}, {"deep": {"er": "41"}, "n": 3}),
        ({"list": ["x", Ref(1), {"in": [Ref(1)]}]}, {"list": ["x", "41", {"in": ["41"]}]}),
    ],
)
def test_2_references_are_resolved_at_any_depth(adapter, given, expected):
    steps = (Step("fetch", {"key": "a"}), Step("store", {"place": "here", "what": given}))
    played = adapter.play(Scenario(steps, {"fetch": ("41",), "store": ("stored",)}))
    assert played.failures == []
    assert played.calls == [("fetch", {"key": "a"}), ("store", {"place": "here", "what": expected})]
    assert played.answer == "stored"
    assert not adapter.looks_like_reference(repr(played.calls))


@concerned("3-failed")
def test_3_a_reference_to_a_failed_step_makes_no_call(adapter, warnings):
    steps = (Step("fetch", {"key": "a"}), Step("store", {"place": "here", "what": {"id": Ref(1)}}))
    failed = ToolResult("fetch failed.\nError: TIMEOUT: late", "TIMEOUT: late")
    played = adapter.play(Scenario(steps, {"fetch": (failed,)}))
    assert played.calls == [("fetch", {"key": "a"})]
    assert "TIMEOUT" in failure_of(played, 1).message
    assert adapter.step_name(1) in failure_of(played, 2).message
    assert played.answer is None
    assert warnings()


@concerned("3-missing")
def test_3_a_reference_to_a_missing_step_makes_no_call(adapter, warnings):
    steps = (Step("store", {"place": "here", "what": {"id": [Ref(7)]}}),)
    played = adapter.play(Scenario(steps))
    assert played.calls == []
    assert adapter.step_name(7) in failure_of(played, 1).message
    assert played.answer is None
    assert warnings()


@concerned("3-later")
def test_3_a_reference_to_a_later_step_makes_no_call(adapter, warnings):
    steps = (Step("store", {"place": "here", "what": {"id": Ref(2)}}), Step("fetch", {"key": "a"}))
    played = adapter.play(Scenario(steps, {"fetch": ("41",)}))
    assert "store" not in [tool for tool, _ in played.calls]
    assert adapter.step_name(2) in failure_of(played, 1).message
    assert warnings()


RESOLVED = (Step("fetch", {"key": "a"}), Step("store", {"place": "here", "what": {"id": Ref(1)}}))
UNREADABLE = ("I would pass 41.", '{"place": "here", "what": {"id": ', "x" * 1_000_000, "[1, 2]")
EMPTY = ("{}", "", '{"place": "here", "what": {"id": null}}')


@concerned("4-kinds")
def test_4_an_unreadable_resolution_differs_from_an_empty_one(adapter, warnings):
    kinds = []
    for reply in (UNREADABLE[0], "{}"):
        played = adapter.play(Scenario(RESOLVED, {"fetch": ("41",)}, resolutions=(reply, reply)))
        assert played.calls == [("fetch", {"key": "a"})]
        failure = failure_of(played, 2)
        assert reply in failure.excerpt
        kinds.append(failure.kind)
    assert kinds[0] != kinds[1]
    assert warnings()


@concerned("5-once")
@pytest.mark.parametrize("reply", [*UNREADABLE, *EMPTY], ids=lambda reply: reply[:20] or "nothing")
def test_5_a_useless_resolution_is_asked_for_again_exactly_once(adapter, reply, warnings):
    answers = {"fetch": ("41",), "store": ("stored",)}
    right = '{"place": "here", "what": {"id": 41}}'
    played = adapter.play(Scenario(RESOLVED, answers, resolutions=(reply, right)))
    assert played.calls[1] == ("store", {"place": "here", "what": {"id": 41}})
    assert played.resolution_requests == 2
    assert played.counters[adapter.retries_counter] == 1
    assert played.failures == []
    played = adapter.play(Scenario(RESOLVED, answers, resolutions=(reply, reply)))
    assert played.calls == [("fetch", {"key": "a"})]
    assert played.resolution_requests == 2
    assert played.counters[adapter.retries_counter] == 1
    assert failure_of(played, 2).kind
    assert played.answer is None
    assert warnings()


@concerned("6-no-tool")
@pytest.mark.parametrize("conclusion", ["", "I have no idea.", "{}", '{"result": null}'])
def test_6_a_step_without_a_tool_never_returns_what_is_expected_of_it(adapter, conclusion):
    played = adapter.play(Scenario((Step(None, expected="42 boxes were delivered"),), conclusion=conclusion))
    assert "42 boxes" not in str(played.answer)
    assert played.results == {}
    assert played.answer is None
    assert played.calls == []


@concerned("6-error-body")
@pytest.mark.parametrize("body", ['{"error": "no such key"}', '{"error": {"message": "no such key"}}'])
def test_6_a_body_with_an_error_is_an_error(adapter, body, warnings):
    played = adapter.play(Scenario((Step("fetch", {"key": "a"}),), {"fetch": (body,)}))
    assert played.results == {}
    assert "no such key" in failure_of(played, 1).message
    assert played.answer is None
    assert warnings()


@concerned("6-braces")
def test_6_a_question_with_braces_is_not_expanded(adapter):
    task = "Fetch {step_1}, {0}, {{key}}, ${task}, $objective, %(key)s and {}."
    played = adapter.play(Scenario((Step("fetch", {"key": "a"}),), {"fetch": ("41",)}, task=task))
    assert played.results == {1: "41"}
    assert any(task in message.content for request in played.requests[:1] for message in request.messages)
    assert played.calls == [("fetch", {"key": "a"})]


def test_every_requirement_is_met_by_some_agent():
    assert set().union(*(adapter.applies for adapter in ADAPTERS)) == set(REQUIREMENTS)
    assert all(adapter.applies <= set(REQUIREMENTS) for adapter in ADAPTERS)
