"""The sandbox: one namespace, functions of the host, what code must not be able to do, nothing left behind."""

from __future__ import annotations

import asyncio
import importlib
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilisim.errors import InfrastructureError, InvalidInputError, MissingExtraError
from resilisim.sandbox import (
    NOTHING_PRINTED,
    RESTARTED,
    BlockingSandbox,
    CodeResult,
    HostCallError,
    NotJsonError,
    Sandbox,
    SandboxLimits,
    end_idle_processes,
)
from tests.guards import no_endless_wait
from tests.policies.llm.helpers import live_children

QUICK = SandboxLimits(seconds=0.3)
PATIENT = SandboxLimits(seconds=5)


@pytest.fixture(autouse=True)
def _no_process_is_left():
    before = live_children()
    yield
    assert live_children() <= before


def in_sandbox(use, limits: SandboxLimits | None = None, prelude: str = "", **functions):
    """Do something with a sandbox, and close it."""

    async def play():
        async with Sandbox(limits, functions, prelude) as box:
            return await use(box)

    return asyncio.run(play())


def run(*blocks: str, limits: SandboxLimits = QUICK, prelude: str = "", **functions) -> list[CodeResult]:
    async def use(box):
        return [await box.run(block) for block in blocks]

    return in_sandbox(use, limits, prelude, **functions)


async def echo(positional, named):
    return {"positional": positional, "named": named}


def test_names_stay_for_later_blocks():
    results = run("import math\nx = 3\ndef double(n):\n  return 2 * n", "print(double(x))", "math.floor(x + 0.5)")
    assert [result.output for result in results] == ["", "6\n", "3"]


def test_what_is_shown_is_what_was_printed_or_else_the_last_value_and_a_short_traceback():
    *fine, failed = run("print('a')\n'b'", "'b'", "None", "x = 1", "print()", "print('a', end='')", "print('b')\n1/0")
    assert [result.observation for result in fine] == [
        "a",
        "'b'",
        NOTHING_PRINTED,
        NOTHING_PRINTED,
        NOTHING_PRINTED,
        "a",
    ]
    assert (failed.output, failed.restarted) == ("b\n", False)
    assert failed.observation.startswith("b\nTraceback")
    assert failed.observation.endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("tool(2)", "20"),
        ("await tool(2)", "20"),
        ("import asyncio\nawait asyncio.wait_for(tool(2), 3)", ""),
        ("f = tool\ndef g(n):\n  return [tool(i) for i in range(n)]\ng(3)", "[0, 10, 20]"),
        ("async def h():\n  return await tool(7)\nawait h()", "70"),
    ],
)
def test_functions_are_reached_from_anywhere_and_may_be_awaited_though_they_need_not(code, output):
    async def tool(positional, named):
        return positional[0] * 10

    (result,) = run(code, tool=tool)
    assert result.output == output
    assert (result.error is None) == (output != "")


@pytest.mark.parametrize("kind", ["Exception", "RuntimeError", "ToolError"])
def test_a_failed_call_is_an_exception_that_can_be_caught(kind):
    async def tool(positional, named):
        raise HostCallError("TIMEOUT: too slow")

    caught = f"try:\n  x = tool()\nexcept {kind} as error:\n  print('failed:', error)"
    first, second = run(caught, "x = tool()", tool=tool, prelude="ToolError = RuntimeError")
    assert (first.output, first.error) == ("failed: TIMEOUT: too slow\n", None)
    assert second.error.endswith("RuntimeError: TIMEOUT: too slow")
    assert "x = tool()" in second.error


class Ended(BaseException):
    pass


@pytest.mark.parametrize("error", [Ended("over"), ValueError("a bug of the host")])
def test_what_else_a_function_raises_passes_through_and_ends_the_process(error):
    before = live_children()

    async def tool(positional, named):
        raise error

    async def use(box):
        try:
            await box.run("try:\n  tool()\nexcept BaseException:\n  print('caught')")
        finally:
            assert box.process_id is None
            assert live_children() <= before

    with pytest.raises(type(error), match=str(error)):
        in_sandbox(use, tool=tool)


def test_assigned_variables_are_really_there_and_survive_a_restart():
    async def use(box):
        assigned = await box.assign("rows", [{"a": 1}, {"a": 2}])
        assert assigned.error is None
        blocks = ["total = sum(row['a'] for row in rows)\ntotal", "while True: pass", "rows[1]['a']", "total"]
        return [await box.run(block) for block in blocks]

    read, killed, again, gone = in_sandbox(use, QUICK)
    assert (read.output, again.output) == ("3", "2")
    assert killed.kept == ("rows",)
    assert killed.observation.endswith(f"{RESTARTED} Put in again: rows.")
    assert "NameError" in gone.error


@pytest.mark.parametrize(
    ("name", "value", "kind", "words"),
    [
        *((name, 1, InvalidInputError, "sandbox name") for name in ("", "1a", "class", "a.b", "echo")),
        ("x", {1, 2}, NotJsonError, "x is of type set"),
    ],
)
def test_what_cannot_be_assigned_is_refused_and_so_are_names_of_functions(name, value, kind, words):
    with pytest.raises(kind, match=words):
        in_sandbox(lambda box: box.assign(name, value), echo=echo)
    with pytest.raises(InvalidInputError, match="identifier"):
        Sandbox(functions={"a-b": None})


def test_a_variable_beyond_the_memory_is_an_error_and_is_not_kept():
    async def use(box):
        return await box.assign("big", "x" * 20_000_000), await box.run("1"), await box.run("big")

    big, after, gone = in_sandbox(use, SandboxLimits(memory_mib=8))
    assert big.error == "MemoryError: the block needed more than 8 MiB and was stopped"
    assert after.output == "1"
    assert "NameError" in gone.error


@pytest.mark.parametrize(
    "returned", [{1, 2}, [10**5000], [0] * 100_000, float("inf")], ids=["set", "huge", "many", "inf"]
)
def test_what_the_host_returns_and_no_sandbox_takes_is_an_error_that_can_be_caught(returned):
    async def tool(positional, named):
        return returned

    (result,) = run("try:\n  tool()\nexcept RuntimeError as error:\n  print(error)", tool=tool)
    assert result.output.startswith("what tool returned")


def test_what_is_too_large_or_half_a_character_never_raises():
    async def odd(positional, named):
        if positional == ["fail"]:
            raise HostCallError("\ud800!")
        return {"\ud800": "a\udfff"}

    async def use(box):
        await box.assign("x", ["\ud800"])
        blocks = ["print(len(x), [len(key) for key in odd()])", "odd('fail')", "10**5000", "x = 1\n" * 200_000]
        return [await box.run(block) for block in [*blocks, "'q' * 40_000_000", "1"]]

    fine, failed, huge, long, larger, after = in_sandbox(use, PATIENT, odd=odd)
    assert (fine.output, failed.error[-1]) == ("1 [1]\n", "!")
    assert (huge.error, huge.output.endswith("that is too large to be shown>")) == (None, True)
    assert long.error == "SyntaxError: the block has 1,200,000 characters; at most 100,000 are run"
    assert (larger.restarted, after.output) == (True, "1")


TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
NUMBERS = st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=25, deadline=None)
@given(JSON)
def test_json_values_pass_unchanged_in_both_directions(value):
    got = []

    async def give(positional, named):
        got.append((positional, named))
        return positional[0]

    async def use(box):
        await box.assign("x", value)
        return await box.run("give(x) == x and give(give(x), (2, None), named={'c': 1.5}) == x")

    result = in_sandbox(use, give=give)
    assert (result.output, result.calls) == ("True", 3)
    assert got == [([value], {}), ([value], {}), ([value, [2, None]], {"named": {"c": 1.5}})]


# Attacks


@pytest.mark.parametrize(
    "code", ["while True: pass", "while True:\n  try:\n    while True: pass\n  except: pass", "sum(range(10**12))"]
)
def test_an_endless_loop_is_stopped_and_cannot_catch_it(code):
    with no_endless_wait():
        first, second, third = run("kept = 1\nprint('before')", f"print('within')\n{code}", "kept")
    assert first.output == "before\n"
    assert second.output == "within\n"
    assert second.error == "TimeoutError: the block ran for more than 0.3 s and was stopped"
    assert second.observation.endswith(RESTARTED)
    assert "NameError" in third.error


@pytest.mark.parametrize(
    "code",
    [
        "10**10**8",
        "'a' * 10**10",
        "text = 'a'\nwhile True: text = text + text",
        "'%1000000000d' % 3",
        "['x' * 1000] * 4_000_000",
        "while True:\n  try:\n    x = [0] * 10**9\n  except: pass",
    ],
)
def test_a_memory_bomb_is_stopped(code):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first, second = run(code, "1 + 1", limits=PATIENT)
    assert first.error == "MemoryError: the block needed more than 64 MiB and was stopped"
    assert first.restarted
    assert second.output == "2"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB, in this process


# What ends a block and nothing else: leaving, going too deep, source that is none.
ORDINARY = [
    "import sys\nsys.exit(3)",
    "exit()",
    "raise SystemExit(1)",
    "raise KeyboardInterrupt()",
    "def f(n):\n  return f(n + 1)\nf(0)",
    "x=" + "(" * 3000 + "1" + ")" * 3000,
    "-" * 90_000 + "1",
    "x = 1\x00",
    "<|im_start|>",
]


@pytest.mark.parametrize("code", ORDINARY)
def test_leaving_and_broken_source_are_ordinary_errors_of_the_block(code):
    _first, second, third = run("kept = 7", code, "kept")
    assert second.error is not None
    assert len(second.error) < 1_600
    assert isinstance(second.observation.encode(), bytes)
    assert not second.restarted
    assert third.output == "7"


def test_a_flood_of_output_is_cut_with_a_mark_and_stopped_if_it_is_endless():
    long, endless = run("for i in range(1000): print('x' * 99)", "while True: print('y' * 1000)")
    assert long.error is None
    assert long.output.startswith("x" * 99 + "\n")
    assert long.output.endswith("\n[output cut: the first 2,000 of 100,000 characters]")
    assert endless.restarted
    assert endless.error.startswith(("MemoryError: the block printed more than 1,000,000 bytes", "TimeoutError"))
    assert max(len(long.output), len(endless.output)) < 2_100


MODULES = """subprocess socket urllib.request http.client ctypes importlib builtins threading multiprocessing gc
inspect pickle numpy resilisim"""
# Files, network, processes; and walks from objects to the interpreter.
OUT_OF_REACH = [
    "open('/etc/passwd').read()",
    "with open('note.txt', 'w') as file: file.write('x')",
    "import pathlib\npathlib.Path('/etc/passwd').read_text()",
    "import os\nos.listdir('/')",
    "import os\nos.remove('/tmp/x')",
    "import os\nos.system('ls')",
    "import os\nos.fork()",
    *(f"import {name}" for name in MODULES.split()),
    "__import__('os').system('ls')",
    "input()",
    "breakpoint()",
    "().__class__.__bases__[0].__subclasses__()",
    "(lambda: 0).__globals__",
    "print.__self__",
    "echo.__globals__",
    "__builtins__",
    "globals()",
    "getattr((), '__class__')",
    "'{0.__class__}'.format(1)",
    "f'{().__class__}'",
    "try:\n  1/0\nexcept Exception as e:\n  print(e.__traceback__.tb_frame)",
    "eval('().__class__')",
    "exec('print(().__class__)')",
]


@pytest.mark.parametrize("code", OUT_OF_REACH)
def test_the_machine_and_the_interpreter_are_out_of_reach(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (result,) = run(code, echo=echo)
    assert result.error is not None
    assert result.output == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("overwrite", ["echo = 5", "def echo(x): return 'mine'", "echo = lambda *a: 'mine'"])
def test_overwriting_a_function_lasts_for_its_block_only(overwrite):
    shown = f"{overwrite}\nprint(echo if isinstance(echo, int) else 'other')"
    first, second = run(shown, "echo('there')", echo=echo)
    assert first.error is None
    assert second.output == "{'positional': ['there'], 'named': {}}"
    assert second.calls == 1


def test_calling_out_without_end_is_stopped():
    calls = []

    async def failing(positional, named):
        calls.append(positional)
        raise HostCallError("no")

    code = "while True:\n  try: failing()\n  except Exception: pass"
    first, second = run(code, "1", limits=SandboxLimits(seconds=5, round_trips=50), failing=failing)
    assert len(calls) == 50
    assert first.error == "RuntimeError: the block called out more than 50 times and was stopped"
    assert first.restarted
    assert second.output == "1"


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("{1, 2}", "of type set"),
        ("float('nan')", "the number nan"),
        ("b'x'", "of type bytes"),
        ("{1: 2}", "expected a string"),
        ("10**5000", "bits"),
        ("Thing()", "argument 1 of echo"),
        ("deep", "nested deeper"),
    ],
)
def test_only_json_values_leave_the_sandbox(argument, told):
    prelude = "class Thing:\n  pass\ndeep = []\nfor i in range(1000): deep = [deep]"
    code = f"try:\n  print(echo({argument}))\nexcept TypeError as e:\n  print('no', e)"
    (result,) = run(code, prelude=prelude, echo=echo)
    assert told in (result.error or result.output)
    assert "positional" not in result.output


def test_the_clock_stands_still_sleeping_takes_no_time_and_random_numbers_repeat():
    code = "import random\nrandom.random(), random.randint(1, 10**6), random.Random().random()"
    clock = "import time\na = time.time()\ntime.sleep(3600)\ntime.time() - a"
    with no_endless_wait():  # far less than the hour
        first, second = run(code, clock), run(code, clock)
    assert first == second
    assert first[1].output == "0.0"


# Processes


def test_a_worker_has_no_environment_and_one_that_is_killed_is_replaced(monkeypatch):
    monkeypatch.setenv("SECRET", "s3cr3t")

    async def use(box):
        await box.run("x = 1")
        assert b"s3cr3t" not in Path(f"/proc/{box.process_id}/environ").read_bytes()
        os.kill(box.process_id, 9)
        return [await box.run("x"), await box.run("2")]

    first, second = in_sandbox(use)
    assert first.error == "RuntimeError: the sandbox's process ended while the block ran"
    assert first.restarted
    assert second.output == "2"


LOOK_AROUND = """
import random
seen = [random.random(), id([]), hash("a"), list({"b", "a", "q"})]
for look in (lambda: secret, lambda: spy(), lambda: told(1), lambda: random.secret):
    try:
        seen.append(look())
    except (NameError, AttributeError) as error:
        seen.append(str(error))
print(seen)
"""
LEAVE_THINGS = [
    "secret = ['s'] * 100_000",
    "import random\nrandom.random()\ndef spy():\n    return 's'",
    "print = len",
    "1 / 0",
]


def test_the_next_sandbox_has_the_same_process_and_finds_nothing_of_the_last():
    end_idle_processes()

    async def use(box):
        shown = await box.run(LOOK_AROUND)
        for block in LEAVE_THINGS:
            await box.run(block)
        await box.assign("told_before", 1)
        return shown.output, box.process_id

    seen = [in_sandbox(use, PATIENT, told=echo) for _ in range(3)]
    fresh, process = seen[0]
    assert seen == [(fresh, process)] * 3
    assert fresh.count("is not defined") == 2
    assert os.path.isdir(f"/proc/{process}")
    end_idle_processes()
    assert process not in live_children()


@pytest.mark.parametrize("code", ["while True: pass", "x = [0] * 10**9", "while True: print('flood' * 1000)"])
def test_a_process_that_met_a_limit_is_not_used_again(code):
    async def use(box):
        await box.run("1")
        process = box.process_id
        assert (await box.run(code)).restarted
        return process

    before = in_sandbox(use, QUICK)
    assert not os.path.isdir(f"/proc/{before}")


def test_a_process_that_died_while_it_waited_is_replaced_and_few_wait():
    async def process(box):
        await box.run("1")
        return box.process_id

    os.kill(in_sandbox(process), 9)
    assert in_sandbox(lambda box: box.run("1 + 1")).output == "2"

    async def many():
        boxes = [Sandbox() for _ in range(9)]
        await asyncio.gather(*(box.run("1") for box in boxes))
        processes = {box.process_id for box in boxes}
        await asyncio.gather(*(box.__aexit__(None, None, None) for box in boxes))
        return processes

    processes = asyncio.run(many())
    assert len(processes) == 9
    assert sum(os.path.isdir(f"/proc/{one}") for one in processes) <= 5


NUM_THREADS = min(32, (os.cpu_count() or 1) + 4)  # of the pool in which an event loop has its blocks run


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
            if number % 10 == 0:
                before = ticks
                assert (await box.run("while True: pass")).restarted
                assert ticks > before + 5  # a blocked loop would not tick at all in these 1.5 s
            return shown.output

    async def runaway():  # more of them than there are threads: they delay each other, and end
        async with Sandbox(SandboxLimits(seconds=0.05)) as box:
            return (await box.run("while True: pass")).restarted

    async def play():
        watcher = asyncio.create_task(watch())
        outputs = await asyncio.gather(*(session(number) for number in range(20)))
        watcher.cancel()
        return outputs, await asyncio.gather(*(runaway() for _ in range(NUM_THREADS + 4)))

    assert asyncio.run(play()) == ([f"({number + 3}, {number})" for number in range(20)], [True] * (NUM_THREADS + 4))


async def one_block(code: str = "1", prelude: str = "", **functions) -> None:
    async with Sandbox(SandboxLimits(seconds=3600), functions, prelude) as box:
        assert box.process_id is None, "no process starts before the first block"
        await box.run("1")
        assert box.process_id in live_children()
        await box.run(code)


async def cancelled(code: str, delay: float, **functions) -> None:
    task = asyncio.create_task(one_block(code, **functions))
    await asyncio.sleep(delay)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


@pytest.mark.parametrize(
    ("code", "delay"),
    [("while True: pass", 0.2), ("hang()", 0.2), *(("hang()", delay) for delay in (0, 0.001, 0.005, 0.01, 0.02))],
)
def test_cancellation_in_the_middle_and_while_starting_ends_the_process_at_once(code, delay):
    async def hang(positional, named):
        await asyncio.sleep(3600)

    with no_endless_wait():  # far less than the hour
        asyncio.run(cancelled(code, delay, hang=hang))


def test_what_is_not_installed_or_does_not_start_is_told(monkeypatch, tmp_path):
    class NoProgram:
        def __init__(self, **options):
            raise FileNotFoundError("could not locate the binary")

    with pytest.raises(RuntimeError, match="prelude fails"):
        asyncio.run(one_block(prelude="1/0"))
    end_idle_processes()
    with monkeypatch.context() as patch:
        patch.setenv("MONTY_BIN", str(tmp_path / "nothing"))
        with pytest.raises(InfrastructureError, match="does not start"):
            asyncio.run(one_block())
    monkeypatch.setattr(importlib.import_module("pydantic_monty"), "Monty", NoProgram)
    with pytest.raises(MissingExtraError, match=r"program is missing.*pip install -c constraints.txt '\.\[llm\]'"):
        asyncio.run(one_block())
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)
    with pytest.raises(MissingExtraError, match=r"pip install -c constraints.txt '\.\[llm\]'"):
        asyncio.run(one_block())


ENDINGS = {
    "closed": "async with Sandbox(SandboxLimits(seconds=0.1)) as box:\n        await box.run('while True: pass')",
    "left open": "box = Sandbox()\n    await box.run('1')\n    kept.append(box)",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_ends_cleanly_right_after_a_sandbox(ending):
    program = "import asyncio\nfrom resilisim.sandbox import Sandbox, SandboxLimits\nkept = []\n"
    program += f"async def main():\n    {ENDINGS[ending]}\nasyncio.run(main())\n"
    # Side by side, because what this looks for came and went: a thread of the package that outlived the interpreter.
    started = [subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) for _ in range(3)]
    endings = [(process.communicate(timeout=300)[1], process.returncode) for process in started]
    assert endings == [("", 0)] * 3


def test_callers_that_wait_have_the_same_sandbox_with_or_without_a_loop_around_them():
    def blocks():
        box = BlockingSandbox(QUICK)
        try:
            seen = [box.run("total = sum(prices)\ntotal", {"prices": [2, 3]}), box.run("total + prices[0]")]
            seen += [box.run("while True: pass"), box.run("prices")]
        finally:
            box.close()
        return [(result.output, result.restarted, result.reason) for result in seen]

    async def around():
        return blocks()

    expected = [("5", False, None), ("7", False, None)]
    for results in (blocks(), asyncio.run(around())):
        assert results[:2] == expected
        assert results[2][1]
        assert "NameError" in results[3][2]  # a variable of one block is not put in again
    with pytest.raises(InvalidInputError, match="expected a Python identifier"):
        BlockingSandbox().run("1", {"a b": 1})
