"""Whatever stands in a record, a chain or a failure: readers and `submit check` answer, or refuse in one line."""

from __future__ import annotations

import copy
import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resilisim import evaluate, read_results
from resilisim.errors import ResiliSimError
from resilisim.evaluation import compare_runs
from resilisim.evaluation.episode.texts import opened
from resilisim.evaluation.run.merge import merge_runs
from resilisim.evaluation.run.replay import find_episode
from resilisim.evaluation.run.rescoring import rescore_run
from resilisim.evaluation.run.store import RunStore, read_manifest
from resilisim.evaluation.submission import PublishedSet, check_submission, define_set
from resilisim.evaluation.table.leaderboard import read_leaderboard
from resilisim.injection.law_fit import fit_law
from tests.chat.loopback import LoopbackServer
from tests.evaluation.agent_models import endpoint, following_answer
from tests.evaluation.toy_policies import toy_tasks

TASKS = toy_tasks(2)
FILES = ("episodes.jsonl", "chain.jsonl", "failures.jsonl")
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.lists(st.integers(0, 3), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(0, 3), max_size=2),
    st.just("1:AAAA"),
)
GONE = object()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    with LoopbackServer(following_answer) as server:
        policies = ["react", "plan-follower"]
        options: dict[str, Any] = {"salt": "fuzz", "record_texts": "all", "model": endpoint(server), "progress": False}
        evaluate(policies, TASKS, ["optimal", "flawed"], 1, out=out, **options)
    line = {"schema": "resilisim-failure-1", "index": 0, "policy": "react", "prompt_type": "optimal", "seed": 0}
    line |= {"instance_id": TASKS[0].instance_id, "error": "it was down", "reason": "Down", "calls": 0}
    with RunStore(out, read_manifest(out)["arguments"], 8) as store:
        store.append_failure(json.dumps(line).encode() + b"\n")
    return out


@pytest.fixture(scope="module")
def published(run: Path) -> PublishedSet:
    return define_set(run, "fuzz-v1")


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if place:
        yield place
    within = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in within:
        yield from places(each, (*place, name))


def changed(lines: list[bytes], data: st.DataObject) -> bytes:
    """Change a value somewhere in a file, or a line of it, or its bytes."""
    how = data.draw(st.sampled_from(["value", "value", "value", "line", "bytes"]))
    number = data.draw(st.integers(0, len(lines) - 1))
    if how == "bytes":
        text = bytearray(lines[number])
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
        return b"".join([*lines[:number], bytes(text), *lines[number + 1 :]])
    if how == "line":
        other = data.draw(st.sampled_from([b"", b"\n", b"[]\n", b"{}\n", b"null\n", lines[0], lines[-1] + lines[0]]))
        return b"".join([*lines[:number], other, *lines[number + 1 :]])
    record = copy.deepcopy(json.loads(lines[number]))
    *path, last = data.draw(st.sampled_from(list(places(record))))
    part = record
    for name in path:
        part = part[name]
    value = data.draw(st.one_of(VALUES, st.just(GONE)))
    if value is GONE:
        del part[last]
    else:
        part[last] = value
    return b"".join([*lines[:number], json.dumps(record).encode() + b"\n", *lines[number + 1 :]])


def in_one_line(read: Callable[[], object]) -> None:
    told = ""
    try:
        read()
    except ResiliSimError as refusal:
        told = str(refusal)
    assert "\n" not in told
    assert len(told) < 1_000


def tried(run: Path, published: PublishedSet, folder: Path, data: st.DataObject) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(run, folder)
    name = data.draw(st.sampled_from(FILES))
    lines = (run / name).read_bytes().splitlines(keepends=True)
    (folder / name).write_bytes(changed(lines, data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        in_one_line(lambda: read_results(folder))
        in_one_line(lambda: read_leaderboard([folder]))
        in_one_line(lambda: compare_runs(folder, folder))
        in_one_line(lambda: rescore_run(folder))
        in_one_line(lambda: opened(find_episode(folder, "0")))
        in_one_line(lambda: fit_law([folder]))
        in_one_line(lambda: merge_runs([folder], folder / "merged"))
        in_one_line(lambda: check_submission(folder, published, tasks=TASKS))
        same = all((folder / each).read_bytes() == (run / each).read_bytes() for each in FILES)
        if not same:
            found = []
            in_one_line(lambda: found.append(check_submission(folder, published, tasks=TASKS)))
            assert not any(each.is_accepted for each in found) or _only_said_otherwise(run, folder)


def _only_said_otherwise(run: Path, folder: Path) -> bool:
    """Tell whether two folders hold the same values: other bytes of a chain, say."""

    def values(path: Path) -> list[Any]:
        return [json.loads(line) for line in path.read_bytes().splitlines() if line.strip()]

    return all(values(run / name) == values(folder / name) for name in FILES)


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_readers_answer_or_refuse_in_one_line(
    run: Path, published: PublishedSet, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    tried(run, published, tmp_path_factory.getbasetemp() / "fuzzed", data)


@pytest.mark.fuzz
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_many_edits_are_answered_or_refused_in_one_line(
    run: Path, published: PublishedSet, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    tried(run, published, tmp_path_factory.getbasetemp() / "fuzzed", data)
