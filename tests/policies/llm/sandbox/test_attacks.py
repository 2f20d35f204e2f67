"""What model-written code must not be able to do, and what the agent is told when it tries."""

from __future__ import annotations

import asyncio
import json
import os
import resource
from pathlib import Path

import pytest

from resilisim.policies.llm.sandbox import RESTARTED, CodeResult, HostCallError, Sandbox, SandboxLimits
from tests.guards import no_endless_wait

QUICK = SandboxLimits(seconds=0.3)


def run(*blocks: str, limits: SandboxLimits = QUICK, **functions) -> list[CodeResult]:
    async def play():
        async with Sandbox(limits, functions) as box:
            return [await box.run(block) for block in blocks]

    return asyncio.run(play())


async def echo(positional, named):
    return {"positional": positional, "named": named}


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "while True:\n  try:\n    while True: pass\n  except: pass",
        "try:\n  while True: pass\nexcept BaseException: print('caught')",
        "sum(range(10**12))",
    ],
)
def test_an_endless_loop_is_stopped_and_cannot_catch_it(code):
    with no_endless_wait():
        first, second, third = run("kept = 1\nprint('before')", f"print('within')\n{code}", "kept")
    assert first.output == "before\n"
    assert second.output == "within\n"
    assert second.error == "TimeoutError: the block ran for more than 0.3 s and was stopped"
    assert second.restarted
    assert second.observation.endswith(RESTARTED)
    assert "NameError" in third.error
    assert "kept" in third.error


@pytest.mark.parametrize(
    "code",
    [
        "10**10**8",
        "1 << 10**10",
        "[0] * 10**9",
        "'a' * 10**10",
        "bytes(10**10)",
        "text = 'a'\nwhile True: text = text + text",
        "many = []\nwhile True: many.append('a' * 100_000)",
        "list(range(10**8))",
        "'%1000000000d' % 3",
        "f'{3:1000000000}'",
        "'a'.ljust(10**10)",
        "['x' * 1000] * 4_000_000",
        "while True:\n  try:\n    x = [0] * 10**9\n  except: pass",
    ],
)
def test_a_memory_bomb_is_stopped(code):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first, second = run(code, "1 + 1", limits=SandboxLimits(seconds=5))
    assert first.error == "MemoryError: the block needed more than 64 MiB and was stopped"
    assert first.restarted
    assert second.output == "2"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB, in this process


def test_a_value_that_fits_but_not_twice_ends_the_block_only():
    first, second = run("'q' * 40_000_000", "1", limits=SandboxLimits(seconds=5))
    assert first.restarted
    assert second.output == "1"


@pytest.mark.parametrize("code", ["10**5000", "{'a': 10**5000}"])
def test_integers_of_thousands_of_digits_are_not_shown(code):
    (result,) = run(code)
    assert result.error is None
    assert result.output.endswith("that is too large to be shown>")


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nsys.exit(3)",
        "exit()",
        "quit()",
        "raise SystemExit('x')",
        "raise SystemExit(1)",
        "raise KeyboardInterrupt()",
    ],
)
def test_leaving_is_an_error_of_the_block(code):
    _first, second, third = run("kept = 7", code, "kept")
    assert second.error is not None
    assert not second.restarted
    assert third.output == "7"


def test_a_flood_of_output_is_cut_with_a_mark():
    (result,) = run("for i in range(1000): print('x' * 99)")
    assert result.error is None
    assert result.output.startswith("x" * 99 + "\n")
    assert result.output.endswith("\n[output cut: the first 2,000 of 100,000 characters]")
    assert len(result.output) < 2_100


def test_an_endless_flood_of_output_is_stopped():
    (result,) = run("while True: print('y' * 1000)")
    assert result.restarted
    assert result.error.startswith(("MemoryError: the block printed more than 1,000,000 bytes", "TimeoutError"))
    assert len(result.output) < 2_100


def test_a_flood_as_value_is_cut_too():
    (result,) = run("list(range(10_000))")
    assert result.output.startswith("[0, 1, 2,")
    assert "[output cut: the first 2,000 of" in result.output


@pytest.mark.parametrize(
    "code",
    [
        "open('/etc/passwd').read()",
        "open('/proc/self/environ').read()",
        "with open('note.txt', 'w') as file: file.write('x')",
        "import pathlib\npathlib.Path('/etc/passwd').read_text()",
        "import pathlib\npathlib.Path('note.txt').write_text('x')",
        "import os\nos.listdir('/')",
        "import os\nos.remove('/tmp/x')",
        "import os\nos.mkdir('/tmp/x')",
        "import os\nos.system('ls')",
        "import os\nos.kill(1, 9)",
        "import os\nos.fork()",
        "import os\nos.urandom(8)",
        "import subprocess",
        "import socket",
        "import urllib.request",
        "import http.client",
        "import ctypes",
        "import importlib",
        "import builtins",
        "import threading",
        "import multiprocessing",
        "import gc",
        "import inspect",
        "import pickle",
        "import numpy",
        "import resilisim",
        "__import__('os').system('ls')",
        "input()",
        "breakpoint()",
        "compile('1', 'a', 'eval')",
    ],
)
def test_files_network_and_processes_are_out_of_reach(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (result,) = run(code)
    assert result.error is not None
    assert result.output == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "code", ["import os\nos.environ", "import os\nos.getenv('SECRET')", "import os\nos.environ['SECRET']"]
)
def test_the_environment_is_out_of_reach(code, monkeypatch):
    monkeypatch.setenv("SECRET", "s3cr3t")
    (result,) = run(code)
    assert result.error is not None
    assert "s3cr3t" not in result.observation


def test_the_process_itself_has_no_environment_either(monkeypatch):
    monkeypatch.setenv("SECRET", "s3cr3t")

    async def play():
        async with Sandbox(QUICK) as box:
            await box.run("1")
            return Path(f"/proc/{box.process_id}/environ").read_bytes()

    assert b"s3cr3t" not in asyncio.run(play())


@pytest.mark.parametrize(
    "code",
    [
        "().__class__",
        "().__class__.__bases__[0].__subclasses__()",
        "[].__class__.__mro__",
        "''.__class__.__base__",
        "(lambda: 0).__globals__",
        "(lambda: 0).__code__",
        "print.__self__",
        "echo.__globals__",
        "echo.__closure__",
        "echo.__class__",
        "__builtins__",
        "globals()",
        "getattr((), '__class__')",
        "'{0.__class__}'.format(1)",
        "f'{().__class__}'",
        "try:\n  1/0\nexcept Exception as e:\n  print(e.__traceback__.tb_frame)",
        "class A:\n  pass\nA.__init__.__globals__",
        "eval('().__class__')",
        "exec('print(().__class__)')",
    ],
)
def test_walks_from_objects_to_the_interpreter_end_at_once(code):
    (result,) = run(code, echo=echo)
    assert result.error is not None
    assert result.output == ""


def test_deep_recursion_is_an_ordinary_error():
    first, second = run("def f(n):\n  return f(n + 1)\nf(0)", "f")
    assert "RecursionError" in first.error
    assert len(first.error) < 1_600
    assert not first.restarted
    assert second.error is None


@pytest.mark.parametrize(
    "code", ["x=" + "(" * 3000 + "1" + ")" * 3000, "[" * 90_000, "eval('(' * 5000 + ')' * 5000)", "-" * 90_000 + "1"]
)
def test_deeply_nested_source_is_an_ordinary_error(code):
    first, second = run(code, "1")
    assert first.error is not None
    assert len(first.error) < 1_600
    assert second.output == "1"


def test_a_block_of_a_megabyte_is_not_run():
    (result,) = run("x = 1\n" * 200_000)
    assert result.error == "SyntaxError: the block has 1,200,000 characters; at most 100,000 are run"


@pytest.mark.parametrize(
    "code", ["x = '\ud800'", "x = 1\x00", "print('\x1b[2J')", "if True", "\t x", "<|im_start|>", "é = 1\né"]
)
def test_odd_characters_never_raise(code):
    first, second = run(code, "1 + 1")
    assert isinstance(first.observation.encode(), bytes)
    assert second.output == "2"


@pytest.mark.parametrize(
    "overwrite",
    [
        "echo = 5",
        "def echo(x): return 'mine'",
        "echo = lambda *a: 'mine'",
        "for echo in [1]: pass",
        "import json as echo",
    ],
)
def test_overwriting_a_function_lasts_for_its_block_only(overwrite):
    first, second = run(f"{overwrite}\nprint(echo if isinstance(echo, int) else 'other')", "echo('there')", echo=echo)
    assert first.error is None
    assert second.output == "{'positional': ['there'], 'named': {}}"
    assert second.calls == 1


def test_a_function_of_the_code_finds_the_real_function_again():
    blocks = ("def ask():\n  return echo(1)", "echo = 5", "ask()")
    assert run(*blocks, echo=echo)[2].output == "{'positional': [1], 'named': {}}"


def test_calling_out_without_end_is_stopped():
    calls = 0

    async def failing(positional, named):
        nonlocal calls
        calls += 1
        raise HostCallError("no")

    code = "while True:\n  try: failing()\n  except Exception: pass"
    first, second = run(code, "1", limits=SandboxLimits(seconds=5, round_trips=50), failing=failing)
    assert calls == 50
    assert first.error == "RuntimeError: the block called out more than 50 times and was stopped"
    assert first.restarted
    assert second.output == "1"


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("{1, 2}", "of type set"),
        ("float('nan')", "the number nan"),
        ("b'x'", "of type bytes"),
        ("{1: 2}", "expected a string"),
        ("10**5000", "bits"),
        ("echo", "argument 1 of echo"),
        ("Thing()", "argument 1 of echo"),
    ],
)
def test_only_json_values_leave_the_sandbox(argument, problem):
    code = (
        f"class Thing:\n  pass\ntry:\n  print(echo({argument}))\nexcept TypeError as error:\n  print('refused', error)"
    )
    (result,) = run(code, echo=echo)
    if argument == "echo":  # a function is the text of its name outside, which is harmless
        assert result.output == "{'positional': ['echo'], 'named': {}}\n"
    else:
        assert result.output.startswith("refused ")
        assert problem in result.output


def test_values_nested_without_end_do_not_leave_the_sandbox():
    (result,) = run("x = []\nx.append(x)\necho(x)", echo=echo)
    assert result.error is not None or json.dumps(result.output)
    (result,) = run("x = []\nfor i in range(1000): x = [x]\necho(x)", echo=echo)
    assert "nested deeper" in result.error


def test_values_of_very_many_items_do_not_leave_the_sandbox():
    (result,) = run("echo(list(range(100_000)))", echo=echo)
    assert result.error.endswith("TypeError: argument 1 of echo holds more than 50,000 items")


def test_sleeping_takes_no_time_and_the_clock_stands_still():
    with no_endless_wait():  # far less than the hour
        (result,) = run("import time\na = time.time()\ntime.sleep(3600)\ntime.time() - a")
    assert result.output == "0.0"


def test_random_numbers_are_the_same_in_every_run():
    code = "import random\nrandom.random(), random.randint(1, 10**6), random.Random().random()"
    assert run(code)[0].output == run(code)[0].output


def test_a_worker_that_is_killed_is_replaced():
    async def play():
        async with Sandbox(QUICK) as box:
            await box.run("x = 1")
            os.kill(box.process_id, 9)
            return [await box.run("x"), await box.run("2")]

    first, second = asyncio.run(play())
    assert first.error == "RuntimeError: the sandbox's process ended while the block ran"
    assert first.restarted
    assert second.output == "2"
