"""Patterns of two and three tools: which ones an episode holds, their scores, and what a tool extends."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.errors import InvalidInputError
from resilisim.policies.ppo.states import PatternLibrary, extract_patterns, pattern_confidence

TOOLS = st.sampled_from(["a", "b", "c", "d"])
EPISODES = st.lists(st.tuples(st.lists(TOOLS, max_size=6), st.floats(0.0, 1.0)), max_size=12)


def library(episodes: list[tuple[list[str], float]], max_patterns: int = 4096) -> PatternLibrary:
    return PatternLibrary(max_patterns=max_patterns).add(
        [sequence for sequence, _ in episodes], [score for _, score in episodes]
    )


def contains(sequence: list[str], pattern: tuple[str, ...]) -> bool:
    return any(tuple(sequence[start : start + len(pattern)]) == pattern for start in range(len(sequence)))


def test_extraction() -> None:
    assert extract_patterns([]) == extract_patterns(["a"]) == set()
    assert extract_patterns(["a", "b"]) == {("a", "b")}
    assert extract_patterns(["a", "b", "a", "b"]) == {("a", "b"), ("b", "a"), ("a", "b", "a"), ("b", "a", "b")}


def test_scores_are_means_over_episodes() -> None:
    mined = library([(["a", "b", "a", "b"], 1.0), (["a", "b"], 0.5), (["b", "c"], 0.9)])
    assert mined.scores(min_count=1) == {
        ("a", "b"): 0.75,  # the first episode holds it twice and counts once
        ("a", "b", "a"): 1.0,
        ("b", "a"): 1.0,
        ("b", "a", "b"): 1.0,
        ("b", "c"): 0.9,
    }
    assert mined.scores(min_count=2) == {("a", "b"): 0.75}
    assert mined.scores() == {}
    assert len(PatternLibrary()) == 0


@given(EPISODES)
def test_scores_follow_the_definition(episodes: list[tuple[list[str], float]]) -> None:
    scores = library(episodes).scores(min_count=1)
    for pattern in {pattern for sequence, _ in episodes for pattern in extract_patterns(sequence)} | set(scores):
        holding = [score for sequence, score in episodes if contains(sequence, pattern)]
        assert scores[pattern] == pytest.approx(sum(holding) / len(holding))
        assert len(pattern) in (2, 3)
    assert list(scores) == sorted(scores)


@given(EPISODES, EPISODES)
def test_adding_in_parts_is_adding_at_once(first: list[tuple[list[str], float]], then) -> None:
    before = library(first)
    totals = dict(before.totals)
    grown = before.add([sequence for sequence, _ in then], [score for _, score in then])
    assert grown == library(first + then)
    assert before.totals == totals


def test_the_most_frequent_patterns_are_kept_in_a_fixed_order() -> None:
    episodes = [(["d", "c"], 0.1), (["d", "c"], 0.1), (["b", "c"], 1.0), (["a", "b"], 0.5), (["c", "d"], 1.0)]
    assert list(library(episodes, max_patterns=3).scores(1)) == [("a", "b"), ("b", "c"), ("d", "c")]
    assert list(library(episodes, max_patterns=1).scores(1)) == [("d", "c")]


@given(EPISODES, st.integers(1, 5))
def test_the_size_is_capped_and_json_keeps_everything(episodes: list[tuple[list[str], float]], size: int) -> None:
    mined = library(episodes, size)
    assert len(mined) <= size
    read = PatternLibrary.from_mapping(json.loads(json.dumps(mined.to_mapping())))
    assert read == mined
    assert read.to_mapping() == mined.to_mapping()


def test_confidence_of_a_tool_that_extends_a_pattern() -> None:
    scores = {("a", "b"): 0.6, ("c", "a", "b"): 0.9, ("b", "c"): 0.4}
    assert pattern_confidence("b", ["c", "a"], scores) == 0.9
    assert pattern_confidence("b", ["d", "a"], scores) == 0.6
    assert pattern_confidence("b", ["a"], scores) == 0.6
    assert pattern_confidence("b", ["a", "d"], scores) == 0.0
    assert pattern_confidence("b", [], scores) == 0.0
    assert pattern_confidence("c", ["a", "b"], scores) == 0.4
    assert pattern_confidence("c", ["a", "b"], {}) == 0.0


@given(EPISODES, st.lists(TOOLS, max_size=4), TOOLS)
def test_confidence_follows_the_definition(episodes: list[tuple[list[str], float]], executed: list[str], tool) -> None:
    scores = library(episodes).scores(min_count=1)
    extended = [
        score
        for pattern, score in scores.items()
        if pattern[-1] == tool and tuple(executed[-(len(pattern) - 1) :]) == pattern[:-1]
    ]
    assert pattern_confidence(tool, executed, scores) == max(extended, default=0.0)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"patterns": []}, "field 'max_patterns': is missing"),
        ({"max_patterns": 0, "patterns": []}, "got 0; expected a whole number, at least 1"),
        (
            {"max_patterns": 9, "patterns": [{"tools": ["a"], "total": 1.0, "count": 1}]},
            "expected an array of strings of at least 2 items",
        ),
        ({"max_patterns": 9, "patterns": [{"tools": ["a", "b"], "total": "x", "count": 1}]}, "field 'total': got .x"),
        ({"max_patterns": 9, "patterns": [{"tools": ["a", "b"], "total": 1.0, "count": 0}]}, "field 'count': got 0"),
        ({"max_patterns": 9, "patterns": [{"tools": ["a", "b"], "total": 1.0, "count": 1}] * 2}, "stands there twice"),
        ({"max_patterns": 9, "pattern": []}, "did you mean 'patterns'"),
    ],
)
def test_unusable_libraries_are_refused(mapping: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        PatternLibrary.from_mapping(mapping)


def test_a_score_must_be_a_number() -> None:
    with pytest.raises(InvalidInputError, match="score of an episode is nan"):
        PatternLibrary().add([["a", "b"]], [float("nan")])
