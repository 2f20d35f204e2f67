"""A world from end to end by the commands: played by agents on a real endpoint, judged, reported, compared, shown."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path

import pytest

from benchmarks.world_models import WorldModel
from resilisim.evaluation.report.viewer import BLOCK_TYPE
from resilisim.worlds import load_world
from tests.chat.loopback import LoopbackServer
from tests.cli.conftest import Command
from tests.evaluation.report.pages import Checker

BLOCK = re.compile(rf'<script type="{re.escape(BLOCK_TYPE)}"[^>]*>(.*?)</script>', re.DOTALL)


@pytest.mark.long
def test_the_records_set_from_evaluate_to_the_viewer(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    sound, risky = tmp_path / "sound", tmp_path / "risky"
    with LoopbackServer(WorldModel([load_world("records-v1")])) as server:
        asked = ("--policy", "rp-react", "--model", "openai:competent", "--base-url", server.base_url)
        told = command("evaluate", "--tasks", "records-v1:8", *asked, "--policy", "reference", "--out", sound)
        assert told.code == 0, told.err
        law = ("--law", "benchmark", "--prompt", "optimal", "--prompt", "flawed")
        told = command("evaluate", "--tasks", "records-v1:4", *asked, *law, "--out", risky, "--json")
        assert 0.9 < told.json()["results"][0]["optimum"]["value"] < 1.0
    for run in (sound, risky):
        assert "agree (numbers to 1e-9)" in command("rescore", run).out
    found = command("compare", sound, sound, "--policy-a", "rp-react", "--policy-b", "reference", "--json").json()
    assert (found["episodes"], found["success_a"]["value"], found["success_b"]["value"]) == (8, 1.0, 1.0)
    assert "cannot be compared: law" in command("compare", sound, risky).refusal()
    for run, words in ((sound, "No call fails by chance."), (risky, "Calls also fail at random by a known law.")):
        command("report", run)
        text = (run / "report.html").read_text(encoding="utf-8")
        page = Checker(text)
        assert words in page.text
        assert "the chance of completing the reference solution" in page.text
        assert "ResiliBench" not in page.text, "whose calls are simulated"
        blocks = [zlib.decompress(base64.b64decode(block)).decode() for block in BLOCK.findall(text)]
        told_of = json.dumps(load_world("records-v1").tasks()[0].description)[1:-1]
        assert any(told_of in block for block in blocks)
        assert any("LoadDB executed successfully" in block for block in blocks)
    shown = command("episode", "show", sound, "0").out
    assert "full success" in shown
    assert "LoadDB executed successfully." in shown
