"""The key figures, the notes of tables and the words of the page: nothing that looks wrong stands without a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import Markup

from resilisim.evaluation.report import write_report
from resilisim.evaluation.report.body import NOT_PRIVILEGED, build_page, cards
from resilisim.evaluation.report.groups import PromptPools
from resilisim.evaluation.report.page import (
    Card,
    Fold,
    Page,
    Section,
    Table,
    packaged_texts,
    page_markdown,
    say,
    whole_page,
    with_interval,
)
from resilisim.evaluation.table.facts import RunFacts, read_facts
from resilisim.evaluation.table.summary import format_percent
from resilisim.statistics import Estimate
from tests.evaluation.report.agent_records import agent_records
from tests.evaluation.report.pages import check, write_run
from tests.evaluation.synthetic import synthetic_run


def facts_of(folder: Path, **more: Any) -> RunFacts:
    return read_facts(write_run(folder, list(synthetic_run(**more))))


def cards_of(facts: RunFacts) -> dict[str, Card]:
    return {card.name: card for card in cards(PromptPools(facts))}


def test_shares_of_the_fitting_ceiling_lead_and_sort_the_page(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, num_tasks=12, num_seeds=3)
    pools = PromptPools(facts)
    optimum = facts.rows[0].optimum.value
    for row in facts.rows:
        # Of the made-up records a quarter of V* goes into finding the tools.
        ceiling = optimum * (0.75 if row.prompt_type == "baseline" and not row.privileged else 1.0)
        assert row.ceiling.value == pytest.approx(ceiling)
        assert row.adjusted_share.value == pytest.approx(row.luck_adjusted.value / ceiling)
        assert row.adjusted_share.low <= row.adjusted_share.value <= row.adjusted_share.high
        assert row.adjusted_share.num_clusters == 12
    for prompt in ("baseline", "optimal"):
        rows = [row for row in pools.rows if row.prompt_type == prompt]
        assert [row.privileged for row in rows] == [False, False, False, True]
        shares = [row.adjusted_share.value for row in rows[:-1]]
        assert shares == sorted(shares, reverse=True)
    best = max((row for row in facts.rows if not row.privileged), key=lambda row: row.adjusted_share.value)
    first, second, *_ = cards(pools)
    assert first.figure == f"{format_percent(best.adjusted_share.value)}%"
    assert first.whose.startswith(best.policy)
    assert NOT_PRIVILEGED in first.detail
    assert second.figure == f"{format_percent(best.ceiling.value)}%"
    text = "".join(check(write_report(tmp_path)).texts)
    assert f"ceiling {75 * optimum:.1f}%, V* {100 * optimum:.1f}%" in text
    assert f"ceiling V* {100 * optimum:.1f}%" in text


def test_a_lucky_run_does_not_lead_with_more_than_its_ceiling(tmp_path: Path) -> None:
    perfect = [{**record, "policy": "perfect", "privileged": False} for record in synthetic_run(("exact-optimum",))]
    lucky = [record for place, record in enumerate(perfect) if record["outcome"] or place % 2]
    facts = read_facts(write_run(tmp_path, lucky))
    for row in facts.rows:
        assert row.share_of_ceiling.value > 1.05  # stands in a column of the folded table only
        assert row.adjusted_share.value == pytest.approx(1.0)
        assert row.adjusted_share.low > 0.85  # one observation a task: no certainty where nothing varies
        assert row.adjusted_share.high == pytest.approx(1.0)
    first = cards(PromptPools(facts))[0]
    assert first.figure == "100.0%"
    assert "points of luck" in first.detail


def test_a_policy_that_tries_again_leads_with_raw_success_and_the_page_says_why(tmp_path: Path) -> None:
    records = agent_records(num_tasks=6)
    again = [
        {**record, "agent": {**record["agent"], "restarts": 1}} if record["policy"].startswith("react") else record
        for record in records
    ]
    facts = read_facts(write_run(tmp_path, again))
    rows = PromptPools(facts).rows
    assert [row.tries_again for row in rows if row.prompt_type == "optimal"] == [False] * 4 + [True] * 4
    page = check(write_report(tmp_path))
    assert say("tries_again") in page.texts
    raw = next(row for row in rows if row.tries_again)
    assert f"{format_percent(raw.success.value)}% raw" in page.texts
    only = read_facts(write_run(tmp_path / "only", [record for record in again if "rp-" not in record["policy"]]))
    card = cards(PromptPools(only))[0]
    assert card.name == "Highest success"
    assert "no ceiling" in card.detail


def test_what_a_chart_shows_is_folded_and_nothing_stands_twice(tmp_path: Path) -> None:
    page = build_page(facts_of(tmp_path, num_tasks=6, num_seeds=2), tmp_path)
    for section in page.sections:
        if any(isinstance(block, Markup) for block in section.blocks):
            assert [block for block in section.blocks if isinstance(block, Table)] == []
    folds = [block for section in page.sections for block in section.blocks if isinstance(block, Fold)]
    captions = [block.caption for fold in folds for block in fold.blocks if isinstance(block, Table)]
    assert len(set(captions)) == len(captions)


@pytest.mark.parametrize("num_tasks", [1, 4])
def test_a_dash_in_place_of_an_interval_has_its_reason_below_the_table(num_tasks: int) -> None:
    low = np.nan if num_tasks == 1 else 0.25
    cell = with_interval(Estimate(0.5, low, low, low, num_tasks, 8))
    table = Table("Success", ("policy", "success"), [("random", cell)])
    page = Page("", "", "", (), (), [Section("results", "Results", [table])], "")
    for text in (whole_page(page).decode(), page_markdown(page)):
        assert (say("no_interval").split("(")[0] in text) == (num_tasks == 1)


def test_every_word_of_the_tables_that_is_no_plain_english_is_explained(tmp_path: Path) -> None:
    page = build_page(facts_of(tmp_path, num_tasks=6, num_seeds=2), tmp_path)
    assert "reading" in [section.target for section in page.sections]
    known = " | ".join(packaged_texts("words.txt"))
    words = ("V*", "ceiling", "luck-adjusted", "share of ceiling", "lost by calls", "information", "obey", "deviate")
    for word in (*words, "pass@k", "pass^k", "p (Holm)", "privileged", "regret"):
        assert word in known
