"""The folder of a run: it resumes where it stopped, refuses what is not the same run, and keeps replies under way."""

import copy
import dataclasses
import functools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim import run_folder
from resilisim.chat import ChatMessage, ChatReply, ChatRequest, TokenUsage, ToolCall
from resilisim.errors import StoreError
from resilisim.evaluation.run.store import EpisodeJournal, JournalFolder, RunStore, read_manifest, read_records
from resilisim.evaluation.table.facts import read_facts
from resilisim.provenance import content_hash, encode_json_line
from tests.evaluation.synthetic import synthetic_run

ARGUMENTS = {"environment": {"base": 0.8, "salt": "s"}, "seeds": (0, 1), "benchmark": {"version": "v1"}}
RECORDS = [
    {**record, "manifest": content_hash(ARGUMENTS)}
    for record in synthetic_run(num_tasks=1, num_seeds=6, prompts=("optimal",), policies=("random",))
]


def opened(folder, **options):
    return RunStore(folder, ARGUMENTS, 6, **options)


def write(folder, *records):
    """Put records into a folder behind the store's back."""
    if not folder.exists():
        opened(folder).close()
    (folder / "episodes.jsonl").write_bytes(b"".join(encode_json_line(record) for record in records))


def test_a_second_opening_knows_what_is_finished(tmp_path):
    with opened(tmp_path / "run") as store:
        for record in RECORDS[1:4]:
            store.append_encoded(encode_json_line(record), record["index"])
    seen = []
    with opened(tmp_path / "run", on_record=seen.append) as store:
        assert [store.is_finished(index) for index in range(6)] == [False, True, True, True, False, False]
        assert (store.num_finished, seen) == (3, RECORDS[1:4])
        with pytest.raises(StoreError, match="episode 2 is already"):
            store.append_encoded(encode_json_line(RECORDS[2]), 2)
    assert list(read_records(tmp_path / "run")) == RECORDS[1:4]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"environment": {"base": 0.9, "salt": "s"}}, r"environment\.base is 0\.8 there and 0\.9 here"),
        ({"environment": {"base": 0.8, "salt": "\ud800"}}, r'salt is "s" there and "\\ud800" here'),
        ({"benchmark": {"version": "v2"}}, r'benchmark\.version is "v1" there and "v2" here'),
        ({"seeds": [0, 1, 2]}, r"seeds is \[0, 1\] there and \[0, 1, 2\] here"),
        ({"more": 1}, "more is absent there and 1 here"),
    ],
)
def test_another_run_is_refused_naming_the_first_difference(tmp_path, changes, expected):
    opened(tmp_path).close()
    with pytest.raises(StoreError, match=rf"^[^\n]*{expected}[^\n]*$"):
        RunStore(tmp_path, {**ARGUMENTS, **changes}, 6)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ([{**RECORDS[0], "manifest": "1" * 64}], "episode 0 in .* belongs to another run than manifest.json describes"),
        ([{**RECORDS[0], "index": 6}], "outside this run of 6"),
        ([RECORDS[0], {**RECORDS[0], "outcome": 1}], "lines 1 and 2 of .* are both episode 0, and differ"),
        ([{**RECORDS[0], "schema": "x"}], "line 1 of .*: it has the schema 'x', expected 'resilisim-episode-1'"),
    ],
)
def test_records_that_cannot_be_of_this_run_are_refused(tmp_path, wrong, expected):
    write(tmp_path / "run", *wrong)
    with pytest.raises(StoreError, match=expected):
        opened(tmp_path / "run")
    if "another run" in expected:
        with pytest.raises(StoreError, match=expected):
            read_facts(tmp_path / "run")
    # The refusal let go of the file: it can be mended and opened again.
    write(tmp_path / "run", RECORDS[0])
    opened(tmp_path / "run").close()


GONE = object()
# What is changed in a record (a path of keys and the value there, or no value to take it away), and the refusal.
MALFORMED = [
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
    (("schema",), "other", "is not an episode: it has the schema 'other', expected 'resilisim-episode-1'"),
]


@pytest.mark.parametrize(("place", "value", "expected"), MALFORMED)
def test_lines_that_are_no_episodes_are_named(tmp_path, place, value, expected):
    changed = copy.deepcopy(RECORDS[1])
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    if value is GONE:
        del inner[place[-1]]
    write(tmp_path / "run", RECORDS[0], changed)
    with pytest.raises(StoreError, match=rf"^line 2 of .*episodes\.jsonl,? {expected}[^\n]*$"):
        list(read_records(tmp_path / "run"))
    with pytest.raises(StoreError, match="line 2"):
        opened(tmp_path / "run")


def test_an_episode_whose_agent_is_not_whole_is_named_by_readers_of_results(tmp_path):
    write(tmp_path / "run", {**RECORDS[0], "agent": {}})
    with pytest.raises(StoreError, match=r"^line 1 of .*, field 'agent', field 'architecture': is missing$"):
        read_facts(tmp_path / "run")


def test_folders_that_hold_no_run_are_named(tmp_path, monkeypatch):
    run, manifest = tmp_path / "run", tmp_path / "run" / "manifest.json"
    with pytest.raises(StoreError, match=r"not a folder of results: it does not exist"):
        list(read_records(run))
    with monkeypatch.context() as patch:
        patch.setattr(run_folder.os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space")))
        with pytest.raises(StoreError, match="disk is full"):
            opened(run)
        assert list(run.iterdir()) == []  # no manifest is left half written
    (run / "episodes.jsonl").touch()
    with pytest.raises(StoreError, match=r"episodes\.jsonl but no manifest\.json"):
        opened(run)
    for text, expected in (("{", "is not JSON"), ("{}", "does not have the schema")):
        manifest.write_text(text)
        with pytest.raises(StoreError, match=expected):
            read_manifest(run)
    with pytest.raises(StoreError, match=r"episodes\.jsonl is a file: expected the folder of a run"):
        read_manifest(run / "episodes.jsonl")
    with pytest.raises(StoreError, match="cannot make the folder"):
        opened(run / "episodes.jsonl" / "run")
    manifest.unlink()
    (run / "episodes.jsonl").unlink()
    opened(run).close()
    (run / "episodes.jsonl").unlink()  # as if the run had been stopped right after its manifest
    assert list(read_records(run)) == []
    content = json.loads(manifest.read_text())
    content["arguments"]["seeds"] = [7]
    manifest.write_text(json.dumps(content))
    with pytest.raises(StoreError, match="was changed"):
        opened(run)


REQUESTS = [ChatRequest((ChatMessage("user", f"question {number}"),), cache_scope=f"e#{number}") for number in range(4)]
REPLIES = [
    ChatReply(f"answer {number}\n", (ToolCall("c", "f", "{}"),), TokenUsage(3, 4), latency_seconds=0.5)
    for number in range(4)
]


def journal_of(folder, identity="model", index=0):
    journals = JournalFolder(folder)
    return EpisodeJournal(journals.kept(index), identity, functools.partial(journals.write, index))


def filled(folder):
    journal = journal_of(folder)
    for number, request in enumerate(REQUESTS):
        assert journal.recall(number, request) is None
        journal.keep(number, request, REPLIES[number])
    return JournalFolder(folder).path(0)


def test_what_is_kept_is_taken_again_for_the_same_questions_to_the_same_model(tmp_path):
    path = filled(tmp_path / "folder")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["number"], line["reply"]["text"]) for line in lines] == [(n, f"answer {n}\n") for n in range(4)]
    journal = journal_of(tmp_path / "folder")
    assert [journal.recall(number, request) for number, request in enumerate(REQUESTS)] == REPLIES
    assert journal.recall(4, REQUESTS[0]) is None
    assert (journal.num_kept, journal.num_recalled) == (4, 4)
    assert journal_of(tmp_path / "folder", "another").recall(0, REQUESTS[0]) is None
    journal = journal_of(tmp_path / "folder")
    assert journal.recall(1, dataclasses.replace(REQUESTS[1], temperature=0.9)) is None
    assert journal.recall(2, REQUESTS[2]) is None  # what followed answered another conversation
    assert journal.recall(0, REQUESTS[0]) == REPLIES[0]
    journal.keep(1, REQUESTS[2], REPLIES[2])
    assert journal_of(tmp_path / "folder").recall(1, REQUESTS[2]) == REPLIES[2]  # nor does it stand in the file


@given(st.data())
def test_a_cut_file_gives_the_replies_that_are_whole_and_goes_on(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("cut")
    path = filled(folder)
    whole = path.read_bytes()
    length = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:length])
    ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    complete = sum(1 for end in ends if end <= length + 1)  # a line end alone may be missing
    journal = journal_of(folder)
    taken = [journal.recall(number, REQUESTS[number]) for number in range(4)]
    assert [reply for reply in taken if reply is not None] == REPLIES[:complete]
    for number in range(complete, 4):
        journal.keep(number, REQUESTS[number], REPLIES[number])
    if complete < 4:
        assert path.read_bytes() == whole


def test_a_disk_that_takes_nothing_costs_one_warning(tmp_path):
    (tmp_path / "unfinished").write_text("no folder")
    journal = journal_of(tmp_path)
    with pytest.warns(UserWarning, match="replies cannot be kept") as warned:
        journal.keep(0, REQUESTS[0], REPLIES[0])
    assert len(warned) == 1
    journal.keep(1, REQUESTS[1], REPLIES[1])  # without another warning
    assert journal.num_kept == 2


def test_journals_go_when_they_are_no_longer_needed(tmp_path):
    path, journals = filled(tmp_path), JournalFolder(tmp_path)
    journals.remove()
    assert path.exists()  # not empty: an unfinished episode
    for _ in range(2):
        journals.discard(0)
        journals.remove()
    assert not path.parent.exists()
