"""`fit_law`: known laws are found again, what counts as a failure, and what calls do not tell."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import resilisim
from resilisim import InjectedFailure, evaluate, fit_law, inject, load_law
from resilisim.errors import InvalidInputError, StoreError
from resilisim.injection import FittedLaw
from resilisim.seeding import Draws
from resilisim.simulator import Law
from resilisim.simulator.law import Latency
from resilisim.tool_library import default_library
from resilisim.worlds.apis import TwinLaw
from resilisim.worlds.apis.api import public_apis
from resilisim.worlds.apis.assessment import assess


def tried(tools: Any, names: list[str]) -> None:
    for name in names:
        with contextlib.suppress(InjectedFailure, ValueError):
            tools[name](1)


def a(x: int) -> int:
    return x


def b(x: int) -> int:
    return x


def program(folder: Path, law: Any, episodes: int = 60, **options: Any) -> None:
    """Play episodes of calls in random order."""
    draws = Draws("test of the fit")
    for seed in range(episodes):
        names = [draws.choice(["a", "b"]) for _ in range(8)]
        with inject([a, b], law=law, seed=seed, record=folder, required=["a"], **{"turns": 8, **options}) as tools:
            tried(tools, names)


def told(found: FittedLaw, words: str) -> bool:
    return any(words in line for line in found.untold)


def test_a_known_law_is_found_again_with_its_factors_and_its_errors(tmp_path: Path) -> None:
    true = Law(base=0.9, not_executed=0.3, failed=1.0, history=0.85, bases={"b": 0.7}, errors={"TIMEOUT": 3, "DOWN": 1})
    program(tmp_path, true, 60, dependencies={"b": ["a"]})
    found = fit_law(tmp_path)
    estimates = {row.tool: row.base for row in found.tools} | dict(found.factors)
    truth = {"a": 0.9, "b": 0.7, "not_executed": 0.3, "failed": 1.0, "history": 0.85}
    assert set(estimates) == set(truth)
    missed = [name for name, one in estimates.items() if not one.holds(truth[name])]
    assert missed == [], estimates
    assert all(row.base.high - row.base.low < 0.2 for row in found.tools)
    assert found.law.bases == {name: round(estimates[name].value, 6) for name in "ab"}
    share = found.law.errors["TIMEOUT"] / sum(found.law.errors.values())
    assert set(found.law.errors) == {"TIMEOUT", "DOWN"}
    assert share == pytest.approx(0.75, abs=0.12)
    assert fit_law(tmp_path, failures="injected").law.to_mapping() == found.law.to_mapping()


def test_the_file_that_is_written_says_the_same_and_is_played(tmp_path: Path) -> None:
    program(tmp_path / "run", {"base": 0.6}, 15)
    found = fit_law(tmp_path / "run", name="mine")
    (tmp_path / "mine.yaml").write_text(found.to_yaml())
    law = load_law(tmp_path / "mine.yaml")
    assert (law, law.name) == (found.law, "mine")
    assert "# a: " in found.to_yaml()
    program(tmp_path / "again", law, 2)
    first = json.loads((tmp_path / "again" / "calls.jsonl").read_text().splitlines()[0])
    assert first["probability"] == law.bases[first["tool"]]


def test_real_and_injected_failures_are_fitted_apart(tmp_path: Path) -> None:
    draws = Draws("flaky")

    def flaky(x: int) -> int:
        if draws.uniform() < 0.3:
            raise ValueError("busy")
        return x

    law = {"base": 0.6, "history": 1.0}
    for fail in ("before", "after"):
        folder = tmp_path / fail
        tools = inject([flaky], law=law, seed=5, record=folder, fail=fail)
        tried(tools, ["flaky"] * 400)
        with pytest.raises(TypeError):
            tools["flaky"](1, 2)
        tools.close()
        rates = {kind: fit_law(folder, failures=kind).tools[0] for kind in ("all", "real", "injected")}
        for kind, true in (("all", 0.42), ("real", 0.7), ("injected", 0.6)):
            assert rates[kind].base.value == pytest.approx(true, abs=0.1), (fail, kind)
        assert set(rates["real"].errors) == {"ValueError"}
        assert "ValueError" not in rates["injected"].errors
        assert rates["all"].calls == 400
        assert rates["real"].calls < 400 or fail == "after"
        found = fit_law(folder)
        assert told(found, "1 call with arguments that the tool does not take")
        assert told(found, "were injected and")


@pytest.mark.long
def test_episodes_of_a_run_are_calls_too_and_give_the_benchmarks_law(tmp_path: Path) -> None:
    run = evaluate("random", 4, "optimal", seeds=12, out=tmp_path, max_consecutive_failures=0)
    found = fit_law(run.directory)
    truth = {"not_executed": 0.5, "failed": 0.7, "history": 0.9}
    assert [name for name, one in found.factors.items() if not one.holds(truth[name])] in ([], ["failed"], ["history"])
    assert found.calls == sum(step["attempt"] is not None for record in run.records() for step in record["steps"])
    assert sum(row.base.holds(0.8) for row in found.tools) >= 0.8 * len(found.tools)
    with pytest.raises(InvalidInputError, match="another tool library"):
        fit_law(run.directory, library=resilisim.ToolLibrary([default_library()["network_fetcher"]]))


@pytest.mark.long
def test_a_twin_is_found_again_by_its_assessment(tmp_path: Path) -> None:
    names = [api.name for api in public_apis()]
    true = {name: 0.25 + 0.7 * place / len(names) for place, name in enumerate(names)}
    law = TwinLaw(median_seconds=0.0, errors={"INVALID_INPUT": 1.0, "INVALID_RESPONSE": 2.0}, success_of=true)
    counted = assess(public_apis(), 10, law=law, out=tmp_path)
    found = fit_law(tmp_path)
    assert {row.tool: (row.base.low, row.base.high) for row in found.tools} == {
        row.api: (row.low, row.high) for row in counted.apis
    }
    # Of 23 exact 95% intervals more than four miss once in a hundred times at most.
    assert sum(not row.base.holds(true[row.tool]) for row in found.tools) <= 4
    assert found.law.errors == dict(counted.errors)
    assert (found.law.history, found.factors) == (1.0, {})
    assert told(found, "These calls have no order")
    episodes = evaluate("reference", "apis-v1", "optimal", seeds=1, law=found.law)
    assert 0.0 < episodes.rows[0].optimum.value < 1.0
    probabilities = {
        step["tool"]: step["success_probability"] for record in episodes.records() for step in record["steps"]
    }
    assert {name: chance for name, chance in probabilities.items() if name} == {
        name: found.law.bases[name] for name in probabilities if name
    }


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def line(tool: str = "a", error: str | None = None, **more: Any) -> dict[str, Any]:
    return {"tool": tool, "error": error, "episode": 0, "seconds": 0.5, **more}


SIGNS: list[tuple[Callable[[int], dict[str, Any]], str]] = [
    (
        lambda k: line(error="TIMEOUT" if k > 120 and k % 2 else None, episode=k // 4),
        "Later calls succeeded less often",
    ),
    (lambda k: line(error="TIMEOUT" if k // 10 % 2 else None), "Failures come in a row"),
    (lambda k: line(error="RATE_LIMIT_ERROR" if k % 3 == 0 else None), "RATE_LIMIT_ERROR came 67 times"),
    (lambda k: line("ab"[k % 2], error="XY"[k % 2] if k % 3 == 0 else None), "Tools differ in their errors"),
    (lambda k: line("a", error="TIMEOUT"), "Never succeeded: a"),
    (lambda k: line("b" if k < 3 else "a"), "Fewer than 10 calls: b"),
    (lambda k: {"tool": "a", "error": None}, "Nobody measured"),
    (lambda k: line(), "Too few calls came after a failure in the same episode (0 calls)"),
]


@pytest.mark.parametrize(("make", "words"), SIGNS)
def test_what_calls_show_beside_the_law_or_do_not_tell_is_said(
    make: Callable[[int], dict[str, Any]], words: str, tmp_path: Path
) -> None:
    lines = [make(k) for k in range(200)]
    assert told(fit_law(written(tmp_path / "calls.jsonl", lines)), words)


def test_calls_that_the_law_itself_drew_show_none_of_these_signs(tmp_path: Path) -> None:
    program(tmp_path, {"base": 0.7, "history": 0.95}, 40)
    found = fit_law(tmp_path)
    assert not any(told(found, words) for words in ("Later calls", "in a row", "Never", "Fewer", "Too few"))
    assert told(found, "No dependencies are known")


def test_durations_become_a_part_of_the_law_where_that_is_wanted(tmp_path: Path) -> None:
    path = written(tmp_path / "calls.jsonl", [line(seconds=k / 100) for k in range(100)])
    latency = fit_law(path, latency=True).law.latency
    assert isinstance(latency, Latency)
    assert [round(one.seconds, 2) for one in latency.distribution] == [0.05 + 0.1 * k for k in range(10)] or (
        latency.distribution[0].seconds == pytest.approx(0.05, abs=0.01) and len(latency.distribution) == 10
    )
    assert fit_law(path).law.latency is None


BAD: list[tuple[Any, str]] = [
    ([], "no call that counts"),
    ([{"tool": "a"}], "line 1 of .* is no recorded call"),
    ([{"tool": 3, "error": None}], "line 1 of .*'tool'"),
    ([line(), line(outcome="okay")], "line 2 of .*'outcome'"),
    ([3], "line 1 of"),
    ([line(outcome="misuse")], "no call that counts"),
]


@pytest.mark.parametrize(("lines", "said"), BAD)
def test_what_is_no_record_of_calls_is_refused(lines: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises((InvalidInputError, StoreError), match=said):
        fit_law(written(tmp_path / "calls.jsonl", lines))


def test_other_folders_and_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no recorded calls"):
        fit_law(tmp_path)
    with pytest.raises(InvalidInputError, match="unknown failures 'reel': did you mean 'real'"):
        fit_law(tmp_path, failures="reel")


def test_a_call_that_was_given_up_says_nothing(tmp_path: Path) -> None:
    lines = [line(), line(error="cancelled", outcome="real", ran=True), line(error="BUSY", outcome="real", ran=True)]
    path = written(tmp_path / "calls.jsonl", lines)
    counted = {kind: fit_law(path, failures=kind).tools[0] for kind in ("all", "real", "injected")}
    assert {kind: (row.successes, row.calls) for kind, row in counted.items()} == {
        "all": (1, 2),
        "real": (1, 2),
        "injected": (3, 3),
    }


def test_calls_that_overlap_are_fitted_as_they_ended(tmp_path: Path) -> None:
    async def slow(x: int) -> int:
        await asyncio.sleep(0)
        return x

    tools = inject([slow], law={"base": 0.8, "history": 1.0}, seed=1, record=tmp_path)

    async def play() -> None:
        await asyncio.gather(*(tools[0](n) for n in range(100)), return_exceptions=True)

    asyncio.run(play())
    tools.close()
    assert fit_law(tmp_path).tools[0].base.holds(0.8)
