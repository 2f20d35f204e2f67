from __future__ import annotations

import json
import math

import pytest

from resilisim.errors import InvalidInputError, StoreError
from resilisim.run_folder import JsonLinesWriter
from resilisim.worlds.apis import TwinLaw, assess, assessed, find_api

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
