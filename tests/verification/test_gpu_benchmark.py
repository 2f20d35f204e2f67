"""The benchmark of a GPU, tiny and on a CPU: parts are kept, run once, and do not hinder each other."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu import NOT_MEASURED, PAGE_FILE, PARTS, RESULTS_FILE, Part, Setting, main, page, run_all


def test_without_a_device_one_line_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "torch finds no CUDA device here" in said
    assert not (tmp_path / "out").exists()
    with pytest.raises(SystemExit) as ended:
        main(["--out", str(tmp_path), "--device", "cpu"])
    assert ended.value.code == 2


def test_a_part_that_is_there_is_skipped_and_one_that_failed_is_run_again(tmp_path, monkeypatch):
    ran = []

    def outcome(name, setting, limit):
        ran.append(name)
        return {"failed": "ended with 1", "output": "a traceback", "seconds": 1.0} if name == "sft" else {
            "found": {"steps": 3, "rows": [{"a": 1, "b": 2.5}]}, "seconds": 2.0
        }  # fmt: skip

    monkeypatch.setattr(gpu, "outcome_of", outcome)
    setting = Setting("cpu", True, tmp_path / "runs", None)
    names = ["parity", "sft", "dagger"]
    assert run_all(setting, tmp_path, names, 1.0) == 1
    assert run_all(setting, tmp_path, names, 1.0) == 1
    assert ran == ["parity", "sft", "dagger", "sft"]
    results = json.loads((tmp_path / RESULTS_FILE).read_text())
    assert results["parts"]["parity"]["found"]["steps"] == 3
    assert "torch" in results["about"]["versions"]
    shown = (tmp_path / PAGE_FILE).read_text()
    assert "failed: ended with 1" in shown
    assert "| a | b |" in shown
    assert shown.count(NOT_MEASURED) == len(PARTS) - 3


def test_a_part_that_fails_or_hangs_tells_and_ends(tmp_path, monkeypatch):
    runs = tmp_path / "runs"
    runs.mkdir()
    monkeypatch.setattr(gpu.sys, "executable", "/bin/sh")  # which runs no module: a part that cannot even begin
    told = gpu.outcome_of("parity", Setting("cpu", True, runs, None), 60.0)
    assert told["failed"].startswith("ended with ")
    assert told["output"]
    hanging = runs / "hangs"
    hanging.write_text("#!/bin/sh\necho begun\nexec sleep 100\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(gpu.sys, "executable", str(hanging))
    told = gpu.outcome_of("parity", Setting("cpu", True, runs, None), 1.0)
    assert (told["failed"], told["output"]) == ("was ended after 1 s", "begun\n")


def test_an_error_in_a_part_is_its_exit_code(tmp_path, monkeypatch, capsys):
    def work(setting):
        """Fail."""
        raise RuntimeError("no kernel image")

    monkeypatch.setitem(gpu.PARTS, "parity", Part(work, 1.0))
    target = tmp_path / "parity.json"
    assert gpu.run_part("parity", Setting("cpu", True, tmp_path, None), target) == 1
    assert "no kernel image" in capsys.readouterr().err
    assert not target.exists()


def test_nothing_measured_is_a_page_that_says_so():
    shown = page({})
    assert shown.count(NOT_MEASURED) == len(PARTS)


@pytest.mark.parametrize("name", ["parity", "resume"])
def test_cheap_parts_run_on_a_cpu(tmp_path, name):
    found = PARTS[name].work(Setting("cpu", True, tmp_path, None))
    if name == "resume":
        assert found["equal to the bit"]
        return
    assert found["float32"]["largest difference of logits"] == 0.0
    assert found["float32"]["largest difference of weights after an update"] == 0.0
    assert 0.0 < found["bfloat16"]["largest difference of logits"] < 0.1
    assert 0.0 < found["bfloat16"]["difference of weights as a share of what the update moved"] < 1.0
