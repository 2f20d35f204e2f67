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


def test_a_law_is_fitted_written_checked_and_shown(command: Command, tmp_path: Path) -> None:
    lines = [
        {"tool": f"find_{'ab'[k % 2]}", "error": "TIMEOUT" if k % 5 == 0 else None, "seconds": 0.1} for k in range(60)
    ]
    (tmp_path / "calls.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("mine.yaml", "mine.json"):
        out = tmp_path / name
        done = command("law", "fit", tmp_path, "--latency", "--out", out)
        assert done.code == 0, done.err
        assert "find_a" in done.out
        assert "TIMEOUT: 6" in done.out
        assert "These calls have no order" in done.err
        assert f"wrote {out}" in done.err
        law = load_law(out)
        assert (law.name, law.base, law.bases) == ("mine", 0.8, {"find_a": 0.8, "find_b": 0.8})
        assert law.latency is not None
        assert "none of the default library" in command("law", "check", out).err
        assert command("law", "show", out, "--json").json()["errors"] == {"TIMEOUT": 12.0}
    fitted = command("law", "fit", tmp_path, "--json").json()
    assert fitted["law"]["bases"] == {"find_a": 0.8, "find_b": 0.8}
    assert [row["calls"] for row in fitted["tools"]] == [30, 30]
    assert fitted["tools"][0]["base"]["low"] == pytest.approx(0.6143, abs=1e-4)


def test_a_law_for_the_tools_of_a_world_is_checked_by_its_library(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "apis.yaml"
    path.write_text("bases: {joke_fetcher: 0.5, word_fetcher: 0.7}\n")
    assert "apis.yaml is a law" in command("law", "check", path, "--tasks", "apis-v1").err
    assert "unknown tool 'joke_fetcher'" in command("law", "check", path, "--tasks", "records-v1").refusal()


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        ([], "RECORDS"),
        (["."], "holds no recorded calls"),
        ([".", "--out", "law.txt"], "expected a name that ends in .yaml, .yml, .json"),
        ([".", "--failures", "none"], "none"),
    ],
)
def test_what_cannot_be_fitted_is_one_line(
    arguments: list[str], refusal: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal in command("law", "fit", *arguments).refusal()


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("bas: 0.9", "unknown field 'bas': did you mean 'base'"),
        ("rate_limit: {calls: 0, window: 3}", "field 'rate_limit', field 'calls': got 0; expected a whole number"),
        ("errors: {TIMEOUT: 0}", "errors has no weight above 0"),
        ("errors: {TIMEOUT: -1}", "field 'errors'"),
        ("base: [", "not valid YAML"),
        ("bases: {utility_cahce: 0.5}", "unknown tool 'utility_cahce': did you mean 'utility_cache'"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(text: str, refusal: str, command: Command, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    assert refusal in command("law", "check", path).refusal()
