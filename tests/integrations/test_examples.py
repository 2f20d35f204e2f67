"""The examples for frameworks are short, and those whose packages are installed here are run."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples/agents").glob("*.py"))
LONGEST_FUNCTION = 15  # lines; of a class beside it, too


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_short_and_shown_in_the_guide(path: Path) -> None:
    definitions = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if hasattr(node, "name")]
    assert "agent" in [node.name for node in definitions]
    assert all(node.end_lineno - node.lineno < LONGEST_FUNCTION for node in definitions)
    assert f"../../examples/agents/{path.name}" in (ROOT / "docs/guides/evaluate-agents.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["openai"])
def test_doors_whose_packages_are_installed_give_the_episodes_of_the_environment(name: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "integrations")}
    command = [sys.executable, str(ROOT / "integrations" / name / "check.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "episodes are those of Conversation-v0" in done.stdout
