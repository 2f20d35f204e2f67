"""`resilisim tasks enhance` against a real server on loopback, one that behaves and one that does not."""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter

import pytest

from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.enhancement.rewrite import RewriteMode
from resilisim.tasks.sources import read_tasks_file
from resilisim.tool_library.library import default_library
from resilisim.tool_library.retrieval import default_retriever
from tests.chat.loopback import (
    LoopbackServer,
    completion,
    cut_stream,
    empty_body,
    error,
    not_json,
    nothing,
    other_schema,
    rate_limited,
)
from tests.tasks.enhancement_answers import good_description, good_design, good_rewrite

KEY = "sk-secret-0123456789"
LIBRARY = default_library()
REWRITE = RewriteMode(LIBRARY, default_retriever(LIBRARY))
TASKS = benchmark_tasks()[:12]
PLACE_OF_QUESTION = {REWRITE.ask(task)[1].content: place for place, task in enumerate(TASKS)}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def place_of(seen):
    """Which task a request is about."""
    return PLACE_OF_QUESTION[seen.body["messages"][1]["content"]]


def well(seen):
    return completion(good_rewrite(TASKS[place_of(seen)]))


def options(server, out, folder, *more):
    return (
        *("tasks", "enhance", "--mode", "rewrite", "--model", "openai:small", "--base-url", server.base_url),
        *("--tasks", len(TASKS), "--out", out, "--cache", folder / "cache", *more),
    )


class Nowhere:
    """A server that no request may reach."""

    base_url = "http://127.0.0.1:1/v1"


def everything_in(folder):
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_rewriting_twice_gives_the_same_bytes_without_a_request(command, tmp_path):
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    with LoopbackServer(well) as server:
        outcome = command(*options(server, first, tmp_path, "--json", "--seed", 5, "--temperature", 0.5))
        assert outcome.json()["calls"] == outcome.json()["enhanced"] == len(server.requests) == 12
        again = command(*options(server, second, tmp_path, "--json", "--seed", 5, "--temperature", 0.5)).json()
        assert (again["calls"], again["cached_calls"]) == (0, 12)
        assert len(server.requests) == 12
        same = command(*options(server, second, tmp_path, "--json", "--seed", 5, "--temperature", 0.5)).json()
        assert (same["already_there"], same["enhanced"], same["cached_calls"]) == (12, 12, 0)
        text = command(*options(server, tmp_path / "c.jsonl", tmp_path, "--seed", 5, "--temperature", 0.5))
    assert first.read_bytes() == second.read_bytes() == (tmp_path / "c.jsonl").read_bytes()
    body = server.requests[0].body
    assert (body["model"], body["seed"], body["temperature"], body["max_tokens"]) == ("small", 5, 0.5, 1500)
    tasks = read_tasks_file(first, LIBRARY)
    assert [task.description for task in tasks] == [good_description(task) for task in TASKS]
    assert [task.original_description for task in tasks] == [task.description for task in TASKS]
    assert [task.instance_id for task in tasks] == [task.instance_id for task in TASKS]
    assert "enhanced" in text.out
    assert "0 calls, 12 answers from the cache" in text.err
    printed = outcome.out + outcome.err + text.out + text.err
    assert KEY not in printed
    assert KEY.encode() not in everything_in(tmp_path)


BAD_ANSWERS = {
    1: not_json(),
    2: other_schema(),
    3: empty_body(),
    4: nothing(),
    6: cut_stream(),
    7: error(500, f"wrong {KEY}"),
    8: rate_limited("0"),
    9: cut_stream(""),
    10: completion(""),
    11: completion("I would rather not."),
}


def test_whatever_the_endpoint_does_every_task_has_an_outcome(command, tmp_path):
    """Tasks 0 and 5 are answered well, 10 and 11 without use; the others get no answer, also not when asked again."""
    out = tmp_path / "a.jsonl"

    def badly(seen):
        return BAD_ANSWERS.get(place_of(seen)) or well(seen)

    with LoopbackServer(badly) as server:
        outcome = command(*options(server, out, tmp_path, "--retries", 1, "--json"))
    counts = outcome.json()
    assert {name: counts[name] for name in ("tasks", "enhanced", "refused", "failed", "refusals")} == {
        "tasks": 12,
        "enhanced": 2,
        "refused": 2,
        "failed": 8,
        "refusals": {"not_json": 2},
    }
    asked = Counter(place_of(seen) for seen in server.requests)
    assert asked == {0: 1, 5: 1, **dict.fromkeys(BAD_ANSWERS, 2)}
    tasks = read_tasks_file(out, LIBRARY)
    assert [task.metadata["enhancement"]["outcome"] for task in tasks] == [
        *("enhanced", "failed", "failed", "failed", "failed", "enhanced"),
        *("failed", "failed", "failed", "failed", "refused", "refused"),
    ]
    for task, original in zip(tasks, TASKS, strict=True):
        assert (task.description == original.description) == (original not in (TASKS[0], TASKS[5]))
        assert (task.inputs, task.required_tools) == (original.inputs, original.required_tools)
    assert KEY not in outcome.out + outcome.err
    assert KEY.encode() not in everything_in(tmp_path)


def test_an_endpoint_that_is_down_stops_the_run_in_one_line_and_is_gone_on_with(command, tmp_path):
    out, whole = tmp_path / "a.jsonl", tmp_path / "whole.jsonl"
    up = threading.Event()

    def down_after_three(seen):
        return well(seen) if place_of(seen) < 3 or up.is_set() else error(503, "maintenance")

    arguments = ("--retries", 0, "--concurrency", 1, "--give-up-after", 2)
    with LoopbackServer(down_after_three) as server:
        line = command(*options(server, out, tmp_path, *arguments)).refusal(code=3)
        assert "status 503: maintenance" in line
        assert "stopped after 2 tasks in a row" in line
        assert len(out.read_bytes().splitlines()) == 3
        up.set()
        resumed = command(*options(server, out, tmp_path, *arguments, "--json")).json()
        assert (resumed["already_there"], resumed["tasks"], resumed["enhanced"]) == (3, 12, 12)
        assert command(*options(server, whole, tmp_path, *arguments)).code == 0
    assert out.read_bytes() == whole.read_bytes()


def test_designing(command, tmp_path):
    file, out = tmp_path / "tasks.jsonl", tmp_path / "a.jsonl"
    tasks = [task for task in benchmark_tasks() if task.task_type == "basic_file_processing"][:2]
    file.write_text("".join(task.to_json() + "\n" for task in tasks), encoding="utf-8")
    with LoopbackServer(lambda seen: completion(json.dumps(good_design()))) as server:
        outcome = command(*options(server, out, tmp_path, "--json", "--mode", "design", "--tasks", file)).json()
    assert (outcome["enhanced"], outcome["refusals"]) == (1, {"duplicate": 1})
    first, second = read_tasks_file(out, LIBRARY)
    assert first.inputs == {"source": "/data/berths.csv"}
    assert first.metadata["inputs_generated_from"] == "llm"
    assert (second.instance_id, second.required_tools) == (tasks[1].instance_id, tasks[1].required_tools)


def test_a_dry_run_asks_nothing_and_needs_no_key(command, tmp_path, monkeypatch):
    out = tmp_path / "a.jsonl"
    with LoopbackServer(well) as server:
        command(*options(server, tmp_path / "b.jsonl", tmp_path, "--tasks", 2))
        asked = len(server.requests)
        monkeypatch.delenv("OPENAI_API_KEY")
        monkeypatch.setitem(sys.modules, "openai", None)
        forecast = command(*options(server, out, tmp_path, "--dry-run", "--json")).json()
        text = command(*options(server, out, tmp_path, "--dry-run"))
        assert len(server.requests) == asked == 2
    assert (forecast["tasks"], forecast["cached"], forecast["calls"], forecast["most_calls"]) == (12, 2, 10, 22)
    assert forecast["most_completion_tokens"] == 10 * 1500
    assert 10 * 300 < forecast["prompt_tokens_estimate"] < 10 * 2000
    assert not out.exists()
    assert "nothing was asked" in text.out
    assert "2 answers are in the cache" in text.err


def test_what_is_missing_is_named(command, tmp_path, monkeypatch):
    arguments = ("tasks", "enhance", "--mode", "rewrite", "--model", "openai:small", "--tasks", 1)
    monkeypatch.setattr("resilisim.tasks.sources.benchmark_tasks", lambda version: TASKS)
    forecast = command(*arguments[:-2], "--cache", tmp_path / "cache", "--dry-run", "--json").json()
    assert forecast["tasks"] == len(TASKS)  # those of the benchmark if none are named
    assert "--out" in command(*arguments).refusal()
    monkeypatch.delenv("OPENAI_API_KEY")
    assert "OPENAI_API_KEY" in command(*arguments, "--out", tmp_path / "a.jsonl").refusal()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setitem(sys.modules, "openai", None)
    assert "'.[llm]'" in command(*arguments, "--out", tmp_path / "a.jsonl").refusal()


@pytest.mark.parametrize("was_there", [False, True])
def test_a_wrong_key_stops_the_run_at_once_and_leaves_what_was_there(command, tmp_path, was_there):
    out = tmp_path / "a.jsonl"
    if was_there:
        out.touch()
    with LoopbackServer(lambda seen: error(401, f"Incorrect API key provided: {KEY}")) as server:
        line = command(*options(server, out, tmp_path)).refusal()
    assert "refuses the key (status 401)" in line
    assert KEY not in line
    assert [path for path in (out,) if path.exists()] == [out] * was_there
    assert not was_there or out.read_bytes() == b""


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--model", "opneai:small"], ["did you mean 'openai'?"]),
        (["--model", "openai:"], ["names no model"]),
        *(
            (["--base-url", address], [f"option --base-url {address!r}: no address of a web service"])
            for address in ("localhost:8000/v1", "htp://host/v1", "nowhere")
        ),
        *(
            (["--base-url", address], ["base URL"])  # a key in the place of an address is not repeated
            for address in (KEY, "0123456789abcdef", f"http://me:{KEY}@host/v1", f"https://host/v1?key={KEY}")
        ),
        (["--tasks", "no.jsonl"], ["no.jsonl"]),
        (["--mode", "improve"], ["improve", "rewrite"]),
        (["--temperature", "9"], ["9"]),
        (["--out", "no/such/folder/a.jsonl"], ["no/such/folder"]),
    ],
)
def test_bad_input_is_one_line_without_a_key(command, tmp_path, more, words):
    line = command(*options(Nowhere, tmp_path / "a.jsonl", tmp_path, *more)).refusal()
    assert all(word in line for word in words)
    assert words != ["base URL"] or more[1] not in line
    assert KEY not in line
