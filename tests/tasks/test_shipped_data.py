"""The command that computes shipped data anew, on the first tasks, so that few texts have to be embedded."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from benchmarks import shipped_data
from benchmarks.shipped_data import SHIPPED, main
from resilisim.envs.workflow.context import SimilarityTable, shipped_table
from resilisim.tasks import searches
from resilisim.tasks.benchmark import BENCHMARK_VERSION, benchmark_tasks
from resilisim.worlds.pages import generated

TASKS = benchmark_tasks(BENCHMARK_VERSION)


# Making the questions of records-v1 again takes minutes; `python -m benchmarks.shipped_data records` compares them.
@pytest.mark.parametrize("name", [name for name in SHIPPED if name != "records"])
def test_the_command_writes_and_compares_the_same_bytes(name, tmp_path, monkeypatch, capsys):
    file, compute = SHIPPED[name]
    copy = tmp_path / file.name
    monkeypatch.setitem(SHIPPED, name, (copy, compute))
    monkeypatch.setattr(shipped_data, "benchmark_tasks", lambda: TASKS[:3])
    monkeypatch.setattr(shipped_data, "DEFAULT_COUNT", 3)
    monkeypatch.setattr(generated, "PAGES_SIZE", 60)
    monkeypatch.setattr(generated, "PAGES_QUESTIONS", 1)
    assert main([name, "--rebuild"]) == main([name]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second
    assert "SHA-256" in first
    written = copy.read_bytes()
    if name == "benchmark":
        assert len(gzip.decompress(written).splitlines()) == 3
    elif name == "pages":
        assert len(gzip.decompress(written).splitlines()) == len(generated.QUESTION_KINDS)
    elif name == "searches":
        assert f'"searches":"{searches.shipped_table(BENCHMARK_VERSION)["searches"][:3]}"'.encode() in written
    else:
        assert (
            np.abs(SimilarityTable.from_bytes(written).scores - shipped_table(BENCHMARK_VERSION).scores[:3]).max() <= 1
        )
    copy.write_bytes(b"")
    assert main([name]) == 1
