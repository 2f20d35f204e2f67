"""The workflow of the guide on gates: its `run:` lines, in a repository with a pull request."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

WORKFLOW = Path(__file__).resolve().parents[2] / "docs" / "guides" / "agent-gate.yml"

AGENT = """
from resilisim.workflows import parse_plan

def agent(session):
    for name in parse_plan(session.prompt):
        for _ in range({tries}):
            if session.turns_left and session.call(name).ok:
                break
    return "done"
"""


def run(line: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    package = str(Path(__file__).resolve().parents[2])
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", line],  # as GitHub runs a step
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": package, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def commit(folder: Path, tries: int) -> str:
    (folder / "my_agent.py").write_text(AGENT.format(tries=tries))
    return 'git add -A && git -c user.name=a -c user.email=a@b.c commit -qm "The agent"'


@pytest.mark.long
@pytest.mark.parametrize(("tries", "code"), [(1, 1), (4, 0)])
def test_a_pull_request_is_judged_by_its_run_lines(tmp_path: Path, tries: int, code: int) -> None:
    workflow: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    job = workflow["jobs"]["gate"]
    steps = {step["name"]: step["run"] for step in job["steps"] if "run" in step}
    assert steps.pop("Install your agent and ResiliSim") == "pip install -r requirements.txt"
    assert len(steps) == 3
    origin, work = tmp_path / "origin", tmp_path / "work"
    origin.mkdir()
    assert run(f"git init -q -b main && {commit(origin, 3)}", origin).returncode == 0
    assert run("git clone -q origin work && cd work && git checkout -q -b change", tmp_path).returncode == 0
    assert run(commit(work, tries), work).returncode == 0
    summary = tmp_path / "summary.md"
    play = job["env"]["PLAY"]
    assert play.startswith("resilisim explore --agent my_agent:agent ")
    variables = {
        "GITHUB_BASE_REF": "main",
        "GITHUB_WORKSPACE": str(work),
        "GITHUB_STEP_SUMMARY": str(summary),
        "PLAY": play.replace("--tasks 10", "--tasks 2"),
    }
    codes = [run(line, work, **variables) for line in steps.values()]
    assert [done.returncode for done in codes] == [0, 0, code], [done.stderr for done in codes]
    assert summary.read_text(encoding="utf-8").startswith("### ❌" if code else "### ✅")
    report = ElementTree.parse(work / "gate" / "junit.xml").getroot()
    assert (report.get("tests"), report.get("failures")) == ("1", str(code))
