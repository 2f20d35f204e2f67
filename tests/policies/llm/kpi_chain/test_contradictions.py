"""Where the papers contradict themselves or each other: tests of the decisions in `docs/decisions.md`."""

from __future__ import annotations

import pytest

from resilisim.policies.llm.kpi_chain.entities import canonical_type
from tests.policies.llm.kpi_chain.chains import (
    answer_task,
    entity,
    events,
    extracted,
    given,
    plan_of,
    planned,
    play,
    reasoned,
    reasoning,
    ref,
    replanned,
    requests_of,
    searching,
    statuses,
    tool_task,
)

ONE_STEP = planned(tool_task("T1", "it", "final_answer"))
TWO_STEPS = planned(tool_task("T1", "it", "name"), answer_task("T2", "T1.name"))


@pytest.mark.parametrize(("confidence", "passes"), [(0.7, True), (0.69, False), (0.71, True)])
def test_a_confidence_equal_to_theta_is_enough(confidence, passes):
    answer, _ = play([ONE_STEP, extracted(confidence, final_answer="x")], searching("here"), replanning=False)
    assert (answer == "x") is passes


def test_a_single_confidence_goes_to_all_non_null_entities():
    plan = planned(tool_task("T1", "it", "a", "b", entity("c", required=False)), answer_task("T2", "T1.a", "T1.b"))
    _, run = play([plan, extracted(0.8, a="x", b="y", c=None), reasoned(final_answer="z")], searching("here"))
    found = events(run, "extraction")[0]["details"]["candidates"]
    assert {name: found[name]["confidence"] for name in "ab"} == {"a": 0.8, "b": 0.8}
    assert run.structure["memory"]["T1"] == {"a": "x", "b": "y"}


def test_a_confidence_for_each_entity():
    plan = planned(tool_task("T1", "it", "a", "b"), answer_task("T2", "T1.a", "T1.b"))
    answer, run = play([plan, extracted({"a": 0.9, "b": 0.4}, a="x", b="y")], searching("here"), replanning=False)
    assert answer is None
    assert events(run, "task_failed")[0]["text"] == "entity 'b' was found with confidence 0.4, below 0.7"


@pytest.mark.parametrize("name", ["expected_output_entities", "expected_output_parameters"])
def test_either_name_of_the_expected_entities(name):
    task = tool_task("T1", "it", "final_answer")
    task[name] = task.pop("expected_output_entities")
    assert play([planned(task), extracted(0.9, final_answer="x")], searching("here"))[0] == "x"


def test_both_names_must_not_differ():
    task = tool_task("T1", "it", "final_answer")
    same = {**task, "expected_output_parameters": task["expected_output_entities"]}
    differing = {**task, "expected_output_parameters": [entity("other")]}
    script = [plan_of(differing), planned(same, expect="differ"), extracted(0.9, final_answer="x")]
    assert play(script, searching("here"))[0] == "x"


def interpolating(value: str):
    return planned(tool_task("T1", "it", "name"), tool_task("T2", value, "final_answer", needs=("T1",)))


def test_interpolation_is_allowed_by_default_and_logged():
    script = [interpolating(f"{ref('T1.name')} of 1999"), extracted(0.9, name="Kim"), extracted(0.9, final_answer="x")]
    toolbox = searching("one", "two")
    _, run = play(script, toolbox)
    assert toolbox.calls[1] == ("search", {"query": "Kim of 1999"})
    assert events(run, "resolution")[0]["details"] == {"interpolated": ["T1.name"]}


def test_interpolation_can_be_forbidden():
    bad, good = interpolating(f"{ref('T1.name')} of 1999"), interpolating(ref("T1.name"))
    script = [bad, good, extracted(0.9, name="Kim"), extracted(0.9, final_answer="x")]
    toolbox = searching("one", "two")
    _, run = play(script, toolbox, interpolation="false")
    assert "mixes a reference with other text" in requests_of(run, "planner")[1]
    assert toolbox.calls[1] == ("search", {"query": "Kim"})


@pytest.mark.parametrize(
    ("value", "flag", "query"), [(ref("T1.name"), False, "Kim"), ("T1.name", True, "T1.name")], ids=["tags", "no tags"]
)
def test_the_tags_win_over_is_reference(value, flag, query):
    second = tool_task("T2", "", "final_answer", needs=("T1",), input_parameters=[given("query", value)])
    second["input_parameters"][0]["is_reference"] = flag
    script = [
        planned(tool_task("T1", "it", "name"), second),
        extracted(0.9, name="Kim"),
        extracted(1, final_answer="x"),
    ]
    toolbox = searching("one", "two")
    _, run = play(script, toolbox)
    assert toolbox.calls[1] == ("search", {"query": query})
    assert "the tags count" in events(run, "warning")[0]["text"]


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("int", "number"),
        ("Float", "number"),
        ("list", "array"),
        ("list[str]", "array"),
        ("array of strings", "array"),
        ("object", "dict"),
        ("dict[str, int]", "dict"),
        ("bool", "boolean"),
        ("text", "string"),
        ("string (optional)", "string"),
        ("banana", None),
    ],
)
def test_types_have_aliases(word, kind):
    assert canonical_type(word) == kind


@pytest.mark.parametrize(
    ("kind", "value", "passes"),
    [
        ("int", 5, True),
        ("number", "5", False),
        ("number", True, False),
        ("list", ["a"], True),
        ("list", "a", False),
        ("object", {"a": 1}, True),
        ("string", ["a"], False),
        ("bool", False, True),
        ("array", [], True),
        ("string", "", True),
    ],
)
def test_types_are_enforced(kind, value, passes):
    plan = planned(tool_task("T1", "it", entity("found", kind)), answer_task("T2", "T1.found"))
    script = [plan, extracted(0.9, found=value), *([reasoned(final_answer="x")] if passes else [])]
    answer, run = play(script, searching("here"), replanning=False)
    if passes:
        assert answer == "x"
        assert run.structure["memory"]["T1"]["found"] == value
    else:
        assert "expected" in events(run, "task_failed")[0]["text"]


@pytest.mark.parametrize("word", ["null", "'null'", '"None"', "None", "~", "", "NULL", '" none "'])
def test_every_word_for_null_means_missing(word):
    reply = f"confidence_score: 0.99\nextracted_entities:\n  final_answer: {word}\n"
    answer, run = play([ONE_STEP, reply], searching("here"), replanning=False)
    assert answer is None
    assert "was not found" in events(run, "task_failed")[0]["text"]


def test_justifications_before_the_result_are_passed_over():
    reply = "Justifications:\n1. a: b: [c\n2. status: failed\n\n" + reasoning(final_answer="y").split("\n\n")[1]
    answer, _ = play([TWO_STEPS, extracted(0.9, name="x"), reply], searching("here"))
    assert answer == "y"


def test_reasoning_needs_no_confidence_but_completion_values_and_types():
    start = [TWO_STEPS, extracted(1.0, name="x")]
    assert play([*start, reasoned(final_answer="y")], searching("here"), theta=1.0)[0] == "y"
    for bad in (reasoned(status="failed", final_answer="y"), reasoned(final_answer=None), reasoned(final_answer=["y"])):
        answer, run = play([*start, bad], searching("here"), replanning=False)
        assert answer is None
        assert run.transcript.first_failure()["component"] == "reasoner"


@pytest.mark.parametrize("role", ["extractor", "reasoner"])
def test_three_retries_of_unreadable_replies_then_a_failure_of_the_task(role):
    start = [TWO_STEPS] if role == "extractor" else [TWO_STEPS, extracted(0.9, name="x")]
    if role == "extractor":
        continuation = [tool_task("T1a", "again", "name"), answer_task("T2a", "T1a.name")]
        end = [extracted(0.9, name="x"), reasoned(final_answer="y")]
    else:
        continuation = [answer_task("T2a", "T1.name")]
        end = [reasoned(final_answer="y")]
    script = [*start, *["nonsense"] * 4, replanned(*continuation, expect=f"no reply of the {role}"), *end]
    answer, run = play(script, searching("here", "there"))
    assert answer == "y"
    assert len(events(run, "malformed_reply")) == 4
    assert run.transcript.counters[f"{role}_retries"] == 3


def test_replans_are_counted_by_lineage():
    def again(task_id: str):
        return replanned(tool_task(task_id, "it", "final_answer"))

    low = extracted(0.1, final_answer="x")
    script = [ONE_STEP, low, again("T1a"), low, again("T1b"), low, again("T1c"), low]
    answer, run = play(script, searching(*["here"] * 4))
    assert answer is None
    assert run.structure["replans"] == {"T1": 3}
    assert run.transcript.counters["replans"] == 3
    assert statuses(run) == dict.fromkeys(["T1", "T1a", "T1b", "T1c"], "failed")


def test_other_tasks_of_a_continuation_count_for_themselves():
    low = extracted(0.1, name="x")
    script = [
        TWO_STEPS,
        low,
        replanned(tool_task("T1a", "it", "name"), answer_task("T2a", "T1a.name")),
        extracted(0.9, name="x"),
        reasoned(final_answer=None),
        replanned(answer_task("T2b", "T1a.name")),
        reasoned(final_answer=None),
    ]
    answer, run = play(script, searching("here", "there"), replans=1)
    assert answer is None
    assert run.structure["replans"] == {"T1": 1, "T2": 1}


def test_the_merge_keeps_history_and_independent_tasks():
    plan = planned(
        tool_task("T1", "a", "name"),
        tool_task("T2", ref("T1.name"), "place", needs=("T1",)),
        tool_task("T3", "c", "year"),
        answer_task("T4", "T2.place", "T3.year"),
    )
    continuation = replanned(tool_task("T1a", "d", "name"), answer_task("T4a", "T1a.name", "T3.year"))
    script = [
        plan,
        extracted(0.1, name="x"),
        continuation,
        extracted(0.9, year="1999"),
        extracted(0.9, name="Kim"),
        reasoned(final_answer="Kim, 1999"),
    ]
    toolbox = searching("a", "c", "d")
    answer, run = play(script, toolbox)
    assert answer == "Kim, 1999"
    assert statuses(run) == {"T1": "failed", "T3": "done", "T1a": "done", "T4a": "done"}
    assert [call[1]["query"] for call in toolbox.calls] == ["a", "c", "d"]
    assert events(run, "replan")[0]["details"]["removed"] == ["T2", "T4"]


@pytest.mark.parametrize("option", [False, True])
def test_the_replanner_sees_the_raw_response_if_wanted(option):
    script = [ONE_STEP, extracted(0.1, final_answer="x"), *["nonsense"] * 4]
    _, run = play(script, searching("the raw response"), raw_response_to_replanner=option)
    assert ("the raw response" in requests_of(run, "replanner")[0]) is option
