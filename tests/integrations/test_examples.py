"""The examples for frameworks are short, and those whose packages are installed here are run."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

import pytest

from resilisim.cli.main import main
from resilisim.evaluation import read_records

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples/agents").glob("*.py"))
LONGEST_FUNCTION = 15  # lines; of a class beside it, too


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_short_and_shown_in_the_guide(path: Path) -> None:
    definitions = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if hasattr(node, "name")]
    assert "agent" in [node.name for node in definitions]
    assert all(node.end_lineno - node.lineno < LONGEST_FUNCTION for node in definitions)
    assert f"../../examples/agents/{path.name}" in (ROOT / "docs/guides/your-agent.md").read_text(encoding="utf-8")


def test_an_example_on_the_command_line_gives_the_episodes_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATE_TASKS", "3")
    monkeypatch.syspath_prepend(str(ROOT / "integrations"))
    gate: Any = importlib.import_module("gate")  # `make integrations` plays all of it, with every framework
    played = {}
    with gate.Endpoint() as endpoint:
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        for player in ("follower", "stubborn"):
            monkeypatch.setenv("AGENT_MODEL", player)
            options = ["--prompt", gate.PROMPT, "--tasks", "3", "--seeds", "3", "--out", str(tmp_path / player)]
            with pytest.raises(SystemExit) as left:
                main(["evaluate", "--agent", "examples.agents.openai_loop:agent", *options])
            assert left.value.code == 0
            for record in read_records(tmp_path / player):
                played[player, record["instance_id"], record["seed"]] = record
                tokens = record["agent"]["components"]["agent"]["prompt_tokens"]
                assert tokens == gate.USAGE["prompt_tokens"] * len(record["agent"]["calls"])
    gate.compare("the command line", played, ("follower", "stubborn"))
