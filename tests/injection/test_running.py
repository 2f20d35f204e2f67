"""`run_program`: seed after seed into a folder; resumed wherever it was killed, no seed counted twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import resilisim
from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.run.runner import RunInterrupted
from resilisim.evaluation.run.store import read_failures, read_records
from resilisim.evaluation.table.worst_case import read_counted_table
from resilisim.injection.folder import InjectionFolder
from resilisim.injection.functions import Injected

OPTIONS = {"law": 0.7, "required": ["read", "post"]}


def read() -> str:
    return "text"


def post(text: str) -> int:
    return len(text)


def patient(tools: Injected) -> None:
    """Call both, each at most twice."""
    for name, arguments in (("read", ()), ("post", ("text",))):
        for _ in range(2):
            try:
                tools[name](*arguments)
                break
            except resilisim.InjectedFailure:
                pass


async def patient_async(tools: Injected) -> None:
    await asyncio.sleep(0)
    patient(tools)


def careless(tools: Injected) -> None:
    tools["post"](tools["read"]())


def outcomes(folder: Path) -> dict[int, int]:
    records = list(read_records(folder))
    assert len({record["seed"] for record in records}) == len(records)
    return {record["seed"]: record["outcome"] for record in records}


def test_the_same_call_resumes_and_no_seed_counts_twice(tmp_path: Path) -> None:
    alone = resilisim.run_program(patient, [read, post], 30, out=tmp_path / "alone", **OPTIONS)
    first = resilisim.run_program(patient, [read, post], [7, 3, 12], out=tmp_path / "parts", **OPTIONS)
    assert (first.num_episodes, first.call.num_already_there) == (3, 0)
    parts = resilisim.run_program(patient, [read, post], 30, out=tmp_path / "parts", **OPTIONS)
    assert (parts.num_episodes, parts.call.num_already_there) == (30, 3)
    assert outcomes(tmp_path / "parts") == outcomes(tmp_path / "alone")
    assert parts.rows[0].success == alone.rows[0].success
    assert parts.rows[0].policy == "patient"
    again = resilisim.run_program(patient, [read, post], 30, out=tmp_path / "parts", **OPTIONS)
    assert again.call.num_already_there == 30
    with pytest.raises(StoreError, match="another run"):
        resilisim.run_program(careless, [read, post], 30, out=tmp_path / "parts", **OPTIONS)


KILLED = """
import os, signal, resilisim
from tests.injection.test_running import OPTIONS, patient, read, post
made = 0
def deadly(text: str) -> int:
    global made
    made += 1
    if made == 5 and not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return post(text)
deadly.__name__ = "post"
resilisim.run_program(patient, [read, deadly], 12, out="run", **OPTIONS)
"""


@pytest.mark.long
def test_a_run_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    codes = [
        subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, env=environment, check=False).returncode
        for _ in range(2)
    ]
    assert codes == [-signal.SIGKILL, 0]
    resilisim.run_program(patient, [read, post], 12, out=tmp_path / "whole", **OPTIONS)
    assert outcomes(tmp_path / "run") == outcomes(tmp_path / "whole")


def test_whatever_comes_out_of_the_program_has_lost_the_episode_and_the_next_one_begins(tmp_path: Path) -> None:
    def leaves(tools: Injected) -> None:
        try:
            careless(tools)
        except resilisim.InjectedFailure as failure:
            raise SystemExit(f"gave up: {failure}") from failure

    for program in (careless, leaves):
        result = resilisim.run_program(program, [read, post], 40, out=tmp_path / program.__name__, **OPTIONS)
        row = result.rows[0]
        assert (result.num_episodes, result.call.num_failures) == (40, 0)
        assert 0.2 < row.success.value < 0.8
        assert set(row.losses) == {"agent_error"}


def test_what_breaks_outside_has_no_score_and_is_tried_again(tmp_path: Path) -> None:
    is_down = True

    def asks(tools: Injected) -> None:
        if is_down and tools.settings.seed % 2:
            raise ConnectionError("no route")
        patient(tools)

    result = resilisim.run_program(asks, [read, post], 10, out=tmp_path, **OPTIONS)
    assert (result.num_episodes, result.call.num_failures) == (5, 5)
    assert "no route" in result.call.last_error
    assert read_counted_table(tmp_path).num_counted_as_lost == 5
    is_down = False
    result = resilisim.run_program(asks, [read, post], 10, out=tmp_path, **OPTIONS)
    assert (result.num_episodes, result.call.num_failures, result.call.num_already_there) == (10, 0, 5)
    assert read_counted_table(tmp_path).num_counted_as_lost == 0
    assert len(list(read_failures(tmp_path))) == 5
    resilisim.run_program(patient, [read, post], 10, out=tmp_path / "whole", **OPTIONS)
    assert outcomes(tmp_path) == outcomes(tmp_path / "whole")


def test_coroutines_play_within_an_event_loop_and_without() -> None:
    plain = resilisim.run_program(patient, [read, post], 20, name="x", **OPTIONS)
    outside = resilisim.run_program(patient_async, [read, post], 20, name="x", **OPTIONS)

    async def within() -> resilisim.evaluation.EvaluationResult:
        return resilisim.run_program(patient_async, [read, post], 20, name="x", **OPTIONS)

    assert plain.rows == outside.rows == asyncio.run(within()).rows


def test_reset_begins_each_episode_and_ctrl_c_keeps_what_is_finished(tmp_path: Path) -> None:
    begun: list[int] = []

    def begin() -> None:
        begun.append(len(begun))
        if len(begun) == 4:
            raise KeyboardInterrupt

    with pytest.raises(RunInterrupted, match="3 of 6 episodes"):
        resilisim.run_program(patient, [read, post], 6, reset=begin, out=tmp_path, **OPTIONS)
    assert resilisim.run_program(patient, [read, post], 6, reset=begin, out=tmp_path, **OPTIONS).num_episodes == 6
    assert len(begun) == 4 + 3


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"required": []}, "nothing to reach"),
        ({"seeds": 0}, "seeds"),
        ({"seeds": [1, 1]}, "each once"),
        ({"seed": 3}, "expected seeds=..."),
        ({"record": "folder"}, "expected out=..."),
        ({"required": ["raed"]}, "did you mean 'read'"),
        ({"reset": "again"}, "expected a function"),
    ],
)
def test_what_cannot_be_played_is_refused_on_one_line(options: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem) as refusal:
        resilisim.run_program(patient, [read, post], **{**OPTIONS, **options})
    assert "\n" not in str(refusal.value)


def test_a_record_that_cannot_be_written_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: InjectionFolder, record: EpisodeRecord) -> None:
        if record["seed"] == 2:
            raise StoreError("cannot write episodes.jsonl: the disk is full")
        write(self, record)

    write = InjectionFolder.write_episode
    monkeypatch.setattr(InjectionFolder, "write_episode", full)
    with pytest.raises(StoreError, match="the disk is full"):
        resilisim.run_program(patient, [read, post], 5, out=tmp_path, **OPTIONS)
    monkeypatch.undo()
    assert sorted(outcomes(tmp_path)) == [0, 1]
    resilisim.run_program(patient, [read, post], 5, out=tmp_path, **OPTIONS)
    assert sorted(outcomes(tmp_path)) == [0, 1, 2, 3, 4]
