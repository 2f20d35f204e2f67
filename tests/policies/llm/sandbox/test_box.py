"""The sandbox as agents use it: one namespace, functions of the host, variables, many at once, nothing left behind."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilisim.errors import InvalidInputError
from resilisim.policies.llm.sandbox import (
    NO_OUTPUT,
    RESTARTED,
    CodeResult,
    HostCallError,
    NotJsonError,
    Sandbox,
    SandboxLimits,
    cut_error,
    cut_output,
)
from tests.policies.llm.sandbox.processes import live_children

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


def run(*blocks: str, limits: SandboxLimits | None = None, prelude: str = "", **functions) -> list[CodeResult]:
    async def play():
        async with Sandbox(limits, functions, prelude) as box:
            return [await box.run(block) for block in blocks]

    return asyncio.run(play())


def test_names_stay_for_later_blocks():
    results = run("import math\nx = 3\ndef double(n):\n  return 2 * n", "print(double(x))", "math.floor(x + 0.5)")
    assert [result.output for result in results] == ["", "6\n", "3"]
    assert results[0].observation == NO_OUTPUT


def test_what_is_shown_is_what_was_printed_or_else_the_last_value():
    results = run("print('a')\n'b'", "'b'", "None", "x = 1", "print()", "print('a', end='')")
    assert [result.observation for result in results] == ["a", "'b'", NO_OUTPUT, NO_OUTPUT, NO_OUTPUT, "a"]


def test_an_error_is_a_short_traceback_after_what_was_printed():
    (result,) = run("print('before')\n1/0")
    assert result.output == "before\n"
    assert result.observation.startswith("before\nTraceback")
    assert result.observation.endswith("ZeroDivisionError: division by zero")
    assert not result.restarted


def test_what_the_interpreter_lacks_is_said():
    lacks = run("class A(dict):\n  pass", "x = 1\ndel x", "def g():\n  yield 1")
    assert all("NotImplementedError" in result.error for result in lacks)


def test_functions_are_called_with_json_and_answer_with_json():
    async def add(positional, named):
        assert positional == [1, [2, None]]
        assert named == {"b": {"c": 1.5}}
        return {"sum": [3]}

    (result,) = run("add(1, (2, None), b={'c': 1.5})['sum'][0] + 1", add=add)
    assert result.output == "4"
    assert result.calls == 1


@pytest.mark.parametrize("call", ["tool(2)", "await tool(2)", "await asyncio.wait_for(tool(2), 3)"])
def test_functions_may_be_awaited_though_they_need_not(call):
    async def tool(positional, named):
        return positional[0] + 1

    (result,) = run(f"import asyncio\n{call}", tool=tool)
    if "wait_for" in call:
        assert result.error is not None
    else:
        assert result.output == "3"


def test_functions_reach_code_within_functions_comprehensions_and_other_names():
    async def tool(positional, named):
        return positional[0] * 10

    _defined, result = run(
        "f = tool\ndef g(n):\n  return [tool(i) for i in range(n)]\nasync def h():\n  return await f(7)",
        "(g(3), await h())",
        tool=tool,
    )
    assert result.output == "([0, 10, 20], 70)"


@pytest.mark.parametrize("kind", ["Exception", "RuntimeError", "ToolError"])
def test_a_failed_call_is_an_exception_that_can_be_caught(kind):
    async def tool(positional, named):
        raise HostCallError("TIMEOUT: too slow")

    first, second = run(
        f"try:\n  x = tool()\nexcept {kind} as error:\n  print('failed:', error)",
        "x = tool()",
        tool=tool,
        prelude="ToolError = RuntimeError",
    )
    assert first.output == "failed: TIMEOUT: too slow\n"
    assert first.error is None
    assert second.error.endswith("RuntimeError: TIMEOUT: too slow")
    assert "x = tool()" in second.error


def test_an_unknown_name_is_an_error():
    assert all("NameError: name 'nothing' is not defined" in result.error for result in run("nothing", "nothing(1)"))


class Ended(BaseException):
    pass


@pytest.mark.parametrize("error", [Ended("over"), ValueError("a bug of the host")])
def test_what_else_a_function_raises_passes_through_and_ends_the_process(error):
    before = live_children()

    async def tool(positional, named):
        raise error

    async def play():
        async with Sandbox(functions={"tool": tool}) as box:
            try:
                await box.run("try:\n  tool()\nexcept BaseException:\n  print('caught')")
            finally:
                assert box.process_id is None
                assert live_children() <= before

    with pytest.raises(type(error), match=str(error)):
        asyncio.run(play())


def test_the_sandbox_can_be_used_again_after_such_an_error():
    async def tool(positional, named):
        raise ValueError("bug")

    async def play():
        async with Sandbox(functions={"tool": tool}) as box:
            with pytest.raises(ValueError, match="bug"):
                await box.run("tool()")
            return await box.run("1")

    assert asyncio.run(play()).output == "1"


def test_assigned_variables_are_really_there_and_survive_a_restart():
    async def play():
        async with Sandbox(SandboxLimits(seconds=0.2)) as box:
            assigned = await box.assign("rows", [{"a": 1}, {"a": 2}])
            read = await box.run("total = sum(row['a'] for row in rows)\ntotal")
            killed = await box.run("while True: pass")
            again = await box.run("rows[1]['a']")
            gone = await box.run("total")
            return assigned, read, killed, again, gone

    assigned, read, killed, again, gone = asyncio.run(play())
    assert assigned.error is None
    assert read.output == "3"
    assert killed.kept == ("rows",)
    assert killed.observation.endswith(f"{RESTARTED} Put in again: rows.")
    assert again.output == "2"
    assert "NameError" in gone.error


def test_code_may_overwrite_variables_of_the_host():
    async def play():
        async with Sandbox() as box:
            await box.assign("rows", [1])
            await box.run("rows = rows + [2]")
            return await box.run("rows")

    assert asyncio.run(play()).output == "[1, 2]"


@pytest.mark.parametrize("name", ["", "1a", "a b", "class", "a.b", "tool"])
def test_names_that_are_none_are_refused(name):
    async def tool(positional, named):
        return None

    async def play():
        async with Sandbox(functions={"tool": tool}) as box:
            await box.assign(name, 1)

    with pytest.raises(InvalidInputError, match="sandbox name"):
        asyncio.run(play())


def test_function_names_and_limits_are_checked_at_once():
    with pytest.raises(InvalidInputError, match="identifier"):
        Sandbox(functions={"a-b": None})
    with pytest.raises(InvalidInputError, match=r"seconds=0.*above 0"):
        SandboxLimits(seconds=0)


def test_a_variable_beyond_the_memory_is_an_error_and_is_not_kept():
    async def play():
        async with Sandbox(SandboxLimits(memory_mib=8)) as box:
            return await box.assign("big", "x" * 20_000_000), await box.run("1"), await box.run("big")

    big, after, gone = asyncio.run(play())
    assert big.error == "MemoryError: the block needed more than 8 MiB and was stopped"
    assert after.output == "1"
    assert "NameError" in gone.error


def test_a_value_that_is_no_json_is_refused():
    async def play():
        async with Sandbox() as box:
            await box.assign("x", {1, 2})

    with pytest.raises(NotJsonError, match="x is of type set"):
        asyncio.run(play())


@pytest.mark.parametrize(
    "returned", [{1, 2}, [10**5000], [0] * 100_000, float("inf")], ids=["set", "huge", "many", "inf"]
)
def test_what_the_host_returns_and_no_sandbox_takes_is_an_error_that_can_be_caught(returned):
    async def tool(positional, named):
        return returned

    (result,) = run("try:\n  tool()\nexcept RuntimeError as error:\n  print(error)", tool=tool)
    assert result.output.startswith("what tool returned")


def test_lone_surrogates_never_raise():
    async def echo(positional, named):
        if positional == ["fail"]:
            raise HostCallError("\ud800!")
        return {"\ud800": "a\udfff"}

    async def play():
        async with Sandbox(functions={"echo": echo}) as box:
            await box.assign("x", ["\ud800"])
            return await box.run("print(len(x), [len(key) for key in echo()])"), await box.run("echo('fail')")

    fine, failed = asyncio.run(play())
    assert fine.output == "1 [1]\n"
    assert failed.error.endswith("!")


def test_json_values_pass_unchanged_in_both_directions():
    async def play(value):
        got = []

        async def give(positional, named):
            got.append(positional[0])
            return positional[0]

        async with Sandbox(functions={"give": give}) as box:
            await box.assign("x", value)
            result = await box.run("give(x) == x and give(give(x)) == x")
            assert result.output == "True", result
        return got

    @settings(max_examples=25, deadline=None)
    @given(JSON)
    def holds(value):
        assert asyncio.run(play(value)) == [value] * 3

    holds()


@given(st.text(max_size=300), st.integers(1, 100))
def test_cutting_keeps_the_beginning_and_says_how_much_there_was(text, most):
    cut = cut_output(text, most)
    assert cut.startswith(text[:most])
    assert (cut == text) == (len(text) <= most)
    if len(text) > most:
        assert f"the first {most:,} of {len(text):,} characters" in cut


@given(st.integers(0, 5_000))
def test_long_errors_keep_their_beginning_and_their_end(length):
    text = "begin" + "x" * length + "end"
    cut = cut_error(text)
    assert cut.startswith("begin")
    assert cut.endswith("end")
    assert len(cut) <= 1_600
