"""The paper's figures, against its own averages and against each other."""

from __future__ import annotations

import pytest

from resilisim.evaluation.report import published
from resilisim.evaluation.report.page import Table


def test_figures_are_those_of_the_paper_and_fit_each_other() -> None:
    assert published.PROMPTS["GPT-4o-mini"] == ((50.5, 46.5, 3.0), (56.1, 43.9, 0.0), (67.7, 31.2, 1.1))
    assert published.PROMPTS["Llama-3.3-70B"][1] == (43.6, 43.6, 12.7)
    assert published.FLAWED["Gemini-2.5-Flash"][1] == (20.0, 12.8, 67.3)
    assert published.SCALING["Qwen2.5-3B"] == (0.5, 0.5, 99.1)
    column = published.TASK_TYPE_MODELS.index("DeepSeek-R1")
    assert published.TASK_TYPES["Multi-step processing"][column] == 47.3
    # Each printed figure is off by up to 0.05, and so is the printed mean.
    for table, means in ((published.PROMPTS, published.PROMPTS_MEAN), (published.FLAWED, published.FLAWED_MEAN)):
        for prompt, levels in enumerate(means):
            for level, mean in enumerate(levels):
                figures = [row[prompt][level] for row in table.values()]
                assert sum(figures) / len(figures) == pytest.approx(mean, abs=0.1001)
    rows = [levels for row in (*published.PROMPTS.values(), *published.FLAWED.values()) for levels in row]
    for levels in (*rows, *published.SCALING.values()):
        assert sum(levels) == pytest.approx(100.0, abs=0.2001)
    for name, row in published.PROMPTS.items():
        assert published.FLAWED[name][0] == row[2]
    assert published.SCALING["Qwen2.5-32B"] == published.PROMPTS["Qwen2.5-32B"][2]


@pytest.mark.parametrize(
    ("fold", "number", "rows"),
    [
        (published.prompts_reference(), 2, 8),
        (published.flawed_reference(), 3, 8),
        (published.scaling_reference(), 4, 4),
        (published.task_types_reference(), 13, 5),
    ],
)
def test_published_rows_are_folded_away_and_say_what_they_are(fold: published.Fold, number: int, rows: int) -> None:
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
        assert [drops[name] for name in ("GPT-4o-mini", "Gemini-2.5-Flash", "GPT-5-mini")] == ["5.5", "40.1", "−2.8"]
        assert drops["mean (as printed)"] == "7.8"
