"""Law files: what they say is read, hashed and refused alike, wherever it comes from."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilisim import default_library
from resilisim.errors import InvalidInputError
from resilisim.simulator import (
    Broken,
    Corrupt,
    Drift,
    Duration,
    ErrorKinds,
    Latency,
    Law,
    Outage,
    RateLimit,
    build_problem,
    load_law,
    shipped_laws,
)
from resilisim.simulator.law import law_schema

PROBABILITIES = st.floats(0.0, 1.0)


@st.composite
def laws(draw: st.DrawFn) -> Law:
    """Draw a law with any of the parts."""
    groups = st.sampled_from(["category", "all", {"net": ("network_fetcher",)}])
    return Law(
        base=draw(st.floats(0.1, 1.0)),
        bases=draw(st.sampled_from([{}, {"utility_cache": 1}])),
        rate_limit=draw(st.none() | st.builds(RateLimit, st.integers(1, 9), st.integers(1, 60))),
        outage=draw(st.none() | st.builds(Outage, PROBABILITIES, PROBABILITIES, groups)),
        broken=draw(st.none() | st.builds(Broken, PROBABILITIES, st.sampled_from([None, ("network",)]))),
        corrupt=draw(st.none() | st.builds(Corrupt, PROBABILITIES, st.sampled_from(["payload", "validators"]))),
        drift=draw(st.none() | st.builds(Drift, st.floats(-1.0, 1.0))),
        error_kinds=draw(st.none() | st.builds(ErrorKinds, st.floats(0, 9), st.floats(0, 9), st.floats(0, 9))),
        latency=draw(st.none() | st.just(Latency((Duration(1, 0.5), Duration(9, 0.5)), timeout=5, budget=60))),
    )


@settings(max_examples=20)
@given(laws())
def test_what_a_law_says_comes_back_and_fits_the_schema(law: Law) -> None:
    content = {name: value for name, value in law.to_mapping().items() if name != "hash"}
    jsonschema.validate(content, law_schema())
    again = Law.from_mapping(json.loads(json.dumps(law.to_mapping())))
    assert (again, hash(again), again.content_hash) == (law, hash(law), law.content_hash)
    assert again.name == law.name or law.is_plain


@settings(max_examples=20)
@given(laws(), laws())
def test_laws_are_equal_if_and_only_if_their_hashes_are(one: Law, other: Law) -> None:
    assert (one == other) == (one.content_hash == other.content_hash)


def test_a_name_is_no_part_of_the_content() -> None:
    assert Law(name="a", description="b") == Law()
    assert Law(name="a").content_hash == Law().content_hash
    assert Law(drift=Drift(0)).content_hash != Law().content_hash


def test_a_plain_law_is_the_benchmark_law() -> None:
    benchmark, problem = load_law("benchmark"), build_problem(default_library(), ["network_fetcher"])
    assert benchmark.to_mapping() == Law().to_mapping()
    assert build_problem(default_library(), ["network_fetcher"], benchmark) is problem


@pytest.mark.parametrize("name", shipped_laws())
def test_shipped_laws_are_read(name: str, tmp_path: Path) -> None:
    law = load_law(name)
    assert law.name == name
    assert len(law.description) > 40
    path = tmp_path / "copy.json"
    path.write_text(json.dumps(law.to_mapping()))
    assert load_law(path) == law


MALFORMED = {
    "base: 0": "field 'base': got 0; expected a number above 0",
    "bass: 0.5": "unknown field 'bass': did you mean 'bases'?",
    "base: 0.5\nbase: 0.6": "the name 'base' stands twice",
    "base: [": "not valid YAML",
    "- base": "expected a mapping such as 'base: 0.8'",
    "rate_limit: {calls: 2}": "field 'rate_limit', field 'window': is missing",
    "rate_limit: {calls: 2.5, window: 3}": "field 'calls': got 2.5; expected a whole number",
    "rate_limit: {calls: 2, window: 3, per: tol}": "field 'per': got \"tol\"; did you mean 'tool'?",
    "rate_limit: {xyz: 2}": "field 'rate_limit': unknown field 'xyz': expected one of calls, window, per",
    "latency: {distributed: []}": "field 'latency': unknown field 'distributed': did you mean 'distribution'?",
    "outage: {begins: 0.1, ends: 0.2, groups: tool}": "field 'groups': got \"tool\"; expected one of category, all",
    "outage: {begins: 0.1, ends: 1.5}": "field 'ends': got 1.5; expected a number, at least 0",
    "broken: {probability: .nan}": "field 'probability': got \".nan\"; expected a number",
    "error_kinds: {input_codes: [A], access_codes: [A]}": "'A' stands in input_codes and in access_codes",
    "latency: {distribution: [{seconds: 1, probability: 0.5}]}": "sum to 0.5: expected 1",
    "bases: {utility_cache: 2}": "got 2; expected a number above 0",
    f"hash: '{'0' * 64}'": "expected 'ef7cd7d1",
}


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_law_file_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "law.yaml"
    path.write_text(text)
    with pytest.raises(InvalidInputError) as refusal:
        load_law(path)
    assert MALFORMED[text] in str(refusal.value)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_what_python_builds_is_checked_like_a_file() -> None:
    with pytest.raises(InvalidInputError, match="calls is 0: expected at least 1"):
        RateLimit(calls=0, window=3)
    with pytest.raises(InvalidInputError, match="did you mean 'benchmark'"):
        load_law("benchmrk")
    with pytest.raises(InvalidInputError, match="no law 'weekdays': expected benchmark"):
        load_law("weekdays")
