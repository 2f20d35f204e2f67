"""The pytest plugin, in projects of its own: verdicts that are certain, losses that are said, and what it costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import _pytest.pytester
import pytest

pytest_plugins = ["pytester"]

SHOP = """
import pytest, random, resilisim

CHARGED = []

def read():
    return 5

def charge(amount):
    CHARGED.append(amount)
    return "ok"

async def fetch():
    return 5

def buy(tools, tries):
    for name, arguments in (("read", ()), ("charge", (5,))):
        for _ in range(tries):
            try:
                tools[name](*arguments)
                break
            except resilisim.InjectedFailure:
                pass

def marked(**more):
    return pytest.mark.resilisim(**{"tools": [read, charge], "required": [read, charge], "law": 0.8, **more})
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """A function that runs tests of a shop in a project of their own."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    # Modules that a run was the first to import stay: compiled code cannot be imported twice.
    monkeypatch.setattr(_pytest.pytester.SysModulesSnapshot, "restore", lambda self: sys.modules.pop("test_shop", None))

    def run(tests: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(test_shop=SHOP + tests)
        return pytester.runpytest_inprocess("-p", "resilisim_pytest", *options)

    return run


def test_three_lines_are_a_test(run) -> None:
    result = run(
        """
@pytest.mark.resilisim(tools=[read, charge], required=["read", "charge"], law=0.8)
def test_buying(tools):
    buy(tools, 3)
""",
        "-rP",
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["success rate * plays, V? 100.0%: at most 5 points below it"])


def test_a_failure_says_what_lost_and_how_to_see_it_again(run, pytester: pytest.Pytester) -> None:
    tests = """
@marked()
@pytest.mark.parametrize("tries", [1, 6])
def test_buying(tools, tries):
    buy(tools, tries)
    assert len(tools.calls) > 1
"""
    result = run(tests)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "success rate 64.0% to 84.0% after 2 plays, V? 100.0%: more than 5 points below the best possible rate",
            "  likeliest loss, 16.0% of all runs: read#1=*",
            "  again:",
            "    pytest 'test_shop.py::test_buying?1?' --resilisim-force 'read#1=*' --resilisim-force 'charge#1=ok'",
            "    tools = resilisim.inject([[]read, charge[]], required=*, law=0.8, seed=0, force=*)",
            "    with tools: test_buying(tools)",
        ]
    )
    again = pytester.runpytest_inprocess(
        "-p", "resilisim_pytest", "test_shop.py::test_buying[1]", "--resilisim-force", "read#1=TIMEOUT"
    )
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines(["it is lost with these results of its calls: *"])
    well = pytester.runpytest_inprocess(
        "-p", "resilisim_pytest", "-k", "buying and 1", "--resilisim-force=read#1=ok", "--resilisim-force=charge#1=ok"
    )
    well.assert_outcomes(passed=1, deselected=1)


def test_the_smallest_pattern_is_shown_beside_the_likeliest(run) -> None:
    result = run(
        """
@marked(law={"name": "two", "base": 0.8, "bases": {"charge": 0.99}, "failed": 1.0}, turns=6, below_optimum=0.0)
def test_buying(tools):
    buy({"read": tools["read"], "charge": lambda amount: None}, 2)
    tools["charge"](5)
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "  likeliest loss, *: read#1=*, read#2=*",
            "  smallest loss, V? still *: charge#1=*",
            "    pytest test_shop.py::test_buying * --resilisim-force 'charge#1=*'",
        ]
    )


def test_asserts_and_pytest_fail_in_the_body_are_lost_plays(run) -> None:
    result = run(
        """
@marked(reset=CHARGED.clear, below_optimum=0.3)
def test_charged_once(tools):
    for _ in range(3):
        try:
            tools["read"]()
            tools["charge"](5)
            break
        except resilisim.InjectedFailure:
            pass
    assert len(CHARGED) == 2, "not charged twice"

@marked(below_optimum=0.3)
def test_pytest_fails(tools):
    buy(tools, 3)
    with pytest.raises(KeyError):
        pass

@marked(below_optimum=0.3, check="is_charged", reset="empty")
def test_end_state(tools):
    buy(tools, 3)

@pytest.fixture
def empty():
    return CHARGED.clear

@pytest.fixture
def is_charged():
    return lambda: len(CHARGED) == 1

@marked()
def test_skips(tools):
    pytest.skip("not here")
"""
    )
    result.assert_outcomes(passed=1, failed=2, skipped=1)
    result.stdout.fnmatch_lines(["*AssertionError: not charged twice*", "*DID NOT RAISE*"])


def test_async_tests_and_fixtures_that_take_the_tools(run) -> None:
    result = run(
        """
@pytest.fixture
def agent(tools):
    return lambda: buy(tools, 4)

@marked()
def test_of_an_agent(agent):
    agent()

@marked(tools=[fetch], required=["fetch"])
async def test_awaited(tools):
    for _ in range(4):
        try:
            assert await tools["fetch"]() == 5
            break
        except resilisim.InjectedFailure:
            pass

@pytest.fixture
def anyio_backend():
    return "asyncio"

@marked(tools=[fetch], required=["fetch"])
@pytest.mark.anyio
async def test_awaited_beside_anyio(tools):
    for _ in range(4):
        try:
            await tools["fetch"]()
            break
        except resilisim.InjectedFailure:
            pass

@marked(tools="functions", required=["read"])
def test_of_functions_of_a_fixture(tools):
    buy({"read": tools["read"], "charge": lambda amount: None}, 4)

@pytest.fixture
def functions():
    return [read]

class TestClass:
    @marked()
    def test_method(self, tools, tmp_path):
        assert tmp_path.is_dir() and list(tools)[:1] == tools[:1]
        buy(tools, 4)
""",
        *("-p", "anyio.pytest_plugin"),
    )
    result.assert_outcomes(passed=5)


def test_what_does_not_repeat_itself_is_told_so_or_sampled(run) -> None:
    result = run(
        """
@marked(required=["read"], law=0.5)
def test_of_chance(tools):
    for _ in range(4):
        name = random.choice(["read", "charge"])
        try:
            tools[name](*([5] if name == "charge" else []))
        except resilisim.InjectedFailure:
            pass

@marked(seeds=60, below_optimum=0.3)
def test_sampled(tools):
    buy(tools, random.choice([3, 4]))

@marked(seeds=60)
def test_bad_sampled(tools):
    if random.random() < 0.5:
        buy(tools, 4)

@marked(seeds=8)
def test_too_few(tools):
    buy(tools, 4)
"""
    )
    result.assert_outcomes(passed=2, failed=2, warnings=1)
    result.stdout.fnmatch_lines(
        [
            "the test does not repeat itself, so its success rate cannot be computed: *",
            "Make it repeat itself *seeds=100)",
            "success rate * plays, V? 100.0%: surely * points below it, but for 1%; 5 points were allowed",
            "*ResiliSimWarning: * cannot be told: more seeds=... will",
        ]
    )


def test_plays_are_limited_and_what_is_open_is_said(run) -> None:
    tests = """
@marked(plays=2, below_optimum=0.01)
def test_buying(tools):
    buy(tools, 3)
"""
    short = run(tests)
    short.assert_outcomes(failed=1)
    short.stdout.fnmatch_lines(
        ["*after 2 plays, *cannot be told in 2 plays; give it more (plays=4, or --resilisim-plays)"]
    )
    run(tests.replace("0.01", "0.02"), "--resilisim-plays", "50").assert_outcomes(passed=1)


def test_markers_of_modules_and_mistakes(run) -> None:
    result = run(
        """
@marked(below_optimun=0.1)
def test_misspelt(tools):
    pass

@marked()
def test_without_tools():
    pass

def test_not_marked(tools):
    pass

@marked(required=["red"])
def test_unknown_name(tools):
    buy(tools, 1)
"""
    )
    result.assert_outcomes(failed=3, errors=1)
    result.stdout.fnmatch_lines_random(
        [
            "*unexpected keyword argument 'below_optimun': did you mean 'below_optimum'?",
            "*has to take the plugin's fixture `tools`",
            "*expected @pytest.mark.resilisim(tools=[[]...[]], required=[[]...[]])",
            "*unknown function 'red': did you mean 'read'?",
        ]
    )
    merged = run(
        """
pytestmark = marked(below_optimum=0.0, law=0.5)

@pytest.mark.resilisim(law=1.0)
def test_nearest_wins(tools):
    buy(tools, 1)
"""
    )
    merged.assert_outcomes(passed=1)


def test_the_plugin_imports_nothing_but_pytest(tmp_path: Path) -> None:
    code = "import pytest, sys; before = set(sys.modules); import resilisim_pytest; print(set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{'resilisim_pytest'}"
    plugged = tmp_path / "test_plain.py"
    plugged.write_text(
        "import sys\n\ndef test_light():\n    assert not {'numpy', 'numba', 'resilisim'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "resilisim_pytest", "-p", "no:cacheprovider", str(plugged)]
    assert subprocess.run(command, cwd=tmp_path, check=False, capture_output=True).returncode == 0


@pytest.mark.long
def test_several_processes_share_the_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_shop=SHOP
        + """
@marked()
@pytest.mark.parametrize("tries", [1, 4, 5, 6])
def test_buying(tools, tries):
    buy(tools, tries)
"""
    )
    result = pytester.runpytest_subprocess("-p", "resilisim_pytest", "-p", "xdist", "-n", "2")
    result.assert_outcomes(passed=3, failed=1)
