"""Signs of what a fitted law leaves out: told where they are there, and seldom where they are not."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from resilisim import fit_law
from resilisim.injection.law_signs import errors_differ

CODES = ("TIMEOUT", "OPERATION_FAILED", "NETWORK_ERROR")
ORDER = ("Later calls", "further into an episode", "fail again", "come in a row")


def calls(
    seed: int, episodes: int, *, broken: float = 0.0, drift: float = 0.0, history: float = 1.0, in_order: bool = False
) -> list[dict[str, Any]]:
    """Draw calls of three tools with base 0.8: eight an episode, or each until it succeeds, thrice at most."""
    draws, lines = random.Random(seed), []
    for episode in range(episodes):
        is_broken = [draws.random() < broken for _ in range(3)]
        planned = [tool for tool in range(3) for _ in range(3)] if in_order else [draws.randrange(3) for _ in range(8)]
        failures, place, done = 0, 0, set[int]()
        for tool in planned:
            if in_order and tool in done:
                continue
            chance = min(max(0.8 + drift * place, 0.0), 1.0) * history**failures
            success = not is_broken[tool] and draws.random() < chance
            done |= {tool} if success else set()
            lines.append({"tool": f"t{tool}", "error": None if success else draws.choice(CODES), "episode": episode})
            place, failures = place + 1, failures + (not success)
    return lines


def told(folder: Path, lines: list[dict[str, Any]]) -> list[str]:
    path = folder / "calls.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return list(fit_law(path).untold)


def counted(folder: Path, fits: int, **law: Any) -> Counter[str]:
    found = Counter[str]()
    for seed in range(fits):
        lines = told(folder, calls(seed, **law))
        found.update(words for words in (*ORDER, "differ in their errors") if any(words in line for line in lines))
    return found


@pytest.mark.long
def test_equal_tools_that_a_law_draws_show_next_to_no_signs(tmp_path: Path) -> None:
    # Each of the five tests errs once in 370 fits; more than four of 100 fits once in some 10,000 such runs.
    for law in ({}, {"history": 0.9}, {"in_order": True}):
        found = counted(tmp_path, 40, episodes=30, **law)
        assert sum(found.values()) <= 4, (law, found)


def test_broken_tools_and_drift_are_told(tmp_path: Path) -> None:
    assert counted(tmp_path, 10, episodes=150, broken=0.1)["fail again"] >= 8
    assert counted(tmp_path, 10, episodes=100, drift=-0.05)["further into an episode"] >= 9
    assert counted(tmp_path, 10, episodes=200, broken=0.1, in_order=True)["fail again"] >= 9
    lines = told(tmp_path, calls(1, episodes=150, broken=0.1))
    assert any("intervals are narrower than they should be" in line for line in lines)


def test_what_the_order_of_calls_hides_is_said(tmp_path: Path) -> None:
    assert any("Drift cannot be told" in line for line in told(tmp_path, calls(1, episodes=60, in_order=True)))
    lines = told(tmp_path, calls(1, episodes=60))
    assert not any("cannot be told" in line for line in lines)


def test_errors_differ_by_counts_not_by_which_codes_happened_to_come() -> None:
    assert not errors_differ([{"A": 1}, {"B": 1}])
    assert not errors_differ([{"A": 30, "B": 12}, {"A": 25, "B": 9, "C": 1}])
    assert errors_differ([{"A": 30, "B": 2}, {"A": 3, "B": 28}])
    assert not errors_differ([{"A": 3}, {}])
    assert not errors_differ([])
