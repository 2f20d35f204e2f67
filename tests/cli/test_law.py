"""`resilisim law`: list, show, schema and check, through the real commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from resilisim.simulator import law_schema, load_law, shipped_laws
from tests.cli.conftest import Command


def test_the_laws_that_ship_are_listed_and_shown(command: Command) -> None:
    listed = command("law", "list", "--json").json()
    assert [law["name"] for law in listed] == list(shipped_laws())
    for law in listed:
        shown = command("law", "show", law["name"], "--json").json()
        found = load_law(law["name"])
        assert shown["hash"] == found.content_hash
        assert {name for name in shown if name in found.parts} == set(law["parts"])
    outages = command("law", "show", "outages")
    assert "begins" in outages.out
    assert "agents can wait" in outages.err
    assert "two ceilings" in outages.err
    assert "agents can wait" not in command("law", "show", "meaningful-errors").err


def test_the_schema_is_that_of_the_model(command: Command) -> None:
    assert json.loads(command("law", "schema").out) == law_schema()


def test_a_file_is_checked(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("base: 0.9\nbases: {utility_cache: 0.5}\n")
    done = command("law", "check", path, "--json")
    assert done.json() == {"name": "mine", "parts": [], "hash": load_law(path).content_hash}
    assert "mine.yaml is a law: no parts; hash" in done.err


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("bas: 0.9", "unknown field 'bas': did you mean 'base'"),
        ("rate_limit: {calls: 0, window: 3}", "field 'rate_limit', field 'calls': got 0; expected a whole number"),
        ("base: [", "not valid YAML"),
        ("bases: {utility_cahce: 0.5}", "unknown tool 'utility_cahce': did you mean 'utility_cache'"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(text: str, refusal: str, command: Command, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    assert refusal in command("law", "check", path).refusal()
