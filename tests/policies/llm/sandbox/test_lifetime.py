"""The life of the worker process: many at once, cancellation, nothing left behind, packages that are missing."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys

import pytest

from resilisim.errors import InfrastructureError, MissingExtraError
from resilisim.policies.llm.sandbox import Sandbox, SandboxLimits
from tests.guards import no_endless_wait
from tests.policies.llm.sandbox.processes import live_children


async def run(code: str, prelude: str = "") -> None:
    async with Sandbox(prelude=prelude) as box:
        await box.run(code)


def test_twenty_sessions_at_once_do_not_meet_and_leave_the_loop_free():
    ticks = 0

    async def watch():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.005)
            ticks += 1

    async def session(number):
        async def mine(positional, named):
            await asyncio.sleep(0.001)
            return number

        async with Sandbox(SandboxLimits(seconds=1.5), {"mine": mine}) as box:
            await box.run(f"x = {number}")
            for _ in range(3):
                await box.run("x = x + 1")
            shown = await box.run("(x, mine())")
            if number % 5 == 0:
                before = ticks
                assert (await box.run("while True: pass")).restarted
                assert ticks > before + 5  # a blocked loop would not tick at all in these 1.5 s
            return shown.output

    async def play():
        watcher = asyncio.create_task(watch())
        outputs = await asyncio.gather(*(session(number) for number in range(20)))
        watcher.cancel()
        return outputs

    before = live_children()
    assert asyncio.run(play()) == [f"({number + 3}, {number})" for number in range(20)]
    assert live_children() <= before


@pytest.mark.parametrize("code", ["while True: pass", "hang()"])
def test_cancellation_in_the_middle_ends_the_process_at_once(code):
    before = live_children()

    async def hang(positional, named):
        await asyncio.sleep(3600)

    async def play():
        async with Sandbox(SandboxLimits(seconds=3600), {"hang": hang}) as box:
            await box.run("1")
            await box.run(code)

    async def cancelled():
        task = asyncio.create_task(play())
        await asyncio.sleep(0.2)
        assert len(live_children() - before) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with no_endless_wait():  # far less than the hour
        asyncio.run(cancelled())
    assert live_children() <= before


def test_cancellation_while_starting_leaves_no_process():
    before = live_children()

    async def play():
        async with Sandbox() as box:
            await box.run("1")

    async def cancelled(delay):
        task = asyncio.create_task(play())
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    for delay in (0, 0.001, 0.005, 0.01, 0.02):
        asyncio.run(cancelled(delay))
    assert live_children() <= before


def test_more_runaway_blocks_than_threads_delay_each_other_and_end():
    async def runaway():
        async with Sandbox(SandboxLimits(seconds=0.05)) as box:
            return (await box.run("while True: pass")).restarted

    async def play():
        return await asyncio.gather(*(runaway() for _ in range(40)))

    assert asyncio.run(play()) == [True] * 40


def test_cancelling_many_at_once_leaves_no_process():
    before = live_children()

    async def runaway():
        async with Sandbox(SandboxLimits(seconds=60)) as box:
            await box.run("while True: pass")

    async def play():
        tasks = [asyncio.create_task(runaway()) for _ in range(24)]  # more than there are threads: some wait for one
        await asyncio.sleep(0.3)
        for task in tasks:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert all(isinstance(ending, asyncio.CancelledError) for ending in asyncio.run(play()))
    assert live_children() <= before


def test_no_process_starts_before_the_first_block():
    before = live_children()

    async def play():
        async with Sandbox() as box:
            assert box.process_id is None
            assert live_children() <= before
            await box.run("1")
            assert box.process_id in live_children() - before

    asyncio.run(play())
    assert live_children() <= before


def test_without_the_package_the_extra_is_named(monkeypatch):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)

    async def play():
        async with Sandbox():
            raise AssertionError("the sandbox opened without its package")

    with pytest.raises(MissingExtraError, match=r"pip install 'resilisim\[llm\]'"):
        asyncio.run(play())


def test_without_the_program_the_extra_is_named(monkeypatch):
    class NoProgram:
        def __init__(self, **options):
            raise FileNotFoundError("could not locate the binary")

    monkeypatch.setattr(importlib.import_module("pydantic_monty"), "Monty", NoProgram)
    with pytest.raises(MissingExtraError, match=r"program is missing.*pip install 'resilisim\[llm\]'"):
        asyncio.run(run("1"))


def test_a_program_that_does_not_start_is_an_infrastructure_failure(monkeypatch, tmp_path):
    monkeypatch.setenv("MONTY_BIN", str(tmp_path / "nothing"))
    with pytest.raises(InfrastructureError, match="does not start"):
        asyncio.run(run("1"))


def test_a_prelude_that_fails_is_a_bug_and_raises():
    with pytest.raises(RuntimeError, match="prelude fails"):
        asyncio.run(run("1", prelude="1/0"))


ENDINGS = {
    "closed": "async with Sandbox(SandboxLimits(seconds=0.1)) as box:\n        await box.run('while True: pass')",
    "left open": "box = Sandbox()\n    await box.run('1')\n    kept.append(box)",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_ends_cleanly_right_after_a_sandbox(ending):
    program = (
        "import asyncio\n"
        "from resilisim.policies.llm.sandbox import Sandbox, SandboxLimits\n"
        "kept = []\n"
        "async def main():\n"
        f"    {ENDINGS[ending]}\n"
        "asyncio.run(main())\n"
    )
    # Side by side, because what this looks for came and went: a thread of the package that outlived the interpreter.
    started = [subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) for _ in range(3)]
    endings = [(process.communicate(timeout=60)[1], process.returncode) for process in started]
    assert endings == [("", 0)] * 3
