"""Replies of episodes under way: what is kept, what is taken again, and what a kill or a full disk does to it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.chat import ChatMessage, ChatReply, ChatRequest, TokenUsage, ToolCall
from resilisim.evaluation.run.store import EpisodeJournal, discard_journal, discard_journals, journal_path

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
