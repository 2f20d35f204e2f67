"""Episodes: common luck, replay, failures that say why, ends, and the score."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.errors import InvalidInputError
from resilisim.simulator import FINISH, EndRules, Episode, Message, build_problem, execution
from resilisim.simulator.failures import possible_errors
from resilisim.simulator.messages import STOP
from resilisim.simulator.problem import outcome, success_probability
from resilisim.simulator.scoring import counted_executions, score_episode
from resilisim.tool_library import ErrorSpec, default_library
from tests.simulator.brute_force import small_library

LIBRARY = default_library()
PIPELINE = ["file_operations_reader", "data_processing_transformer", "file_operations_writer"]
PROBLEM = build_problem(LIBRARY, PIPELINE)

messages = st.one_of(
    st.sampled_from(LIBRARY.names).map(execution),
    st.sampled_from(["a", "b"]).map(lambda query: Message("search", query=query)),
    st.just(Message("rejected", tool="nope")),
    st.just(Message("format_error", text="hm")),
)


def play(problem, sent, seed=0, **options):
    episode = Episode(problem, "task", seed, **options)
    for message in sent:
        if episode.ended_by is None:
            episode.apply(message)
    return episode


@given(st.lists(messages, max_size=11), st.integers(0, 2**63 - 1))
def test_the_same_messages_under_the_same_seed_give_the_same_episode(sent, seed):
    assert play(PROBLEM, sent, seed).events == play(PROBLEM, sent, seed).events


@given(st.lists(messages, max_size=9), st.integers(0, 1000), st.sampled_from(LIBRARY.names))
def test_luck_depends_on_the_tool_and_its_count_alone(sent, seed, tool):
    # The k-th execution of a tool meets the same luck number whatever else happened: with the same probability it has
    # the same outcome, and with a higher one it cannot turn from success to failure.
    direct, detour = Episode(PROBLEM, "task", seed), play(PROBLEM, sent, seed)
    while direct.state.executions[LIBRARY.index(tool)] < detour.state.executions[LIBRARY.index(tool)]:
        if direct.ended_by is not None:
            return
        direct.apply(execution(tool))
    if any(episode.ended_by is not None or episode.state.turns_used == 10 for episode in (direct, detour)):
        return
    one, other = direct.apply(execution(tool)), detour.apply(execution(tool))
    assert one.attempt == other.attempt
    low, high = sorted((one, other), key=lambda event: event.success_probability)
    assert high.success or not low.success


@given(st.lists(messages, max_size=10), st.integers(0, 100))
def test_unexecuted_messages_change_nothing_but_turns(sent, seed):
    episode = Episode(PROBLEM, "task", seed)
    for message in sent:
        if episode.ended_by is not None or episode.state.turns_used == 10:
            break
        before = episode.state
        event = episode.apply(message)
        assert episode.state.turns_used == before.turns_used + 1
        if not event.executed:
            assert episode.state.status == before.status
            assert episode.state.executions == before.executions
            assert episode.state.counters[1:5] == before.counters[1:5]  # failures, row, place, order


def test_dependency_error_exactly_where_dependencies_are_to_blame():
    problem = build_problem(LIBRARY, ["computation_analyzer"])
    analyzer = LIBRARY.index("computation_analyzer")
    kinds = set()
    for seed in range(300):
        episode = Episode(problem, "task", seed)
        clean = 0.8
        event = episode.apply(execution("computation_analyzer"))
        with_dependencies = build_problem(small_library({"computation_analyzer": []}), ["computation_analyzer"])
        would_succeed = Episode(with_dependencies, "task", seed).apply(execution("computation_analyzer")).success
        if event.success:
            assert would_succeed
        elif would_succeed:
            assert event.failure.code == "DEPENDENCY_ERROR"
            assert event.failure.not_executed == ("data_processing_parser", "data_processing_aggregator")
        else:
            assert event.failure.code in {error.code for error in LIBRARY["computation_analyzer"].failure_errors}
        kinds.add(event.failure.code if event.failure else "success")
        assert success_probability(problem, Episode(problem, "t", 0).state, analyzer) < clean
    assert len(kinds) == 7


def test_dependency_error_tells_failed_from_not_executed():
    problem = build_problem(LIBRARY, ["computation_analyzer"], rules=EndRules(max_consecutive_failures=0))
    for seed in range(500):
        episode = Episode(problem, "task", seed)
        if episode.apply(execution("data_processing_parser")).success:
            continue
        failure = episode.apply(execution("computation_analyzer")).failure
        if failure is not None and failure.code == "DEPENDENCY_ERROR":
            assert failure.failed == ("data_processing_parser",)
            assert failure.not_executed == ("data_processing_aggregator",)
            return
    pytest.fail("no dependency error in 500 seeds")


@pytest.mark.parametrize("name", LIBRARY.names)
def test_transient_errors_change_what_failures_say_and_nothing_else(name):
    problem, codes = build_problem(LIBRARY, [name]), set()
    for seed in range(40):
        told, transient = (Episode(problem, "t", seed, errors=errors) for errors in ("documented", "transient"))
        for _ in range(3):
            one, other = told.apply(execution(name)), transient.apply(execution(name))
            assert (one.success, one.success_probability, one.output) == (
                other.success,
                other.success_probability,
                other.output,
            )
            if one.failure is not None and one.failure.code == "DEPENDENCY_ERROR":
                assert other.failure == one.failure
            elif other.failure is not None:
                codes.add(other.failure.code)
    documented = {error.code for error in LIBRARY[name].failure_errors}
    assert codes
    assert codes <= documented & {"TIMEOUT", "NETWORK_ERROR", "RATE_LIMIT_ERROR", "OPERATION_FAILED"}


def test_a_tool_that_documents_no_transient_error_fails_by_a_timeout():
    only_input = replace(LIBRARY["utility_helper"], errors=(ErrorSpec("INVALID_INPUT"),))
    assert [error.code for error in possible_errors(only_input)] == ["INVALID_INPUT"]
    assert [error.code for error in possible_errors(only_input, "transient")] == ["TIMEOUT"]


@pytest.mark.parametrize("name", LIBRARY.names)
def test_executions_return_what_is_documented(name):
    problem = build_problem(LIBRARY, [name])
    event = next(event for seed in range(100) if (event := Episode(problem, "t", seed).apply(execution(name))).success)
    assert set(event.output) == {value.name for value in LIBRARY[name].returns}
    types = {"object": dict, "array": list, "string": str, "boolean": bool, "number": float, "integer": int}
    for value in LIBRARY[name].returns:
        assert isinstance(event.output[value.name], types[value.type])
    # What a success leaves no choice about.
    for value, certain in {"success": True, "status_code": 200, "violations": [], "valid": True}.items():
        assert event.output.get(value, certain) == certain
    failures = [Episode(problem, "task", seed).apply(execution(name)).failure for seed in range(40)]
    assert not any("{" in failure.message for failure in failures if failure is not None)  # slots are filled


def test_verbose_outputs_exceed_three_thousand_tokens():
    episode = next(
        episode
        for seed in range(100)
        if (episode := play(PROBLEM, [execution("file_operations_reader")], seed, payload="verbose")).events[0].success
    )
    # No tokenizer makes fewer tokens than there are words and numbers.
    words = json.dumps(episode.events[0].output).replace('"', " ").replace(":", " ").replace(",", " ").split()
    assert len(words) > 3000


def test_ends():
    reader = execution("file_operations_reader")
    never = build_problem(small_library({"a": [], "b": ["a"]}, {"a": 1e-12}), ["a"])
    assert play(never, [execution("a")] * 10).ended_by == "consecutive_failures"
    assert len(play(never, [execution("a")] * 10).events) == 5
    off = build_problem(never.library, ["a"], rules=EndRules(max_consecutive_failures=0))
    episode = play(off, [execution("a")] * 10)
    assert episode.ended_by is None
    assert episode.apply(execution("a")).executed is False
    assert episode.ended_by == "turns"
    assert play(PROBLEM, [FINISH]).ended_by == "completion"
    assert play(PROBLEM, [STOP]).ended_by == "stopped"
    search, other = Message("search", query="x"), Message("search", query="y")
    assert play(PROBLEM, [search] * 4).ended_by == "loop"
    assert play(PROBLEM, [search, search, search, other, search, search, search]).ended_by is None
    always = build_problem(small_library({"a": []}, {"a": 1.0}), ["a"])
    repeated = play(always, [execution("a")] * 9)
    assert repeated.ended_by == "loop"
    assert len(repeated.events) == 5  # the first success is progress, the next four are not
    assert play(PROBLEM, [reader] * 3).ended_by is None


def test_closing_message_counts_only_as_a_signal():
    always = build_problem(
        small_library({"a": [], "b": []}, {"a": 1.0, "b": 1.0}), ["a"], rules=EndRules(loop_length=0)
    )
    full = [execution("a")] * 10
    assert outcome(always, play(always, [*full, FINISH]).state) == 1
    late = play(always, [execution("b")] * 10 + [execution("a")])
    assert late.ended_by == "turns"
    assert outcome(always, late.state) == 0


def test_an_ended_episode_takes_no_more_messages():
    episode = play(PROBLEM, [FINISH])
    with pytest.raises(RuntimeError, match="reset"):
        episode.apply(FINISH)


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_seeds_out_of_range_are_refused(seed):
    with pytest.raises(InvalidInputError, match=str(seed)):
        Episode(PROBLEM, "task", seed)


ABC = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("succeeded", "ended_by", "outputs", "level"),
    [
        ("abc", "completion", ["c"], "full_success"),
        ("abc", "stopped", ["c"], "full_success"),
        ("abc", "turns", ["c"], "partial_success"),
        ("abc", "loop", ["c"], "failure"),
        ("abc", "consecutive_failures", ["c"], "failure"),
        ("acb", "completion", [], "failure"),
        ("acb", "completion", ["c"], "partial_success"),
        ("ab", "completion", [], "partial_success"),
        ("ba", "completion", [], "failure"),
        ("a", "completion", [], "failure"),
        ("", "completion", ["c"], "failure"),
        ("c", "completion", ["c"], "failure"),
        ("xaybzc", "completion", ["c"], "full_success"),
    ],
)
def test_levels(succeeded, ended_by, outputs, level):
    score = score_episode(ABC, outputs, "custom", [(tool, True, None) for tool in succeeded], ended_by)
    assert score.level == level
    assert score.coverage == pytest.approx(len(set(succeeded) & set(ABC)) / 3)


def test_minimum_depends_on_the_type():
    done = [("a", True, None), ("b", True, None)]
    five = ["a", "b", "c", "d", "e"]
    assert score_episode(five, [], "basic_file_processing", done, "turns").level == "partial_success"
    assert score_episode(five, [], "complex_validation_pipeline", done, "turns").level == "failure"
    assert score_episode(five, [], "unknown kind", done, "turns").level == "failure"  # half of 5, rounded up, is 3


def test_only_sound_outputs_count_and_a_tool_counts_as_the_one_that_it_stands_in_for():
    law = {"equivalents": {"read": ["scan"], "write": ["send"]}}
    calls = [
        ("read", True, "corrupt"),
        ("write", True, "corrupt"),
        ("scan", True, "success"),
        ("write", True, "success"),
        ("send", True, "corrupt"),
        ("log", False, "failure"),
    ]
    counted = counted_executions(calls, ["read", "write"], law)
    assert counted == [
        ("read", True),
        ("write", True),
        ("read", True),
        ("write", True),
        ("write", True),
        ("log", False),
    ]
    assert score_episode(["read", "write"], ["write"], "custom", calls, "completion", law).level == "full_success"
    replaced = [*calls, ("scan", True, "corrupt")]  # a later output takes the place of a sound one
    assert ("read", True) not in counted_executions(replaced, ["read", "write"], law)
    assert counted_executions([("read", True, None)], ["read"], {}) == [("read", True)]
