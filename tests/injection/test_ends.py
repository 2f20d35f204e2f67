"""How episodes of `inject` end: by checks, exceptions, kills, forks, full disks; and what is refused at once."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import errno
import functools
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import pytest

from resilisim import InjectedFailure, inject, load_law, read_results
from resilisim.envs.session import EpisodeEnded
from resilisim.errors import InvalidInputError, ResiliSimError, StoreError
from resilisim.evaluation.episode.attribution import identity_error
from resilisim.injection.folder import InjectionFolder
from resilisim.injection.functions import Injected
from resilisim.injection.law_fit import fit_law
from resilisim.reporting import write_report
from resilisim.reporting.losses import broken_episodes
from resilisim.run_folder import JsonLinesWriter
from tests.guards import WAITING_SECONDS


def add(a: int, b: int = 1) -> int:
    return a + b


def fails(a: int = 0) -> int:
    raise ConnectionError("reset by peer")


CERTAIN: dict[str, Any] = {"law": {"base": 1.0, "history": 1.0}, "required": ["add"]}


def lines_of(folder: Path, name: str = "calls.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def is_released(folder: Path) -> bool:
    JsonLinesWriter(folder / "calls.jsonl").close()
    return True


@pytest.mark.parametrize(
    ("error", "goes_on"), [(KeyError("order"), True), (AssertionError("no parcel"), False), (EpisodeEnded(), True)]
)
def test_a_check_that_raises_says_no_and_the_episode_is_kept(tmp_path: Path, error: Any, goes_on: bool) -> None:
    def check() -> bool:
        raise error

    tools = inject([add], check=check, record=tmp_path, **CERTAIN)
    if goes_on:
        with pytest.raises(type(error)), tools:
            tools[0](1)
    else:
        with tools:
            tools[0](1)
    record = tools.record()
    assert (record["outcome"], record["losses"], record["score"]["level"]) == (
        0,
        {"wrong_end_state": 1.0},
        "partial_success",
    )
    assert record["steps"][-1]["error"].startswith(type(error).__name__)
    assert [line["outcome"] for line in lines_of(tmp_path, "episodes.jsonl")] == [0]
    assert is_released(tmp_path)


def test_a_check_that_is_interrupted_leaves_no_score_and_releases_the_folder(tmp_path: Path) -> None:
    def check() -> bool:
        raise KeyboardInterrupt

    tools = inject([add], check=check, record=tmp_path, **CERTAIN)
    with pytest.raises(KeyboardInterrupt), tools:
        tools[0](1)
    assert tools.score is None
    assert is_released(tmp_path)


def test_a_check_may_take_its_time_and_use_threads_and_call_nothing() -> None:
    def check() -> bool:
        other = Thread(lambda: tools[0](1))
        assert isinstance(other.raised, EpisodeEnded)
        return True

    tools = inject([add], check=check, **CERTAIN)
    with tools:
        tools[0](1)
    assert tools.record()["outcome"] == 1


async def _awaited(function: Any, *args: Any) -> Any:
    result = function(*args)
    return await result if asyncio.iscoroutine(result) else result


class Thread:
    """Runs something in a thread of its own, and keeps what it raised."""

    def __init__(self, work: Any) -> None:
        self.raised: BaseException | None = None
        thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()

    def _run(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:
            self.raised = error


def test_a_check_that_promises_an_answer_is_refused() -> None:
    async def later() -> bool:
        return False

    with pytest.raises(InvalidInputError, match="expected a function that answers at once"):
        inject([add], check=later, **CERTAIN)
    tools = inject([add], check=lambda: asyncio.sleep(0), **CERTAIN)
    with pytest.raises(InvalidInputError, match="to be awaited"), tools:
        tools[0](1)
    assert tools.record()["outcome"] == 0


def test_a_check_costs_only_who_had_reached_the_goal() -> None:
    gave_up = inject([add], check=lambda: False, **CERTAIN)
    with gave_up:
        pass
    assert gave_up.record()["losses"] == {"gave_up_early": 1.0}
    assert gave_up.score["grade"]["criteria"]["check"] is False
    half = inject({"add": add, "other": add}, check=lambda: False, **{**CERTAIN, "required": ["add", "other"]})
    with half:
        half["add"](1)
    assert half.record()["losses"] == {"gave_up_early": 1.0}
    done = inject([add], check=lambda: False, **CERTAIN)
    with done:
        done["add"](1)
    assert done.record()["losses"] == {"wrong_end_state": 1.0}


@pytest.mark.parametrize(
    "error", [ValueError("bug"), ConnectionError("from the call"), SystemExit(1), SystemExit("no")]
)
def test_an_exception_of_the_program_loses_the_episode_and_goes_on(tmp_path: Path, error: BaseException) -> None:
    asked: list[int] = []
    tools = inject({"add": add, "fails": fails}, check=lambda: not asked.append(1), record=tmp_path, **CERTAIN)

    def play() -> None:
        assert tools["add"](1) == 2
        if isinstance(error, ConnectionError):
            tools["fails"]()
        raise error

    with pytest.raises(type(error)), tools:
        play()
    record = tools.record()
    assert (record["outcome"], identity_error(record) < 1e-12, asked) == (0, True, [])
    assert (record["ended_by"], record["steps"][-1]["kind"], record["steps"][-1]["label"]) == (
        "agent_error",
        "agent_error",
        "agent_error",
    )
    assert record["losses"]["agent_error"] == pytest.approx(1.0)
    assert record["steps"][-1]["error"].startswith(type(error).__name__)
    assert len(lines_of(tmp_path, "episodes.jsonl")) == 1
    assert is_released(tmp_path)


def through_a_framework(tools: Injected) -> None:
    try:
        tools[0](1)
    except BaseException as error:
        raise RuntimeError("a tool has failed") from error


@pytest.mark.parametrize("raises", [TimeoutError, InjectedFailure, lambda failure: OSError(errno.ENOSPC, "full")])
def test_who_does_not_cope_with_an_injected_failure_has_lost(raises: Any) -> None:
    tools = inject([add], law=1e-9, required=["add"], raises=raises)
    with pytest.raises((TimeoutError, InjectedFailure, OSError)), tools:
        tools[0](1)
    assert tools.record()["outcome"] == 0
    grouped = inject([add], law=1e-9, required=["add"], raises=raises)
    with pytest.raises(RuntimeError), grouped:
        through_a_framework(grouped)
    assert grouped.record()["outcome"] == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "disk"), MemoryError()])
def test_what_is_not_the_programs_doing_leaves_no_score_and_the_seed_can_be_played_again(
    tmp_path: Path, error: BaseException
) -> None:
    tools = inject([add], record=tmp_path, **CERTAIN)

    def play() -> None:
        tools[0](1)
        raise error

    with pytest.raises(type(error)), tools:
        play()
    assert tools.score is None
    assert lines_of(tmp_path, "episodes.jsonl") == []
    with inject([add], record=tmp_path, **CERTAIN) as again:
        again[0](1)
    assert again.record()["outcome"] == 1
    failures = [] if isinstance(error, KeyboardInterrupt) else lines_of(tmp_path, "failures.jsonl")
    assert [(line["index"], line["reason"]) for line in failures] == [(0, type(error).__name__)] * len(failures)
    assert broken_episodes(tmp_path) == []
    assert read_results(tmp_path).num_episodes == 1


def test_what_may_be_an_endpoint_that_failed_is_kept_apart(tmp_path: Path) -> None:
    """The program itself asks a model, say; what functions under the law raise is the program's to cope with."""
    tools = inject([add], record=tmp_path, **CERTAIN)
    with pytest.raises(ConnectionError), tools:
        fails(tools[0](1))
    assert tools.score is None
    with pytest.raises(ResiliSimError, match=r"broke off and has no score \(ConnectionError: reset"):
        tools.record()
    assert [(failure["fault"], failure["reason"]) for failure in broken_episodes(tmp_path)] == [
        ("unclear", "ConnectionError")
    ]


def test_a_program_that_exits_well_has_finished() -> None:
    tools = inject([add], **CERTAIN)
    with pytest.raises(SystemExit), tools:
        sys.exit(tools[0](1) - 2)
    assert (tools.record()["ended_by"], tools.record()["outcome"]) == ("completion", 1)


def test_the_end_of_the_calls_ends_the_block_through_groups_and_frameworks_but_no_other_episode() -> None:
    async def play() -> Injected:
        async def slow(a: int) -> int:
            return a

        tools = inject({"add": slow}, turns=2, **CERTAIN)
        with tools:
            async with asyncio.TaskGroup() as group:
                for number in range(4):
                    group.create_task(tools["add"](number))
        return tools

    assert asyncio.run(play()).record()["outcome"] == 1
    framework = inject([add], turns=1, **CERTAIN)
    with framework:
        framework[0](1)
        through_a_framework(framework)
    assert framework.record()["outcome"] == 1
    inner, outer = inject([add], turns=1, **CERTAIN), inject([add], turns=1, **CERTAIN)
    with outer:
        with inner:
            outer[0](1)
            outer[0](1)
        raise AssertionError("unreachable")
    assert (outer.record()["outcome"], inner.record()["outcome"]) == (1, 0)


@pytest.mark.parametrize("goal", [{}, {"required": ["add"]}])
def test_calls_after_the_end_are_not_made(tmp_path: Path, goal: dict[str, Any]) -> None:
    ran: list[int] = []
    for end in (Injected.finish, Injected.close, lambda tools: tools.__exit__(None, None, None)):
        tools = inject({"add": ran.append}, law=1.0, record=tmp_path / f"{len(ran)}", **goal)
        tools[0](1)
        end(tools)
        for args in ((2,), ()):
            with pytest.raises(EpisodeEnded, match="the episode is over"):
                tools[0](*args)
        with pytest.raises(InvalidInputError, match=r"this episode is over: expected a new resilisim\.inject"), tools:
            raise AssertionError("unreachable")
        assert len(lines_of(tmp_path / f"{len(ran) - 1}")) == 1
    assert ran == [1, 1, 1]
    async_tools = inject({"add": asyncio.sleep}, law=1.0, **goal)
    async_tools.finish()
    with async_tools:
        pass
    with pytest.raises(EpisodeEnded):
        asyncio.run(async_tools[0](0))


def test_one_object_is_one_episode() -> None:
    tools = inject([add], **CERTAIN)
    with tools:
        with pytest.raises(InvalidInputError, match="is under way"), tools:
            raise AssertionError("unreachable")
        tools[0](1)
    assert tools.record()["outcome"] == 1


def test_the_same_seed_does_not_count_twice(tmp_path: Path) -> None:
    for seed in range(3):
        with inject([add], record=tmp_path, seed=seed, **CERTAIN) as tools:
            tools[0](1)
    for seed in (0, 2):
        tools = inject([add], record=tmp_path, seed=seed, **CERTAIN)
        with pytest.raises(StoreError, match=f"the episode of seed {seed} already"), tools:
            raise AssertionError("unreachable")
    with inject([add], record=tmp_path, seed=3, **CERTAIN) as tools:
        tools[0](1)
    results = read_results(tmp_path)
    assert (results.num_episodes, results.num_planned) == (4, 4)
    assert len(lines_of(tmp_path)) == 4


def test_draws_of_a_seed_that_was_played_again_are_fitted_once(tmp_path: Path) -> None:
    def play(seed: int) -> None:
        tools = inject({"add": lambda a: 1 / (a % 3)}, law=0.5, record=tmp_path, seed=seed)
        for number in range(30):
            with contextlib.suppress(ZeroDivisionError, InjectedFailure):
                tools[0](number)
        tools.close()

    play(1)
    play(2)
    once = {failures: fit_law(tmp_path, failures=failures).calls for failures in ("all", "injected", "real")}
    play(1)
    assert len(lines_of(tmp_path)) == 90
    twice = {failures: fit_law(tmp_path, failures=failures).calls for failures in ("all", "injected", "real")}
    assert (twice["all"], twice["injected"]) == (once["all"], once["injected"])
    assert twice["real"] > once["real"]  # what functions do by themselves is new each time


def run_python(python: list[str], program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    head = "import os, signal, threading, resilisim\n"
    return subprocess.run(
        [*python, "-c", head + program],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=WAITING_SECONDS,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(("kind", "required"), [("def", ["charge"]), ("async def", [])])
def test_a_call_that_is_killed_while_it_runs_is_in_the_record(
    tmp_path: Path, required: list[str], kind: str, python: list[str]
) -> None:
    program = (
        f"{kind} charge(amount): os.kill(os.getpid(), signal.SIGKILL)\n"
        "def look(): return 1\n"
        f"tools = resilisim.inject([look, charge], law=1.0, required={required}, record='run', seed=7)\n"
        "tools[0]()\n"
        "import asyncio\n"
        "made = tools[1](40)\n"
        "asyncio.run(made)\n"
    )
    assert run_python(python, program, tmp_path).returncode == -9
    lines = lines_of(tmp_path / "run")
    assert [(line["call"], line["tool"], line["outcome"], line["error"]) for line in lines] == [
        (1, "look", "ok", None),
        (2, "charge", "real", "unknown"),
    ]
    assert (lines[1]["arguments"], lines[1]["ran"], lines[1]["attempt"], lines[1]["seed"]) == ("40", True, 1, 7)
    assert fit_law(tmp_path / "run").calls == 1
    options = {"law": 1.0, "required": required, "record": tmp_path / "run", "seed": 7}

    def look() -> int:
        return 1

    def charge(amount: int) -> int:
        return amount

    with inject([look, charge], **options) as tools:
        tools["charge"](40)
    assert [line["episode"] for line in lines_of(tmp_path / "run")] == [0, 0, 1]


def test_a_call_stands_in_the_record_while_it_runs_and_once_afterwards(tmp_path: Path) -> None:
    seen: list[list[tuple[Any, ...]]] = []

    def told() -> list[tuple[Any, ...]]:
        return [(line["call"], line["tool"], line["outcome"], line["error"]) for line in lines_of(tmp_path)]

    def outer() -> None:
        seen.append(told())
        tools["inner"]()
        seen.append(told())
        raise ValueError("x" * 5000)

    tools = inject({"inner": lambda: seen.append(told()), "outer": outer}, law=1.0, record=tmp_path)
    with pytest.raises(ValueError, match="x"):
        tools["outer"]()
    tools.close()
    under_way = (1, "outer", "real", "unknown")
    assert seen[0] == [under_way]
    assert seen[1] == [under_way, (2, "inner", "real", "unknown")]
    assert seen[2] == [under_way, (2, "inner", "ok", None)]
    assert told() == [(1, "outer", "real", "ValueError"), (2, "inner", "ok", None)]


def test_a_call_that_fails_before_it_runs_never_looks_as_if_it_had(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(InjectionFolder, "write_open_call", lambda *line: pytest.fail("it was not made"))
    tools = inject([add], law=1e-9, record=tmp_path)
    with pytest.raises(InjectedFailure):
        tools[0](1)
    tools.close()
    assert [(line["outcome"], line["ran"]) for line in lines_of(tmp_path)] == [("injected", False)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
def test_a_process_that_is_forked_off_writes_nothing_and_holds_nothing(tmp_path: Path, python: list[str]) -> None:
    program = (
        "def add(a): return a\n"
        "tools = resilisim.inject([add], law=1.0, required=['add'], turns=50, record='run')\n"
        "with tools:\n"
        "    for number in range(10): tools[0](number)\n"
        "    children = []\n"
        "    for _ in range(3):\n"
        "        child = os.fork()\n"
        "        if child == 0:\n"
        "            try:\n"
        "                for number in range(10): tools[0](number)\n"
        "            except resilisim.InvalidInputError as error:\n"
        "                print(error, flush=True)\n"
        "            tools.finish()\n"
        "            tools.close()\n"
        "            tools.__exit__(None, None, None)\n"
        "            signal.pause()\n"
        "        children.append(child)\n"
        "    for number in range(10): tools[0](number)\n"
        "with resilisim.inject([add], law=1.0, required=['add'], turns=50, record='run', seed=1) as more: more[0](1)\n"
        "for child in children: os.kill(child, signal.SIGTERM); os.waitpid(child, 0)\n"
        "print(tools.record()['outcome'])\n"
    )
    result = run_python(python, program.replace("resilisim.Inv", "resilisim.errors.Inv"), tmp_path)
    told = result.stdout.splitlines()
    assert result.returncode == 0, result.stderr
    assert sum("this process was forked off" in line for line in told) == 3
    assert told[-1] == "1"
    assert [line["call"] for line in lines_of(tmp_path / "run")] == [*range(1, 21), 1]
    assert len(lines_of(tmp_path / "run", "episodes.jsonl")) == 2


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_disk_that_is_full_stops_the_episode_and_loses_nothing(tmp_path: Path, monkeypatch: Any, at: int) -> None:
    """The first line that cannot be written is the beginning of a call, or its end."""
    written = 0

    def full(really: Any) -> Any:
        def write(*args: Any) -> Any:
            nonlocal written
            written += 1
            if written >= at:
                raise StoreError("cannot write calls.jsonl: the disk is full")
            return really(*args)

        return write

    for name in ("write_open_call", "write_ended_call", "write_call"):
        monkeypatch.setattr(InjectionFolder, name, full(getattr(InjectionFolder, name)))
    ran: list[int] = []
    tools = inject({"add": lambda a: ran.append(a)}, record=tmp_path, **CERTAIN)

    def play() -> None:
        for number in range(9):
            with contextlib.suppress(Exception):  # a program that goes on whatever happens
                tools[0](number)

    with pytest.raises(StoreError, match="the disk is full"), tools:
        play()
    assert ran == list(range(at // 2))
    assert tools.score is None
    assert [line["error"] for line in lines_of(tmp_path)] == [None] * (at // 2 - 1 + at % 2) + ["unknown"] * (
        1 - at % 2
    )
    monkeypatch.undo()
    with inject({"add": lambda a: ran.append(a)}, record=tmp_path, **CERTAIN) as tools:
        tools[0](1)
    assert tools.record()["outcome"] == 1


def test_a_record_that_cannot_be_written_says_so_and_releases_the_folder(tmp_path: Path, monkeypatch: Any) -> None:
    def full(folder: InjectionFolder, record: Any) -> None:
        raise StoreError("cannot write episodes.jsonl: the disk is full")

    monkeypatch.setattr(InjectionFolder, "write_episode", full)
    with pytest.raises(StoreError, match="full"), inject([add], record=tmp_path, **CERTAIN) as tools:
        tools[0](1)
    monkeypatch.undo()
    with inject([add], record=tmp_path, **CERTAIN) as tools:
        tools[0](1)
    assert len(lines_of(tmp_path, "episodes.jsonl")) == 1


def test_a_folder_that_this_program_has_open_says_so(tmp_path: Path) -> None:
    first = inject([add], record=tmp_path, **CERTAIN)
    first[0](1)
    second = inject([add], record=tmp_path / ".." / tmp_path.name, seed=1, **CERTAIN)
    with pytest.raises(StoreError, match="is open in this program"):
        second[0](1)
    first.finish()
    with second:
        second[0](1)
    assert len(lines_of(tmp_path, "episodes.jsonl")) == 2


def test_a_folder_with_lines_of_others_is_refused_in_one_line(tmp_path: Path) -> None:
    with inject([add], record=tmp_path, **CERTAIN) as tools:
        tools[0](1)
    with (tmp_path / "calls.jsonl").open("a") as stream:
        stream.write('{"a": 1}\n')
    again = inject([add], record=tmp_path, seed=1, **CERTAIN)
    with pytest.raises(StoreError, match="a line without episode and seed"):
        again[0](1)
    assert is_released(tmp_path)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "error", [Mute(), ValueError("\ud800"), ValueError("x" * 10_000), ExceptionGroup("g", [Mute()])]
)
def test_an_exception_is_passed_on_and_recorded_whatever_it_says(tmp_path: Path, error: Exception) -> None:
    def broken() -> None:
        raise error

    for make in (broken, _async(broken)):
        tools = inject({"broken": make}, law=1.0, required=["broken"], record=tmp_path / make.__name__)
        with pytest.raises(type(error)) as raised, tools:
            asyncio.run(_awaited(tools[0]))
        assert raised.value is error
        assert [(line["outcome"], line["error"]) for line in lines_of(tmp_path / make.__name__)] == [
            ("real", type(error).__name__)
        ]
        assert read_results(tmp_path / make.__name__).num_episodes == 1


def _async(function: Any) -> Any:
    async def later(*args: Any) -> Any:
        return function(*args)

    return later


class NeedsMore(Exception):
    def __init__(self, message: str, *, response: object) -> None:
        super().__init__(message)


class Model(pydantic.BaseModel):
    x: int


@pytest.mark.parametrize(
    "kind",
    [
        json.JSONDecodeError,
        UnicodeDecodeError,
        subprocess.CalledProcessError,
        subprocess.TimeoutExpired,
        NeedsMore,
        pydantic.ValidationError,
        ExceptionGroup,
        Mute,
    ],
)
def test_exceptions_that_cannot_be_made_from_a_text_are_refused_before_a_call_needs_them(kind: Any) -> None:
    for raises in (kind, {"TIMEOUT": kind}):
        with pytest.raises(
            InvalidInputError, match=f"raises.* is {kind.__name__}, which makes no exception"
        ) as refused:
            inject([add], raises=raises)
        assert "\n" not in str(refused.value)
        assert "lambda failure:" in str(refused.value)


@pytest.mark.parametrize(
    ("raises", "kind"),
    [
        (lambda failure: json.JSONDecodeError(str(failure), "", 0), json.JSONDecodeError),
        (lambda failure: NeedsMore(failure.code, response=None), NeedsMore),
        (
            {"OPERATION_FAILED": lambda failure: UnicodeDecodeError("utf-8", b"", 0, 1, failure.code)},
            UnicodeDecodeError,
        ),
        (ConnectionResetError, ConnectionResetError),
        (type("Own", (InjectedFailure,), {}), InjectedFailure),
    ],
)
def test_exceptions_may_be_made_by_a_function(raises: Any, kind: type[Exception]) -> None:
    for name, function in (("add", add), ("later", _async(add))):
        tools = inject({name: function}, law={"base": 1e-9, "errors": {"OPERATION_FAILED": 1}}, raises=raises)
        with pytest.raises(kind):
            asyncio.run(_awaited(tools[0], 1))
        assert [call.error for call in tools.calls] == ["OPERATION_FAILED"]


class Word(enum.StrEnum):
    ONE = "one"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"name": 5}, "name is 5: expected a text"),
        ({"name": ""}, "name is '': expected a text"),
        ({"name": "\ud800"}, "expected a text"),
        ({"name": None}, "name is None: expected a text"),
        ({"name": b"x"}, "expected a text"),
        ({"salt": 5}, "salt is 5: expected any text"),
        ({"salt": ["a"]}, "expected any text"),
        ({"seed": "1"}, "seed is '1': expected a whole number"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"seed": 2**63}, "seed is 9223372036854775808"),
        ({"ordered": "no"}, "ordered is 'no': expected True or False"),
        ({"ordered": 1}, "ordered is 1: expected True or False"),
        ({"fail": 3}, "unknown fail 3"),
        ({"fail": ["before"]}, "unknown fail"),
        ({"record": ""}, "record is '': expected the path of a folder"),
        ({"record": "  "}, "expected the path of a folder"),
        ({"record": Path()}, "expected the path of a folder"),
        ({"record": 5}, "record is 5: expected the path of a folder"),
        ({"check": True, "required": ["add"]}, "check is True: expected a function"),
        ({"required": ["add", "add"]}, "required holds 'add' twice"),
        ({"required": [add]}, "required holds <function add"),
        ({"required": {"add": 1}}, "required is {'add': 1}: expected a list of names"),
        ({"required": 5}, "required is 5"),
        ({"once": "add"}, "once is 'add': expected a list of names"),
        ({"dependencies": {"add": "add"}}, "dependencies of add is 'add': expected a list of names"),
        ({"dependencies": ["add"]}, "dependencies is ['add']: expected a mapping"),
        ({"raises": "TimeoutError"}, "raises is 'TimeoutError': expected a class of exceptions"),
        ({"raises": TimeoutError()}, "expected a class of exceptions"),
        ({"raises": KeyboardInterrupt}, "expected a class of exceptions"),
        ({"raises": int}, "expected a class of exceptions"),
        ({"raises": lambda failure: "no"}, "which made 'no': expected an exception"),
        ({"raises": lambda: ValueError()}, "which makes no exception"),
        ({"raises": {"TIMOUT": TimeoutError}}, "unknown code 'TIMOUT' in raises: did you mean 'TIMEOUT'?"),
        ({"raises": {"TIMEOUT": None}}, "raises['TIMEOUT'] is None"),
        ({"law": 1.2}, "law is 1.2: expected the chance that a call passes, above 0 and at most 1, such as 0.8"),
        ({"law": 0}, "law is 0: expected the chance"),
        ({"law": 80}, "law is 80: expected the chance"),
        ({"law": float("nan")}, "law is nan: expected the chance"),
        ({"law": True}, "law is True: expected the chance"),
        ({"law": 10**400}, "expected the chance"),
        ({"law": ["benchmark"]}, "law is ['benchmark']: expected a name"),
        ({"law": object}, "law is <class 'object'>"),
        ({"turns": 1.5, "required": ["add"]}, "turns is 1.5"),
        ({"functions": None}, "functions is None: expected functions"),
        ({"functions": 5}, "functions is 5: expected functions"),
        ({"functions": "add"}, "functions is 'add': expected functions"),
        ({"functions": {"add": "add"}}, "'add' is no function"),
        ({"once": ["add"]}, "once says what spoils a goal"),
        ({"functions": {"": add}}, "'' names a function: expected a text"),
        ({"functions": {5: add}}, "5 names a function: expected a text"),
        ({"functions": [add, "add"]}, "'add' is no function"),
    ],
)
def test_options_of_another_kind_are_refused_at_once_in_one_line(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        inject(**{"functions": [add], **options})
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_options_may_be_of_any_type_that_means_the_same() -> None:
    tools = inject(
        [add], seed=np.int64(3), name=Word.ONE, salt="", required=("add",), law=np.float64(0.9), turns=np.int8(4)
    )
    with tools:
        tools[0](1)
    record = tools.record()
    assert (record["seed"], record["policy"], record["salt"]) == (3, "one", "")
    assert record["law"] == {"base": 0.9, "not_executed": 1.0, "failed": 1.0, "history": 1.0}
    assert json.loads(json.dumps(record))["policy"] == "one"


def test_a_number_is_a_law_of_independent_failures() -> None:
    tools = inject([add], law=0.3, seed=2, dependencies={"add": []})
    for number in range(50):
        with contextlib.suppress(InjectedFailure):
            tools[0](number)
    assert {call.probability for call in tools.calls} == {0.3}
    assert load_law(0.3) == load_law("0.3") == load_law({"base": 0.3, "not_executed": 1, "failed": 1, "history": 1})
    assert load_law(1).base == 1.0


class Shop:
    def __init__(self, stock: int) -> None:
        self.stock = stock

    def buy(self, number: int) -> int:
        return self.stock - number

    @classmethod
    def open(cls) -> str:
        return cls.__name__


def grüße(maß: str) -> str:
    return maß


def test_names_may_be_of_any_alphabet(tmp_path: Path) -> None:
    names = ["grüße", "查询", "fs/read", "search the web", "_x", "<lambda>", "Read", "read"]
    functions = dict.fromkeys(names, grüße)
    tools = inject(functions, law=1.0, required=names, ordered=False, record=tmp_path)
    with tools:
        assert [tools[name](name) for name in names] == names
    assert tools.record()["outcome"] == 1
    assert [line["tool"] for line in lines_of(tmp_path)] == names
    assert write_report(read_results(tmp_path).directory).exists()
    assert [row.tool for row in fit_law(tmp_path).tools] == sorted(names)
    with inject([grüße, lambda: 1], law=1.0) as tools:
        assert [each.__name__ for each in tools] == ["grüße", "<lambda>"]
    for name in ("two\nlines", " x", "x" * 129, "\ud800"):
        with pytest.raises(InvalidInputError, match="is not a name") as refused, inject({name: add}):
            raise AssertionError("unreachable")
        assert "\n" not in str(refused.value)


def test_methods_stay_methods_and_static_ones_static() -> None:
    law = inject(law=1.0)

    class Account:
        def __init__(self, money: int) -> None:
            self.money = money

        @law
        def pay(self, amount: int) -> int:
            return self.money - amount

        @law
        @staticmethod
        def fee(amount: int) -> int:
            return amount // 10

    assert (Account(10).pay(3), Account(5).pay(amount=3), Account.fee(50), Account(1).fee(20)) == (7, 2, 5, 2)
    assert [(call.tool, call.outcome) for call in law.calls] == [("pay", "ok")] * 2 + [("fee", "ok")] * 2


def test_functions_go_by_their_names_or_by_those_that_they_are_given() -> None:
    one, other = Shop(10), Shop(20)
    with pytest.raises(InvalidInputError, match=r"'buy' was given twice.*mapping of names and functions"):
        inject([one.buy, other.buy])
    with pytest.raises(InvalidInputError, match="'add' was given twice"):
        inject([functools.partial(add, 1), add])
    tools = inject({"one.buy": one.buy, "other.buy": other.buy, "first": lambda a: a}, law=1.0, required=["other.buy"])
    with tools:
        assert (tools["one.buy"](1), tools["other.buy"](1), tools["first"](1)) == (9, 19, 1)
    assert [each.__name__ for each in tools] == ["one.buy", "other.buy", "first"]
    assert tools.record()["required_tools"] == ["other.buy"]
    named = inject(
        [one.buy, Shop.open, functools.partial(add, 1), functools.partial(functools.partial(max), 1)], law=1.0
    )
    assert [each.__name__ for each in named] == ["buy", "open", "add", "max"]
    assert (named["open"](), named["add"](2), named["max"](5)) == ("Shop", 3, 5)
