"""The pytest plugin: `@pytest.mark.resilisim(...)` plays a test under every failure of its tools that matters.

pytest loads this in every run, so it imports nothing but pytest; what plays is imported with the first test that is
marked.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Generator
from typing import Any

import pytest

MARKER = "resilisim"


class ResiliSimWarning(UserWarning):
    """A marked test passed although its sample does not tell whether its success rate is good enough."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what overrides the markers, and what plays one pattern of failures again."""
    group = parser.getgroup("resilisim")
    group.addoption(
        "--resilisim-plays", type=int, metavar="N", help="most plays of each test that is marked, in place of its own"
    )
    group.addoption(
        "--resilisim-force",
        action="append",
        default=[],
        metavar="TOOL#NUMBER=RESULT",
        help="play marked tests once, with what calls bring said beforehand, such as charge#2=TIMEOUT; repeatable",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(tools, law, required, once, check, reset, below_optimum=0.05, plays=200, seeds=None, alpha=0.01, "
        "...): play the test under every failure of its tools that matters; it fails if its success rate is surely "
        "further below the best possible one. Other options are those of resilisim.inject",
    )


def _options(item: pytest.Item) -> dict[str, Any]:
    """Return the options of a test's markers; those nearest to it win."""
    merged: dict[str, Any] = {}
    for marker in item.iter_markers(MARKER):
        if marker.args:
            raise pytest.UsageError(f"{item.nodeid}: the marker {MARKER} takes options by name, tools=[...] among them")
        merged = {**marker.kwargs, **merged}
    return merged


@pytest.fixture
def tools(request: pytest.FixtureRequest) -> Any:
    """The functions of the marker's `tools`, under its law: by place or by name; each play begins anew."""
    options = _options(request.node)
    if "tools" not in options:
        raise pytest.UsageError(f"{request.node.nodeid}: expected @pytest.mark.{MARKER}(tools=[...], required=[...])")
    from resilisim.integrations.pytest_tests import InjectedTools

    functions = options["tools"]
    return InjectedTools(request.getfixturevalue(functions) if isinstance(functions, str) else functions)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Play a test that is marked; others are left as they are.

    What is called in place of the test is a plain function, so no plugin for coroutines takes an `async` one over.
    """
    if pyfuncitem.get_closest_marker(MARKER) is None:
        return (yield)
    test = pyfuncitem.obj
    pyfuncitem.obj = lambda **_: _play(pyfuncitem, test)
    try:
        return (yield)
    finally:
        pyfuncitem.obj = test


def _play(pyfuncitem: pytest.Function, test: Any) -> None:
    """Play a test, and fail it where that is what comes of it."""
    from resilisim.integrations.pytest_tests import InjectedTools, judge_test

    tools, nodeid = pyfuncitem.funcargs.get("tools"), pyfuncitem.nodeid
    if not isinstance(tools, InjectedTools):
        hidden = " and a fixture of that name hides it" if "tools" in pyfuncitem.fixturenames else ""
        raise pytest.UsageError(
            f"{nodeid} is marked with {MARKER}: it has to take the plugin's fixture `tools`{hidden}"
        )
    options = {name: value for name, value in _options(pyfuncitem).items() if name != "tools"}
    for name in ("check", "reset"):
        if isinstance(options.get(name), str):  # the name of a fixture, whose value is called
            options[name] = pyfuncitem._request.getfixturevalue(options[name])
    if pyfuncitem.config.getoption("--resilisim-plays") is not None:
        options["plays"] = pyfuncitem.config.getoption("--resilisim-plays")
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    body = _body(functools.partial(test, **arguments), inspect.unwrap(test).__name__)
    judged = judge_test(body, tools, options, nodeid, pyfuncitem.config.getoption("--resilisim-force"))
    pyfuncitem.user_properties += judged.properties.items()
    if not judged.passed:
        pytest.fail(judged.text, pytrace=False)
    pyfuncitem.add_report_section("call", "resilisim", judged.text)
    if judged.is_open:
        pyfuncitem.warn(ResiliSimWarning(judged.text))


def _body(test: Any, name: str) -> Any:
    """Return a test as it is played: what it fails with is a lost play, also where pytest says so (`pytest.raises`)."""

    async def awaited(answer: Any) -> None:
        try:
            await answer
        except pytest.fail.Exception as failure:
            raise AssertionError(str(failure)) from failure

    def body() -> object:
        try:
            answer = test()
        except pytest.fail.Exception as failure:
            raise AssertionError(str(failure)) from failure
        return awaited(answer) if inspect.isawaitable(answer) else answer

    body.__name__ = name
    return body
