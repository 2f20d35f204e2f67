"""The folder of a run: it resumes where it stopped, refuses what is not the same run, and keeps replies under way."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim import run_folder
from resilisim.chat import ChatMessage, ChatReply, ChatRequest, TokenUsage, ToolCall
from resilisim.errors import StoreError
from resilisim.evaluation import evaluate
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.run.store import (
    EpisodeJournal,
    RunStore,
    discard_journal,
    discard_journals,
    journal_path,
    read_manifest,
    read_records,
)
from resilisim.evaluation.table.facts import read_facts
from resilisim.provenance import content_hash, encode_json_line
from tests.evaluation.synthetic import synthetic_run
from tests.evaluation.toy_policies import toy_tasks

ARGUMENTS: dict[str, Any] = {"environment": {"base": 0.8, "salt": "s"}, "seeds": [0, 1], "benchmark": {"version": "v1"}}


def some_records(count: int = 6) -> list[EpisodeRecord]:
    """Return records that belong to ARGUMENTS."""
    run = synthetic_run(num_tasks=1, num_seeds=count, prompts=("optimal",), policies=("random",))
    return [{**record, "manifest": content_hash(ARGUMENTS)} for record in run]


def test_a_second_opening_knows_what_is_finished(tmp_path: Path) -> None:
    records = some_records()
    with RunStore(tmp_path / "run", ARGUMENTS, 6) as store:
        for record in records[1:4]:
            store.append_encoded(encode_json_line(record), record["index"])
    seen: list[EpisodeRecord] = []
    with RunStore(tmp_path / "run", ARGUMENTS, 6, on_record=seen.append) as store:
        assert [store.is_finished(index) for index in range(6)] == [False, True, True, True, False, False]
        assert store.num_finished == 3
        assert seen == records[1:4]
        with pytest.raises(StoreError, match="episode 2 is already"):
            store.append_encoded(encode_json_line(records[2]), 2)
    assert list(read_records(tmp_path / "run")) == records[1:4]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"environment": {"base": 0.9, "salt": "s"}}, r"environment\.base is 0\.8 there and 0\.9 here"),
        ({"benchmark": {"version": "v2"}}, r'benchmark\.version is "v1" there and "v2" here'),
        ({"seeds": [0, 1, 2]}, r"seeds is \[0, 1\] there and \[0, 1, 2\] here"),
        ({"more": 1}, "more is absent there and 1 here"),
    ],
)
def test_another_run_is_refused_naming_the_first_difference(
    tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    RunStore(tmp_path, ARGUMENTS, 6).close()
    with pytest.raises(StoreError, match=expected) as refusal:
        RunStore(tmp_path, {**ARGUMENTS, **changes}, 6)
    assert "\n" not in str(refusal.value)


def test_a_file_in_place_of_a_folder_is_named(tmp_path: Path) -> None:
    RunStore(tmp_path, ARGUMENTS, 6).close()
    with pytest.raises(StoreError, match=r"episodes\.jsonl is a file: expected the folder of a run"):
        read_manifest(tmp_path / "episodes.jsonl")


def test_the_same_run_is_not_refused_when_its_arguments_hold_tuples(tmp_path: Path) -> None:
    RunStore(tmp_path, {"seeds": (0, 1)}, 6).close()
    RunStore(tmp_path, {"seeds": (0, 1)}, 6).close()


def write(folder: Path, *records: EpisodeRecord) -> None:
    """Put records into a folder behind the store's back."""
    if not folder.exists():
        RunStore(folder, ARGUMENTS, 6).close()
    (folder / "episodes.jsonl").write_bytes(b"".join(encode_json_line(record) for record in records))


def test_records_that_cannot_be_of_this_run_are_refused(tmp_path: Path) -> None:
    record = some_records()[0]
    for name, wrong, expected in (
        ("other", [{**record, "manifest": "1" * 64}], "belongs to another run"),
        ("outside", [{**record, "index": 6}], "outside this run of 6"),
        ("twice", [record, record], "episode 0 stands twice"),
        (
            "schema",
            [{**record, "schema": "other"}],
            "line 1 of .*: it has the schema 'other', expected 'resilisim-episode-1'",
        ),
    ):
        write(tmp_path / name, *wrong)
        with pytest.raises(StoreError, match=expected):
            RunStore(tmp_path / name, ARGUMENTS, 6)
        # The refusal let go of the file: it can be mended and opened again.
        write(tmp_path / name, record)
        RunStore(tmp_path / name, ARGUMENTS, 6).close()


GONE = object()
# What is changed in a record (a path of keys and the value there, or no value to take it away), and the refusal.
MALFORMED: list[tuple[tuple[Any, ...], Any, str]] = [
    (("optimum_gap",), GONE, "field 'optimum_gap': is missing; expected a number"),
    (("seed",), "0", "field 'seed': got \"0\"; expected a whole number"),
    (("seed",), 10**30, "field 'seed': got 10+...; expected a whole number, at least 0 and at most"),
    (("planner",), 3, "field 'planner': got 3; expected a string or null"),
    (("steps",), [], r"field 'steps': got \[\]; expected a non-empty array"),
    (("steps", 0), 5, "field 'steps', item 1: got 5; expected an object"),
    (("steps", 0, "luck"), GONE, "field 'steps', item 1, field 'luck': is missing; expected a number"),
    (("steps", 0, "luck"), 1e308, "field 'steps', item 1, field 'luck': got 1e.308; expected a number, at least -1"),
    (("score",), {}, "field 'score', field 'level': is missing; expected a string"),
    (("luck",), 1e308, "field 'luck': got 1e.308; expected a number, at least -1,000,000"),
    (("index",), -1, "field 'index': got -1; expected a whole number, at least 0"),
    (("index",), True, "field 'index': got true; expected a whole number"),
    (("outcome",), 2, "field 'outcome': got 2; expected a whole number, at least 0 and at most 1"),
    (("required_tools", 0), 5, "field 'required_tools', item 1: got 5; expected a string"),
    (("flaw",), {"type": 5}, "field 'flaw', field 'type': got 5; expected a string"),
    (("agent",), {"calls": 5}, "field 'agent', field 'calls': got 5; expected an array"),
    (
        ("agent",),
        {"calls": [{"reply": {"usage": 5}}]},
        "field 'agent', field 'calls', item 1, field 'reply', field 'usage': got 5; expected an object",
    ),
    (("agent",), {"restarts": "x"}, "field 'agent', field 'restarts': got \"x\"; expected a whole number"),
    (("losses",), {"x": None}, "field 'losses', field 'x': got null; expected a number"),
    (("schema",), "other", "is no episode: it has the schema 'other', expected 'resilisim-episode-1'"),
]


@pytest.mark.parametrize(("place", "value", "expected"), MALFORMED)
def test_lines_that_are_no_episodes_are_named(
    tmp_path: Path, place: tuple[Any, ...], value: Any, expected: str
) -> None:
    first, second = copy.deepcopy(some_records(2))
    inner: Any = second
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    if value is GONE:
        del inner[place[-1]]
    write(tmp_path / "run", first, second)
    with pytest.raises(StoreError, match=rf"^line 2 of .*episodes\.jsonl,? {expected}") as refusal:
        list(read_records(tmp_path / "run"))
    assert "\n" not in str(refusal.value)
    with pytest.raises(StoreError, match="line 2"):
        RunStore(tmp_path / "run", ARGUMENTS, 6)


def test_text_that_utf8_does_not_have_is_stored_and_found_again(tmp_path: Path) -> None:
    arguments = {**ARGUMENTS, "salt": "half \ud800"}
    record = {**some_records()[0], "manifest": content_hash(arguments), "task_type": "\udfff"}
    for _ in range(2):
        with RunStore(tmp_path, arguments, 6) as store:
            if not store.is_finished(record["index"]):
                store.append_encoded(encode_json_line(record), record["index"])
    for name in ("manifest.json", "episodes.jsonl"):
        (tmp_path / name).read_text(encoding="utf-8")
    assert list(read_records(tmp_path)) == [record]
    assert read_manifest(tmp_path)["arguments"] == arguments
    with pytest.raises(StoreError, match=r'salt is "half \\ud800" there and "s" here'):
        RunStore(tmp_path, {**ARGUMENTS, "salt": "s"}, 6)


def test_a_folder_that_is_gone_has_no_records_to_offer(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no folder of results"):
        list(read_records(tmp_path / "gone"))
    RunStore(tmp_path / "run", ARGUMENTS, 6).close()
    (tmp_path / "run" / "episodes.jsonl").unlink()  # as if the run had been stopped right after its manifest
    assert list(read_records(tmp_path / "run")) == []


def test_folders_that_hold_no_run_are_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"holds no manifest\.json"):
        read_manifest(tmp_path)
    (tmp_path / "episodes.jsonl").touch()
    with pytest.raises(StoreError, match=r"episodes\.jsonl but no manifest\.json"):
        RunStore(tmp_path, ARGUMENTS, 6)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(StoreError, match="is not JSON"):
        read_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(StoreError, match="does not have the schema"):
        read_manifest(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot make the folder"):
        RunStore(tmp_path / "file" / "run", ARGUMENTS, 6)


def test_a_manifest_that_was_changed_by_hand_is_refused(tmp_path: Path) -> None:
    RunStore(tmp_path, ARGUMENTS, 6).close()
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["arguments"]["seeds"] = [7]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match="was changed"):
        RunStore(tmp_path, ARGUMENTS, 6)


def test_no_manifest_is_left_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_folder.os, "fsync", full)
    with pytest.raises(StoreError, match="disk is full"):
        RunStore(tmp_path, ARGUMENTS, 6)
    assert list(tmp_path.iterdir()) == []


def test_facts_of_a_folder_with_an_episode_of_another_run_are_refused(tmp_path: Path) -> None:
    for name, policy in (("a", "Quitter"), ("b", "Reading")):
        evaluate(f"tests.evaluation.toy_policies:{policy}", toy_tasks(1), out=tmp_path / name)
    with (tmp_path / "a" / "episodes.jsonl").open("ab") as file:
        file.write((tmp_path / "b" / "episodes.jsonl").read_bytes())
    with pytest.raises(StoreError, match=r"episode 0 in .*episodes\.jsonl belongs to another run than manifest\.json"):
        read_facts(tmp_path / "a")


def test_an_episode_whose_agent_is_not_whole_is_named_by_readers_of_results(tmp_path: Path) -> None:
    with RunStore(tmp_path, ARGUMENTS, 6) as store:
        record = {**some_records()[0], "manifest": content_hash(ARGUMENTS), "agent": {}}
        store.append_encoded(encode_json_line(record), record["index"])
    with pytest.raises(StoreError, match=r"episode 0 of .* lacks the field 'restarts'"):
        read_facts(tmp_path)


REQUESTS = [ChatRequest((ChatMessage("user", f"question {number}"),), cache_scope=f"e#{number}") for number in range(4)]
REPLIES = [
    ChatReply(f"answer {number}\n", (ToolCall("c", "f", "{}"),), TokenUsage(3, 4), latency_seconds=0.5)
    for number in range(4)
]


def filled(path: Path, count: int = 4) -> Path:
    with EpisodeJournal(path, "model") as journal:
        for number in range(count):
            assert journal.recall(number, REQUESTS[number]) is None
            journal.keep(number, REQUESTS[number], REPLIES[number])
    return path


def test_what_is_kept_is_taken_again(tmp_path: Path) -> None:
    path = filled(tmp_path / "folder" / "0.jsonl")
    journal = EpisodeJournal(path, "model")
    assert [journal.recall(number, request) for number, request in enumerate(REQUESTS)] == REPLIES
    assert journal.recall(4, REQUESTS[0]) is None
    assert (journal.num_kept, journal.num_recalled) == (4, 4)


def test_another_model_or_another_request_gets_nothing(tmp_path: Path) -> None:
    path = filled(tmp_path / "0.jsonl")
    assert EpisodeJournal(path, "another").recall(0, REQUESTS[0]) is None
    journal = EpisodeJournal(path, "model")
    assert journal.recall(0, REQUESTS[0]) == REPLIES[0]
    changed = dataclasses.replace(REQUESTS[1], temperature=0.9)
    assert journal.recall(1, changed) is None
    assert journal.recall(2, REQUESTS[2]) is None  # what followed answered another conversation


def test_a_journal_goes_on_where_it_was(tmp_path: Path) -> None:
    path = filled(tmp_path / "0.jsonl", count=2)
    with EpisodeJournal(path, "model") as journal:
        assert journal.recall(0, REQUESTS[0]) == REPLIES[0]
        assert journal.recall(1, REQUESTS[1]) == REPLIES[1]
        journal.keep(2, REQUESTS[2], REPLIES[2])
    again = EpisodeJournal(path, "model")
    assert [again.recall(number, REQUESTS[number]) for number in range(3)] == REPLIES[:3]


@given(st.data())
def test_a_cut_file_gives_the_replies_that_are_whole(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = filled(tmp_path_factory.mktemp("cut") / "0.jsonl")
    whole = path.read_bytes()
    length = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:length])
    complete = sum(1 for end in _line_ends(whole) if end <= length + 1)  # a line end alone may be missing
    journal = EpisodeJournal(path, "model")
    taken = [journal.recall(number, REQUESTS[number]) for number in range(4)]
    assert [reply for reply in taken if reply is not None] == REPLIES[:complete]
    with journal:
        for number in range(complete, 4):
            journal.keep(number, REQUESTS[number], REPLIES[number])
    if complete < 4:
        assert path.read_bytes() == whole


def _line_ends(text: bytes) -> list[int]:
    return [place + 1 for place, byte in enumerate(text) if byte == ord("\n")]


def test_a_disk_that_takes_nothing_costs_one_warning(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    journal = EpisodeJournal(blocked / "0.jsonl", "model")
    with pytest.warns(UserWarning, match="replies cannot be kept"):
        journal.keep(0, REQUESTS[0], REPLIES[0])
    journal.keep(1, REQUESTS[1], REPLIES[1])
    assert journal.num_kept == 2


def test_journals_go_when_they_are_no_longer_needed(tmp_path: Path) -> None:
    filled(journal_path(tmp_path, 7))
    discard_journals(tmp_path)
    assert journal_path(tmp_path, 7).exists()  # not empty: an unfinished episode
    discard_journal(tmp_path, 7)
    discard_journal(tmp_path, 7)
    discard_journals(tmp_path)
    assert not journal_path(tmp_path, 7).parent.exists()


def test_lines_are_json_that_says_which_call_it_was(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in filled(tmp_path / "0.jsonl").read_text().splitlines()]
    assert [line["number"] for line in lines] == [0, 1, 2, 3]
    assert lines[1]["reply"]["text"] == "answer 1\n"
