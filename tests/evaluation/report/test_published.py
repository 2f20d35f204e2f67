"""The paper's figures, against its own averages and against each other."""

from __future__ import annotations

import json

import pytest

from resilisim.evaluation.report import groups
from resilisim.evaluation.report.page import Table, packaged_file

MEAN = "mean (as printed)"


def test_figures_are_those_of_the_paper_and_fit_each_other() -> None:
    prompts, flawed, scaling, types = (
        json.loads(packaged_file("published.json"))[number] for number in ("2", "3", "4", "13")
    )
    assert prompts["rows"]["GPT-4o-mini"] == [[50.5, 46.5, 3.0], [56.1, 43.9, 0.0], [67.7, 31.2, 1.1]]
    assert prompts["rows"]["Llama-3.3-70B"][1] == [43.6, 43.6, 12.7]
    assert flawed["rows"]["Gemini-2.5-Flash"][1] == [20.0, 12.8, 67.3]
    assert scaling["rows"]["Qwen2.5-3B"] == [[0.5, 0.5, 99.1]]
    assert types["rows"]["Multi-step processing"][0][types["columns"].index("DeepSeek-R1") - 1] == 47.3
    # Each printed figure is off by up to 0.05, and so is the printed mean.
    for table in (prompts, flawed):
        rows = [levels for name, levels in table["rows"].items() if name != MEAN]
        for prompt, means in enumerate(table["rows"][MEAN]):
            for level, mean in enumerate(means):
                assert sum(row[prompt][level] for row in rows) / len(rows) == pytest.approx(mean, abs=0.1001)
        for levels in (levels for row in rows for levels in row):
            assert sum(levels) == pytest.approx(100.0, abs=0.2001)
    for name, row in prompts["rows"].items():
        assert flawed["rows"][name][0] == row[2]
    assert scaling["rows"]["Qwen2.5-32B"] == prompts["rows"]["Qwen2.5-32B"][2:]


@pytest.mark.parametrize(("number", "rows"), [(2, 8), (3, 8), (4, 4), (13, 5)])
def test_published_rows_are_folded_away_and_say_what_they_are(number: int, rows: int) -> None:
    fold = groups.published_reference(number)
    assert fold.is_published
    assert "Published figures of other systems" in fold.summary
    (table,) = fold.blocks
    assert isinstance(table, Table)
    assert f"table {number})" in table.caption
    assert "not of this run" in table.caption
    assert any("Other systems, another scorer and another environment" in note for note in table.notes)
    assert any("not its five task types" in note for note in table.notes) == (number == 13)
    assert len(table.rows) == rows
    assert {len(row) for row in table.rows} == {len(table.headings)}
    if number == 3:
        drops = {row[0]: row[-1] for row in table.rows}
        assert [drops[name] for name in ("GPT-4o-mini", "Gemini-2.5-Flash", "GPT-5-mini", MEAN)] == [
            "5.5",
            "40.1",
            "−2.8",
            "7.8",
        ]
