"""The report: one file, nothing loaded from elsewhere, nothing from a record becomes markup, all numbers in tables.

Markdown and HTML are made of one page: the same tables with the same numbers.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import Markup

from resilisim.errors import StoreError
from resilisim.evaluation.episode.record import LOSS_LABELS
from resilisim.evaluation.report import charts, write_report
from resilisim.evaluation.report.body import NOT_PRIVILEGED, build_page, cards
from resilisim.evaluation.report.charts import Entry, Figure, legend, words
from resilisim.evaluation.report.groups import PromptPools
from resilisim.evaluation.report.page import (
    Card,
    Cell,
    Fold,
    Page,
    Section,
    Table,
    draw,
    packaged_texts,
    page_markdown,
    say,
    whole_page,
    with_interval,
)
from resilisim.evaluation.report.page import escape_markdown as escape
from resilisim.evaluation.report.results import loss_bar
from resilisim.evaluation.run.store import read_manifest, read_records
from resilisim.evaluation.table.episodes import sums_of
from resilisim.evaluation.table.facts import RunFacts, read_facts
from resilisim.evaluation.table.summary import format_interval, format_percent, summarise
from resilisim.statistics import Estimate
from tests.evaluation.report.agent_records import agent_records
from tests.evaluation.report.pages import Checker, check, make_run, write_run
from tests.evaluation.synthetic import CARELESSNESS, synthetic_run

EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>|[x](javascript:y)&\"'`*_#"


def test_nothing_from_a_record_becomes_markup_in_html_or_markdown(tmp_path: Path) -> None:
    records = []
    for record in synthetic_run(("random",), ("baseline",), num_tasks=4, num_seeds=3):
        steps = [{**step, "message": EVIL, "error": EVIL, "tool": EVIL, "kind": EVIL} for step in record["steps"]]
        names = {name: EVIL + record[name] for name in ("task_type", "instance_id")}
        names |= dict.fromkeys(("policy", "ended_by", "planner"), EVIL)
        own = {"required_tools": [EVIL], "steps": steps, "losses": {EVIL: record["regret"]}}
        records.append({**record, **names, **own})
    page = check(write_report(write_run(tmp_path, records), markdown=tmp_path / "report.md"))
    assert EVIL in "".join(page.texts)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert not re.search(r"(?<!\\)<(?!/?(details|summary)>)", text)
    assert not re.search(r"(?<!\\)\[x", text)
    assert markdown_tables(text)[1][0][0] == EVIL


def test_a_report_says_what_keeps_its_numbers_from_being_final(tmp_path: Path) -> None:
    records = list(synthetic_run(num_tasks=2, num_seeds=1))
    bounded = [{**record, "optimum_gap": 0.0111 if record["index"] == 3 else 0.0} for record in records]

    def texts(name: str, shown: list[Any], planned: int | None = None) -> str:
        folder = write_run(tmp_path / name, shown, planned)
        return "".join(check(write_report(folder, markdown=tmp_path / f"{name}.md")).texts)

    whole = texts("whole", records)
    assert "lower bounds" not in whole
    assert "Not finished" not in whole
    assert "lower bounds, at most 1.2 points too low" in texts("bounded", bounded)
    assert f"{len(records)} of 1,000 episodes" in texts("some", records, 1000)
    assert "No episode is finished yet" in texts("none", [], 10)
    assert markdown_tables((tmp_path / "none.md").read_text(encoding="utf-8")) == []
    with pytest.raises(StoreError, match="no folder of results"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    ("policies", "tasks", "seeds", "num_types"),
    [
        (("random",), 1, 1, 1),
        (("random",), 1, 5, 1),
        (("exact-optimum",), 3, 1, 1),
        (tuple(f"some.package.agents:AgentNumber{number}" for number in range(12)), 40, 1, 20),
    ],
)
def test_small_and_large_runs_have_the_same_report_each_time(
    tmp_path: Path, policies: tuple[str, ...], tasks: int, seeds: int, num_types: int
) -> None:
    records = [
        {**record, "task_type": f"type_{int(record['instance_id'][-8:], 16) % num_types}"}
        for record in synthetic_run(policies, ("baseline", "optimal"), tasks, seeds)
    ]
    path = make_run(tmp_path, records)
    assert ("12 rarer types left out" in "".join(check(path).texts)) == (num_types == 20)
    first = path.read_bytes()
    assert write_report(tmp_path, tmp_path / "other.html").read_bytes() == first


def test_charts_have_folded_tables_nothing_stands_twice_and_every_word_is_explained(tmp_path: Path) -> None:
    page = build_page(facts_of(tmp_path, num_tasks=6, num_seeds=2), tmp_path)
    for section in page.sections:
        if any(isinstance(block, Markup) for block in section.blocks):
            assert [block for block in section.blocks if isinstance(block, Table)] == []
    folds = [block for section in page.sections for block in section.blocks if isinstance(block, Fold)]
    captions = [block.caption for fold in folds for block in fold.blocks if isinstance(block, Table)]
    assert len(set(captions)) == len(captions)
    assert "reading" in [section.target for section in page.sections]
    known = " | ".join(packaged_texts("words.txt"))
    words = ("V*", "ceiling", "luck-adjusted", "share of ceiling", "lost by calls", "information", "obey", "deviate")
    for word in (*words, "pass@k", "pass^k", "p (Holm)", "privileged", "regret"):
        assert word in known


def test_every_text_of_the_pages_is_used() -> None:
    folder = Path(write_report.__code__.co_filename).parent
    code = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.[pj]*") if path.suffix != ".js")
    for name in packaged_texts("texts.txt"):
        used = re.search(rf"[\"']{name}[\"']", code) or name in ("profile_reliability", "profile_turns")
        assert used, name


def test_every_number_of_the_summary_stands_in_the_report(tmp_path: Path) -> None:
    path = make_run(tmp_path, list(synthetic_run(num_tasks=12, num_seeds=2)))
    text = "".join(check(path).texts)
    for row in summarise(sums_of(read_records(tmp_path))):
        for estimate in (row.success, row.partial_success, row.share_of_ceiling, row.adjusted_share, row.luck_adjusted):
            assert format_percent(estimate.value) in text
            assert format_interval(estimate).replace("-", "−") in text
        for loss in row.losses.values():
            assert format_interval(loss).replace("-", "−") in text
        assert format_percent(row.optimum.value) in text
    assert "Not finished" not in text
    for policy in CARELESSNESS:
        assert policy in text
    assert "benchmark-v1" in text


@pytest.mark.parametrize("message", ["\x00\x1b[31m\ud800", "a" * 100_000, "]]>", "\u202eright to left"])
def test_odd_messages_do_no_harm(tmp_path: Path, message: str) -> None:
    records = []
    for record in synthetic_run(("random",), ("baseline",), num_tasks=2, num_seeds=1):
        records.append({**record, "steps": [{**step, "message": message} for step in record["steps"]]})
    path = make_run(tmp_path, records)
    check(path)
    assert "\x00" not in path.read_text(encoding="utf-8")
    assert len(path.read_bytes()) < 200_000


def test_the_bars_add_up_to_what_the_policy_missed(tmp_path: Path) -> None:
    folder = write_run(tmp_path, list(synthetic_run(num_tasks=10, num_seeds=2)))
    for row in summarise(sums_of(read_records(folder), read_manifest(folder))):
        bar = loss_bar(row, list(row.losses))
        assert sum(part.amount for part in bar) - row.luck.value == pytest.approx(1.0 - row.success.value)


def test_every_cause_has_a_colour_in_light_and_dark() -> None:
    style = (Path(write_report.__code__.co_filename).parent / "templates" / "style.css").read_text(encoding="utf-8")
    light, dark = style.split("prefers-color-scheme: dark", 1)
    for label in LOSS_LABELS:
        name = label.replace("_", "-")
        assert f"--{name}:" in light
        assert f"--{name}:" in dark
        assert f".{name} {{ fill: var(--{name}); }}" in style


def test_a_full_disk_leaves_the_old_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_run(tmp_path, list(synthetic_run(num_tasks=2, num_seeds=1)))
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("resilisim.run_folder.os.fsync", full)
    with pytest.raises(StoreError, match="disk is full"):
        write_report(tmp_path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.endswith(".tmp")] == []


def test_charts_escape_their_texts_and_write_numbers_in_pixels() -> None:
    shapes = [
        words(1.0, -0.001, EVIL, EVIL, tooltip=EVIL),
        charts.line(2.345, 0.0, 10.0, 1e-9, "a b"),
        words(0, 0, "\x07é", ""),
    ]
    one = draw("chart", Figure(100.0, 50.0, EVIL, EVIL, shapes))
    page = Checker()
    page.feed(one)
    assert set(page.tags) == {"svg", "title", "desc", "text", "line"}
    assert page.texts.count(EVIL) == 4
    assert "\N{REPLACEMENT CHARACTER}é" in page.texts
    assert '<line x1="2.35" y1="0" x2="10" y2="0" class="a b"></line>' in one
    assert '<text x="1" y="0" ' in one
    page = Checker()
    page.feed(legend(Entry("dot", EVIL, EVIL, EVIL)))
    assert set(page.tags) == {"ul", "li", "svg", "line", "circle"}
    assert "".join(page.texts).strip() == EVIL


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


@pytest.mark.parametrize("num_tasks", [1, 4])
def test_a_dash_in_place_of_an_interval_has_its_reason_below_the_table(num_tasks: int) -> None:
    low = np.nan if num_tasks == 1 else 0.25
    cell = with_interval(Estimate(0.5, low, low, low, num_tasks, 8))
    table = Table("Success", ("policy", "success"), [("random", cell)])
    page = Page("", "", "", (), (), [Section("results", "Results", [table])], "")
    for text in (whole_page(page).decode(), page_markdown(page)):
        assert (say("no_interval").split("(")[0] in text) == (num_tasks == 1)


CELL_END = re.compile(r"(?<!\\)\|")


def markdown_tables(text: str) -> list[list[list[str]]]:
    """Return the rows of each table of a Markdown text, without headings."""
    tables: list[list[list[str]]] = []
    inside = False
    for line in text.splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        cells = [re.sub(r"\\(.)", r"\1", cell).strip() for cell in CELL_END.split(line)[1:-1]]
        if not inside:
            tables.append([])
            inside = True
            continue
        if set(line) <= set("|-: "):
            continue
        tables[-1].append([re.sub(r"^\*\*(.*)\*\*$", r"\1", cell) for cell in cells])
    return tables


@pytest.mark.parametrize("kind", ["scripted", "agents", "unfinished"])
def test_markdown_has_the_tables_of_the_page(tmp_path: Path, kind: str) -> None:
    if kind == "agents":
        records: list[dict[str, Any]] = agent_records(num_tasks=4)
    else:
        records = [dict(record) for record in synthetic_run(num_tasks=6, num_seeds=2)]
    folder = write_run(tmp_path, records, planned=len(records) + 5 * (kind == "unfinished"))
    page = check(write_report(folder, markdown=tmp_path / "report.md"))
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    shown = [
        [[" ".join(cell.split()) for cell in row] for row in table if row]
        for table in page.tables
        if "message" not in table[0][1:2]  # episodes for readers without a script stand in the page only
    ]
    found = markdown_tables(text)[1:]  # the first holds the key figures, which are no table in the page
    assert len(found) > 8
    assert len(found) == len(shown)
    for mine, its in zip(found, shown, strict=True):
        assert mine == its[-len(mine) :]
    for name, figure, _, _ in markdown_tables(text)[0]:
        assert name in page.texts
        assert figure in page.texts
    assert ("Not finished" in text) == (kind == "unfinished")


def test_a_text_is_shown_as_it_is_on_one_line() -> None:
    assert escape("a|b\n<c> *d* _e_ `f` [g] #1 ~ \\ & $") == r"a\|b \<c\> \*d\* \_e\_ \`f\` \[g\] \#1 \~ \\ \& \$"
    assert escape("x\u2028y\x00z") == "x y\N{REPLACEMENT CHARACTER}z"
    assert "\n" not in escape(html.unescape("&#10;&#13;&#133;"))


def test_groups_of_columns_and_marks_stand_in_the_cells() -> None:
    table = Table(
        "what",
        ("name", "full", "fail"),
        [(Cell("a", mark="*"), Cell("1.0", detail="[0.5, 1.5]"), "2"), ("mean", "3", "4")],
        groups=(("", 1), ("baseline", 2)),
        notes=("why",),
        summary_rows=1,
    )
    page = Page("", "", "", (), (), [Section("a", "A", [table])], "")
    assert page_markdown(page).split("## A\n\n")[1].split("\n\n**\n")[0].split("\n")[:9] == [
        "**what**",
        "",
        "| name | baseline full | baseline fail |",
        "| --- | ---: | ---: |",
        r"| a \* | 1.0 \[0.5, 1.5\] | 2 |",
        "| **mean** | 3 | 4 |",
        "",
        "*why*",
    ]
