"""The eight tasks: their references are played, their data are followed."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilisim.errors import InvalidInputError, StoreError
from resilisim.run_folder import JsonLinesWriter
from resilisim.tasks import Task
from resilisim.worlds import Grade, ToolError, World, load_world
from resilisim.worlds.apis import TwinLaw, find_api
from resilisim.worlds.apis.api import public_apis
from resilisim.worlds.apis.assessment import assess, assessed
from resilisim.worlds.apis.world import ApiWorld
from resilisim.worlds.base import DoneCall, reference_calls, resolve_parameters

WORLD = load_world("apis-v1")
TASKS = {task.task_type: task for task in WORLD.tasks()}


def played(
    task: Task, seed: int = 0, change: Callable[[str, dict[str, Any]], Mapping[str, Any]] = lambda tool, given: given
) -> tuple[list[DoneCall], str]:
    """Return the calls of the reference, each with its parameters changed, and its answer."""
    workspace = WORLD.open(task, seed)
    results: dict[str, Any] = {}
    calls = []
    for step in reference_calls(task):
        parameters = change(step.tool, resolve_parameters(step.parameters, results))
        output = workspace.call(step.tool, parameters)
        calls.append(DoneCall(step.tool, parameters, output))
        results[str(step.save)] = output
    workspace.close()
    return calls, resolve_parameters({"answer": task.metadata["answers"][0]}, results)["answer"]


def test_the_eight_tasks_ask_for_3_to_6_apis_each_and_for_all_23_together() -> None:
    assert isinstance(WORLD, World)
    assert len(TASKS) == len({task.instance_id for task in WORLD.tasks()}) == 8
    assert {len(task.required_tools) for task in TASKS.values()} == {3, 4, 5, 6}
    assert {tool for task in TASKS.values() for tool in task.required_tools} == {api.name for api in public_apis()}
    first = TASKS["content_creation"].required_tools[:4]
    assert first == ("fact_fetcher", "joke_fetcher", "programming_quote_fetcher", "stoic_quote_fetcher")
    assert all("${" in str(reference_calls(task)) for task in TASKS.values())
    assert all(Task.from_mapping(task.to_mapping(), WORLD.library) == task for task in TASKS.values())


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_the_reference_is_right_and_whoever_leaves_a_part_out_is_not(task: Task) -> None:
    calls, answer = played(task)
    assert WORLD.grade(task, answer, calls) == Grade(True, 1.0, {"passed_on": 1.0, "in_answer": 1.0})
    none = WORLD.grade(task, None, calls)
    assert (none.correct, none.score, none.criteria["passed_on"]) == (False, 0.5, 1.0)
    assert not WORLD.grade(task, answer, []).correct
    for place in range(len(calls)):
        assert not WORLD.grade(task, answer, calls[:place] + calls[place + 1 :]).correct
        failed = dataclasses.replace(calls[place], output=None, error="TIMEOUT")
        assert not WORLD.grade(task, answer, [*calls[:place], failed, *calls[place + 1 :]]).correct
        # What failed and is called again is done.
        assert WORLD.grade(task, answer, [*calls[:place], failed, *calls[place:]]).correct


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_constants_that_no_call_returned_are_worth_nothing_even_where_every_call_succeeds(task: Task) -> None:
    examples = {api.name: dict(api.example) for api in public_apis()}
    calls, answer = played(task, change=lambda tool, given: examples[tool] if given else {})
    assert all(call.success for call in calls)
    grade = WORLD.grade(task, "everything is done", calls)
    assert (grade.correct, grade.score) == (False, 0.0)
    assert not WORLD.grade(task, answer, calls).correct


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_values_of_another_episode_are_constants_too(task: Task) -> None:
    other, answer = played(task, seed=1)
    calls, _ = played(task, seed=2)
    assert not WORLD.grade(task, answer, calls).correct
    assert not WORLD.grade(task, answer, [calls[0], *other[1:]]).correct


def test_the_same_task_and_seed_get_the_same_answers() -> None:
    for task in TASKS.values():
        assert played(task, 3) == played(task, 3) != played(task, 4)


def trip(change: Callable[[str, dict[str, Any]], Mapping[str, Any]], said: Callable[[str], str] = str) -> Grade:
    task = TASKS["travel_briefing"]
    calls, answer = played(task, change=change)
    return WORLD.grade(task, said(answer), calls)


def changed(tool: str, **changes: Callable[[Any], Any]) -> Callable[[str, dict[str, Any]], Mapping[str, Any]]:
    def change(called: str, given: dict[str, Any]) -> Mapping[str, Any]:
        return given | {name: make(given[name]) for name, make in changes.items()} if called == tool else given

    return change


FLOWS = [
    (changed("weather_fetcher", latitude=lambda value: round(value, 2)), True),  # rounded is not invented
    (changed("weather_fetcher", latitude=lambda value: -value), False),
    (changed("sun_times_fetcher", longitude=lambda value: value + 1.0), False),
    (changed("country_fetcher", country_code=str.lower), True),
    (changed("country_fetcher", country_code=lambda value: "JP" if value != "JP" else "US"), False),
    (changed("place_finder", name=lambda value: "osaka"), True),
    (changed("place_finder", name=lambda value: "Kyoto"), False),  # what the task gives counts as well
]


@pytest.mark.parametrize(("change", "correct"), FLOWS)
def test_what_counts_as_the_same_value(
    change: Callable[[str, dict[str, Any]], Mapping[str, Any]], correct: bool
) -> None:
    assert trip(change).correct is correct


ANSWERS: list[tuple[Callable[[str], str], bool]] = [
    (str.upper, True),
    (lambda answer: "Here it is:\n\n" + answer.replace(" ", "\n"), True),
    (lambda answer: "", False),
    (lambda answer: answer.replace("capital", "capital not").partition("next")[0], False),
]


@pytest.mark.parametrize(("say", "correct"), ANSWERS)
def test_an_answer_has_to_hold_the_values_in_whatever_words(say: Callable[[str], str], correct: bool) -> None:
    assert trip(lambda tool, given: given, say).correct is correct


def test_a_text_that_the_agent_composes_has_to_hold_every_value() -> None:
    task = TASKS["content_creation"]
    whole, answer = played(task)
    for value in (
        value for call in whole[:4] for name, value in call.output.items() if name not in ("source", "author")
    ):
        post = dataclasses.replace(
            whole[4], parameters=whole[4].parameters | {"body": whole[4].parameters["body"].replace(value, "a joke")}
        )
        grade = WORLD.grade(task, answer, [*whole[:4], post])
        assert (grade.correct, grade.criteria["passed_on"]) == (False, 0.0), value


def test_of_two_results_the_values_have_to_be_of_one() -> None:
    task = TASKS["travel_briefing"]
    calls, answer = played(task)
    other = dataclasses.replace(calls[0], output=dict(calls[0].output or {}) | {"latitude": 1.0, "longitude": 2.0})
    mixed = dataclasses.replace(calls[1], parameters={**calls[1].parameters, "longitude": 2.0})
    assert WORLD.grade(task, answer, [calls[0], other, *calls[1:]]).correct
    assert not WORLD.grade(task, answer, [calls[0], other, mixed, *calls[2:]]).correct


@given(st.data())
@settings(max_examples=30)
def test_calls_of_any_kind_have_a_grade_and_never_a_better_one_than_the_reference(data: st.DataObject) -> None:
    task = data.draw(st.sampled_from(list(TASKS.values())))
    values = st.none() | st.integers(-3, 3) | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
    calls = data.draw(
        st.lists(
            st.builds(
                DoneCall,
                st.sampled_from(task.required_tools),
                st.dictionaries(st.sampled_from(["name", "query", "latitude", "body", "word"]), values, max_size=3),
                st.none(),
                st.just("TIMEOUT"),
            ),
            max_size=6,
        )
    )
    grade = WORLD.grade(task, data.draw(st.none() | st.text()), calls)
    assert not grade.correct
    assert grade.score == 0.0


def test_parameters_that_do_not_fit_are_an_answer_for_the_agent() -> None:
    workspace = WORLD.open(TASKS["travel_briefing"], 0)
    for parameters, said in [
        ({}, "is missing"),
        ({"latitude": 1, "longitude": "${place.longitude}"}, "expected number"),
    ]:
        with pytest.raises(ToolError, match=said) as refused:
            workspace.call("weather_fetcher", parameters)
        assert refused.value.code == "INVALID_INPUT"


def test_a_twin_with_faults_fails_as_its_law_draws() -> None:
    world = load_world("apis-v1:faults")
    task = world.tasks()[0]
    assert task.metadata["world"] == "apis-v1:faults"
    workspace = world.open(task, 7)
    for attempt in range(4):
        code, _, _ = TwinLaw().drawn(f"{task.instance_id}/7", "fact_fetcher", attempt)
        try:
            workspace.call("fact_fetcher", {})
            met = None
        except ToolError as error:
            met = error.code
        assert met == code


def test_a_kind_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="did you mean 'live'"):
        ApiWorld("liv")


LAW = TwinLaw(errors={"INVALID_INPUT": 3.0, "RATE_LIMIT_ERROR": 1.0}, median_seconds=0.01)
APIS = [find_api(name) for name in ("joke_fetcher", "place_finder", "word_fetcher")]


def lines(codes, seconds, tool="joke_fetcher"):
    return [{"tool": tool, "error": code, "seconds": second} for code, second in zip(codes, seconds, strict=True)]


def test_the_figures_are_those_of_their_definitions():
    calls = lines([None, None, "TIMEOUT", None, "INVALID_INPUT", None], [1.0, 2.0, 30.0, 3.0, 4.0, 5.0])
    calls += lines([None] * 4, [1.0, 1.0, 1.0, 1.0], "word_fetcher")
    calls += lines(["TIMEOUT"] * 2, [30.0, 30.0], "book_finder")
    found = assessed(calls)
    dead, joke, word = found.apis
    assert (joke.calls, joke.successes, joke.errors) == (6, 4, {"TIMEOUT": 1, "INVALID_INPUT": 1})
    assert joke.seconds[0] == 3.0  # of 1 to 5: what never came is no answer
    assert joke.variation == pytest.approx((4.0 - 2.0) / 3.0)
    assert (joke.low, joke.high) == pytest.approx((0.2228, 0.9567), abs=1e-4)  # Clopper and Pearson, 4 of 6
    assert [row.is_selected for row in found.apis] == [False, True, False]
    assert (word.rate, word.high, word.variation) == (1.0, 1.0, 0.0)
    assert dead.rate == 0.0
    assert math.isnan(dead.seconds[0])
    assert found.success.value == pytest.approx(8 / 12)
    assert found.errors == {"TIMEOUT": 3, "INVALID_INPUT": 1}
    assert json.dumps(found.to_mapping(), allow_nan=False)


@pytest.mark.parametrize(("seconds", "selected"), [([1.0, 1.0, 1.1, 1.1], False), ([1.0, 1.5, 3.0, 2.0], True)])
def test_an_api_whose_latency_hardly_varies_is_not_selected(seconds, selected):
    assert assessed(lines([None, "INVALID_INPUT", None, None], seconds)).apis[0].is_selected is selected


def test_a_run_that_was_killed_is_resumed_and_no_call_is_made_twice(tmp_path):
    whole = assess(APIS, 8, law=LAW, out=tmp_path / "whole")
    assess(APIS, 8, law=LAW, out=tmp_path / "cut")
    path = tmp_path / "cut" / "calls.jsonl"
    text = path.read_bytes()
    path.write_bytes(text[: len(text) // 2])
    kept = path.read_bytes().rpartition(b"\n")[0].split(b"\n")
    resumed = assess(APIS, 8, law=LAW, out=tmp_path / "cut")
    assert path.read_bytes().split(b"\n")[: len(kept)] == kept
    made = [(line["tool"], line["attempt"]) for line in map(json.loads, path.read_text().splitlines())]
    assert sorted(made) == sorted({(api.name, number) for api in APIS for number in range(8)})
    assert [(row.successes, row.errors) for row in resumed.apis] == [(row.successes, row.errors) for row in whole.apis]
    assert json.loads((tmp_path / "cut" / "assessment.json").read_text())["errors"] == dict(resumed.errors)


def test_a_full_disk_is_one_line_and_what_was_finished_is_resumed(tmp_path, monkeypatch):
    write = JsonLinesWriter.write

    def until_full(writer, value):
        if writer.path.read_bytes().count(b"\n") == 5:
            raise StoreError("the disk is full")
        write(writer, value)

    with monkeypatch.context() as patch:
        patch.setattr(JsonLinesWriter, "write", until_full)
        with pytest.raises(StoreError, match="the disk is full"):
            assess(APIS, 4, law=LAW, out=tmp_path)
    assert (tmp_path / "calls.jsonl").read_bytes().count(b"\n") == 5
    assert sum(row.calls for row in assess(APIS, 4, law=LAW, out=tmp_path).apis) == 12


def test_the_outcomes_are_those_that_the_law_draws(tmp_path):
    found = assess(APIS, 12, law=LAW, out=tmp_path)
    for row in found.apis:
        drawn = [LAW.drawn("assess", row.api, number)[0] for number in range(12)]
        assert row.successes == drawn.count(None)
        assert dict(row.errors) == {
            code: drawn.count(code) for code in ("INVALID_INPUT", "RATE_LIMIT_ERROR") if code in drawn
        }


def test_a_folder_of_another_assessment_is_refused(tmp_path):
    assess(APIS[:1], 2, law=LAW, out=tmp_path)
    with pytest.raises(StoreError, match="calls is 2 there and 3 here"):
        assess(APIS[:1], 3, law=LAW, out=tmp_path)
    with pytest.raises(InvalidInputError, match="no API to assess"):
        assess([], 3, out=tmp_path)
    with pytest.raises(InvalidInputError, match="calls is 0"):
        assess(APIS, 0, out=tmp_path)
