"""The key figures, the notes of tables and the words of the page: nothing that looks wrong stands without a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resilisim.evaluation.report.body import build_page
from resilisim.evaluation.report.cells import REGRET_ADDS_UP, with_interval
from resilisim.evaluation.report.content import NO_INTERVAL_NOTE, Card, Table
from resilisim.evaluation.report.facts import RunFacts, read_facts
from resilisim.evaluation.report.frame import READING
from resilisim.evaluation.report.html_page import table_markup
from resilisim.evaluation.report.key_figures import NOT_PRIVILEGED, adjusted_share, cards
from resilisim.evaluation.report.losses import losses_section
from resilisim.evaluation.report.markdown import table_markdown
from resilisim.evaluation.report.rows import PromptPools
from resilisim.evaluation.report.success import success_table
from resilisim.evaluation.statistics import Estimate
from tests.evaluation.report.pages import write_run
from tests.evaluation.synthetic import synthetic_run


def facts_of(folder: Path, **more: Any) -> RunFacts:
    return read_facts(write_run(folder, list(synthetic_run(**more))))


def cards_of(facts: RunFacts) -> dict[str, Card]:
    return {card.name: card for card in cards(facts, PromptPools(facts))}


def test_the_adjusted_share_is_luck_adjusted_success_over_mean_ceiling(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, num_tasks=12, num_seeds=3)
    for row in facts.rows:
        share = adjusted_share(facts, row)
        assert share.value == pytest.approx(row.luck_adjusted.value / row.optimum.value, abs=1e-9)
        assert share.low <= share.value <= share.high
        assert share.num_clusters == 12


def test_a_share_above_100_is_put_down_to_luck(tmp_path: Path) -> None:
    lucky = [
        {**record, "outcome": 1, "luck": 1.0 - record["optimum"] + record["regret"]}
        for record in synthetic_run(("random",), ("optimal",), num_tasks=6, num_seeds=2)
    ]
    shown = cards_of(read_facts(write_run(tmp_path, lucky)))
    detail = shown["Its share of the ceiling, luck taken out"].detail
    assert "above 100 by luck" in detail


def test_the_highest_success_says_whose_it_is(tmp_path: Path) -> None:
    records = list(synthetic_run(num_tasks=6, num_seeds=2))
    policies = sorted({record["policy"] for record in records})
    marked = [{**record, "privileged": record["policy"] == policies[0]} for record in records]
    plain = [{**record, "privileged": False} for record in records]
    for name, own, expected in (("a", marked, True), ("b", plain, False)):
        shown = cards_of(read_facts(write_run(tmp_path / name, own)))
        detail = next(card.detail for card in shown.values() if card.name in ("Highest success", "Success"))
        assert (NOT_PRIVILEGED in detail) == expected


@pytest.mark.parametrize("num_tasks", [1, 4])
def test_a_dash_in_place_of_an_interval_has_its_reason_below_the_table(num_tasks: int) -> None:
    low = np.nan if num_tasks == 1 else 0.25
    cell = with_interval(Estimate(0.5, low, low, low, num_tasks, 8))
    table = Table("Success", ("policy", "success"), [("random", cell)])
    assert (NO_INTERVAL_NOTE in table_markup(table)) == (num_tasks == 1)
    assert (NO_INTERVAL_NOTE.split("(")[0] in table_markdown(table)) == (num_tasks == 1)


def test_a_run_of_one_task_says_why_its_numbers_have_no_interval(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, num_tasks=1, num_seeds=3)
    table = success_table(facts.rows)
    dashes = [cell for row in table.rows for cell in row if getattr(cell, "detail", "") == "–"]
    assert dashes
    assert NO_INTERVAL_NOTE in table.all_notes


def test_lost_points_above_100_are_explained_where_they_stand(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, num_tasks=6, num_seeds=2)
    text = losses_section(facts).blocks[0]
    assert isinstance(text, str)
    assert REGRET_ADDS_UP in text


def test_every_word_of_the_tables_that_is_no_plain_english_is_explained(tmp_path: Path) -> None:
    page = build_page(facts_of(tmp_path, num_tasks=6, num_seeds=2), tmp_path)
    assert "reading" in [section.target for section in page.sections]
    known = " | ".join(READING)
    words = ("V*", "luck-adjusted", "share of ceiling", "lost by calls", "information", "obey", "deviate")
    for word in (*words, "pass@k", "pass^k", "p (Holm)", "privileged", "regret"):
        assert word in known
