"""`resilisim play` has a shorthand for waiting, where that can help."""

from __future__ import annotations

import pytest
from rich.console import Console

from resilisim.cli.evaluation import play
from resilisim.cli.evaluation.play import HELP, PersonPolicy, expand


@pytest.mark.parametrize(
    ("line", "waits", "message"),
    [
        ("w", True, "<wait/>"),
        (" w ", True, "<wait/>"),
        ("w", False, "w"),
        ("w a while", True, "w a while"),
        ("f", True, "<finish/>"),
    ],
)
def test_w_lets_a_turn_pass_where_agents_can_wait(line: str, waits: bool, message: str) -> None:
    assert expand(line, waits=waits) == message


@pytest.mark.parametrize("offered", [True, False])
def test_help_tells_of_it_where_it_works(monkeypatch: pytest.MonkeyPatch, offered: bool) -> None:
    monkeypatch.setattr(play, "_ask", lambda prompt: "w")
    out = Console(record=True, width=300)
    person = PersonPolicy(out)
    person.reset("", {"offers_wait": True} if offered else {})
    assert person.act("The prompt.", {"turns_left": 3}) == ("<wait/>" if offered else "w")
    shown = out.export_text()
    assert ("w waits" in shown) == offered
    assert offered or HELP in shown
