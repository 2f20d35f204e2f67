"""Tokens and lists of names on the command line of `resilisim mcp`."""

from __future__ import annotations

import pytest

from resilisim.cli.mcp import TOKEN_VARIABLE, _tell_url, _token, names_in
from tests.cli.conftest import Command


@pytest.mark.parametrize("value", [None, ""])
def test_a_token_that_is_made_is_shown(
    value: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(TOKEN_VARIABLE, value)
    token = _token("0.0.0.0")
    assert token
    _tell_url(token)("http://0.0.0.0:1")
    assert token in capsys.readouterr().err


def test_a_token_of_the_environment_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "correct-horse-battery")
    _tell_url(_token("0.0.0.0"))("http://0.0.0.0:1")
    assert "correct-horse" not in capsys.readouterr().err


def test_names_stand_between_commas_and_those_with_a_comma_in_quotes() -> None:
    assert names_in('fs/read, "a, b",search the web,') == ["fs/read", "a, b", "search the web"]
    assert names_in(None) == []


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--fails-by", "cut"], "expected --http"),
        (["--fails-by", "TIMEOUT=hnag"], "expected 'hang'"),
        (["--fails-by", "hang", "--fails-by", "TIMEOUT=hang"], "expected one of them"),
        (["--fails-by", "TIMOUT=hang"], "did you mean 'TIMEOUT'"),
    ],
)
def test_ways_of_failing_that_are_none(words: list[str], problem: str, command: Command) -> None:
    assert problem in command("mcp", "proxy", "--law", "0.8", *words, "--", "server").refusal()
