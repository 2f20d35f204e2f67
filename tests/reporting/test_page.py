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
from resilisim.evaluation.episode.record import ALL_LOSS_LABELS
from resilisim.evaluation.table.facts import RunFacts, read_facts
from resilisim.reporting import charts, write_report
from resilisim.reporting.body import NOT_PRIVILEGED, build_page, cards
from resilisim.reporting.groups import PromptPools
from resilisim.reporting.losses import message_line
from resilisim.reporting.page import (
    Card,
    Fold,
    Page,
    Section,
    draw,
    packaged_file,
    packaged_texts,
    page_markdown,
    say,
    whole_page,
)
from resilisim.reporting.page import escape_markdown as escape
from resilisim.reporting.result_sections import loss_bar
from resilisim.statistics import Estimate
from resilisim.tables.numbers import interval_text, percent
from resilisim.tables.table import NO_INTERVAL, Cell, Table, with_interval
from tests.evaluation.synthetic import CARELESSNESS, synthetic_run
from tests.reporting.agent_records import agent_records
from tests.reporting.pages import EVIL, Checker, check, facts_of, make_run, write_run

CELL_END = re.compile(r"(?<!\\)\|")


def markdown_tables(path: Path) -> list[list[list[str]]]:
    """Return the rows of each table of a Markdown file, without headings."""
    tables: list[list[list[str]]] = []
    inside = False
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            inside = False
        elif not inside:
            tables.append([])
            inside = True
        elif not set(line) <= set("|-: "):
            cells = [re.sub(r"\\(.)", r"\1", cell).strip() for cell in CELL_END.split(line)[1:-1]]
            tables[-1].append([re.sub(r"^\*\*(.*)\*\*$", r"\1", cell) for cell in cells])
    return tables


def page_of(*blocks: Any) -> Page:
    return Page("", "", "", (), (), [Section("a", "A", blocks)], "")


def test_nothing_from_a_record_becomes_markup_in_html_or_markdown(tmp_path: Path) -> None:
    records = []
    for record in synthetic_run(("random",), ("baseline",), num_tasks=4, num_seeds=3):
        steps = [{**step, "message": EVIL, "error": EVIL, "tool": EVIL, "kind": EVIL} for step in record["steps"]]
        names = {name: EVIL + record[name] for name in ("task_type", "instance_id")}
        names |= dict.fromkeys(("policy", "ended_by", "planner"), EVIL)
        own = {"required_tools": [EVIL], "steps": steps, "losses": {EVIL: record["regret"]}}
        records.append({**record, **names, **own})
    page = check(write_report(write_run(tmp_path, records), markdown=tmp_path / "report.md"))
    assert EVIL in page.text
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert not re.search(r"(?<!\\)<(?!/?(details|summary)>)", text)
    assert not re.search(r"(?<!\\)\[x", text)
    assert markdown_tables(tmp_path / "report.md")[1][0][0] == EVIL


def test_charts_escape_their_texts_and_write_numbers_in_pixels() -> None:
    shapes = [
        charts.words(1.0, -0.001, EVIL, EVIL, tooltip=EVIL),
        charts.line(2.345, 0.0, 10.0, 1e-9, "a b"),
        charts.words(0, 0, "\x07é", ""),
    ]
    one = draw("chart", charts.Figure(100.0, 50.0, EVIL, EVIL, shapes))
    page = Checker(one)
    assert set(page.tags) == {"svg", "title", "desc", "text", "line"}
    assert page.texts.count(EVIL) == 4
    assert "\N{REPLACEMENT CHARACTER}é" in page.texts
    assert '<line x1="2.35" y1="0" x2="10" y2="0" class="a b"></line>' in one
    assert '<text x="1" y="0" ' in one
    page = Checker(charts.legend(charts.Entry("dot", EVIL, EVIL, EVIL)))
    assert set(page.tags) == {"ul", "li", "svg", "line", "circle"}
    assert page.text.strip() == EVIL


def test_a_report_says_what_keeps_its_numbers_from_being_final(tmp_path: Path) -> None:
    records = list(synthetic_run(num_tasks=2, num_seeds=1))
    bounded = [{**record, "optimum_gap": 0.0111 if record["index"] == 3 else 0.0} for record in records]

    def text(name: str, shown: list[Any], planned: int | None = None) -> str:
        folder = write_run(tmp_path / name, shown, planned)
        return check(write_report(folder, markdown=tmp_path / f"{name}.md")).text

    whole = text("whole", records)
    assert "lower bounds" not in whole
    assert "Not finished" not in whole
    assert "lower bounds, at most 1.2 points too low" in text("bounded", bounded)
    assert f"{len(records)} of 1,000 episodes" in text("some", records, 1000)
    assert "No episode is finished yet" in text("none", [], 10)
    assert markdown_tables(tmp_path / "none.md") == []
    with pytest.raises(StoreError, match="not a folder of results"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    ("policies", "tasks", "seeds", "num_types"),
    [
        (("random",), 1, 1, 1),
        (("random",), 1, 5, 1),
        (("exact-optimum",), 3, 1, 1),
        (tuple(f"some.package.agents:AgentNumber{number}" for number in range(2)), 40, 1, 20),
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
    assert ("12 rarer types left out" in check(path).text) == (num_types == 20)
    assert write_report(tmp_path, tmp_path / "other.html").read_bytes() == path.read_bytes()


def test_charts_have_folded_tables_nothing_stands_twice_and_every_word_is_explained(tmp_path: Path) -> None:
    page = build_page(facts_of(tmp_path, list(synthetic_run(num_tasks=6, num_seeds=2))), tmp_path)
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
    files = [*folder.rglob("*.py"), *folder.rglob("*.json"), *folder.rglob("*.html")]
    code = "".join(path.read_text(encoding="utf-8") for path in files)
    for name in packaged_texts("texts.txt"):
        assert re.search(rf"[\"']{name}[\"']", code) or name in ("profile_reliability", "profile_turns"), name


def test_every_number_of_the_summary_stands_in_the_report(tmp_path: Path) -> None:
    path = make_run(tmp_path, list(synthetic_run(num_tasks=12, num_seeds=2)))
    text = check(path).text
    for row in read_facts(tmp_path).rows:
        for estimate in (row.success, row.partial_success, row.share_of_ceiling, row.adjusted_share, row.luck_adjusted):
            assert percent(estimate.value) in text
            assert interval_text(estimate).replace("-", "−") in text
        for label, whole in row.losses.items():
            loss = row.unneeded_search if row.loss_name(label) == "unneeded search" else whole
            assert interval_text(loss).replace("-", "−") in text
        assert percent(row.optimum.value) in text
        # The parts of its bar add up to what it missed.
        bar = loss_bar(row, list(row.losses))
        assert sum(part.amount for part in bar) - row.luck.value == pytest.approx(1.0 - row.success.value)
    for word in (*CARELESSNESS, "benchmark-v1"):
        assert word in text


@pytest.mark.parametrize("message", ["\x00\x1b[31m\ud800", "a" * 100_000, "]]>", "\u202eright to left"])
def test_odd_messages_do_no_harm(tmp_path: Path, message: str) -> None:
    records = []
    for record in synthetic_run(("random",), ("baseline",), num_tasks=2, num_seeds=1):
        records.append({**record, "steps": [{**step, "message": message} for step in record["steps"]]})
    path = make_run(tmp_path, records)
    check(path)
    assert "\x00" not in path.read_text(encoding="utf-8")
    assert len(path.read_bytes()) < 200_000


def test_every_cause_has_a_colour_in_light_and_dark() -> None:
    style = packaged_file("style.css")
    light, dark = style.split("prefers-color-scheme: dark", 1)
    for name in (label.replace("_", "-") for label in ALL_LOSS_LABELS):
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


def first_card(facts: RunFacts) -> Card:
    return next(cards(PromptPools(facts)))


def test_shares_of_the_fitting_ceiling_lead_and_sort_the_page(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, list(synthetic_run(num_tasks=12, num_seeds=3)))
    pools = PromptPools(facts)
    optimum = facts.rows[0].optimum.value
    for row in facts.rows:
        # Of the made-up records a quarter of V* goes into finding the tools.
        ceiling = optimum * (0.75 if row.prompt_type == "baseline" and not row.privileged else 1.0)
        assert row.ceiling.value == pytest.approx(ceiling)
        assert row.adjusted_share.value == pytest.approx(row.luck_adjusted.value / ceiling)
        low, high = row.adjusted_share.low, row.adjusted_share.high
        assert row.is_optimum or low <= row.adjusted_share.value <= high
        assert row.adjusted_share.num_clusters == 12
    for prompt in ("baseline", "optimal"):
        rows = [row for row in pools.rows if row.prompt_type == prompt]
        assert [row.privileged for row in rows] == [False, False, False, True]
        shares = [row.adjusted_share.value for row in rows[:-1]]
        assert shares == sorted(shares, reverse=True)
    best = max((row for row in facts.rows if not row.privileged), key=lambda row: row.adjusted_share.value)
    first, second, *_ = cards(pools)
    assert first.figure == f"{percent(best.adjusted_share.value)}%"
    assert first.whose.startswith(best.policy)
    assert NOT_PRIVILEGED in first.detail
    assert second.figure == f"{percent(best.ceiling.value)}%"
    text = check(write_report(tmp_path)).text
    assert f"reference {75 * optimum:.1f}%, V* {100 * optimum:.1f}%" in text
    assert f"ceiling V* {100 * optimum:.1f}%" in text


def test_a_lucky_run_does_not_lead_with_more_than_its_ceiling(tmp_path: Path) -> None:
    perfect = [{**record, "policy": "perfect", "privileged": False} for record in synthetic_run(("exact-optimum",))]
    facts = facts_of(tmp_path, [record for place, record in enumerate(perfect) if record["outcome"] or place % 2])
    for row in facts.rows:
        assert row.share_of_ceiling.value > 1.05  # stands in a column of the folded table only
        assert row.adjusted_share.value == pytest.approx(1.0)
        assert row.adjusted_share.low > 0.85  # one observation a task: no certainty where nothing varies
        assert row.adjusted_share.high == pytest.approx(1.0)
    assert first_card(facts).figure == "100.0%"
    assert "points of luck" in first_card(facts).detail


def test_a_policy_that_tries_again_leads_with_raw_success_and_the_page_says_why(tmp_path: Path) -> None:
    again = [
        {**record, "agent": {**record["agent"], "restarts": int(record["policy"].startswith("react"))}}
        for record in agent_records(num_tasks=6)
    ]
    rows = PromptPools(facts_of(tmp_path, again)).rows
    assert [row.tries_again for row in rows if row.prompt_type == "optimal"] == [False] * 4 + [True] * 4
    page = check(write_report(tmp_path))
    assert say("tries_again") in page.texts
    raw = next(row for row in rows if row.tries_again)
    assert f"{percent(raw.success.value)}% raw" in page.texts
    card = first_card(facts_of(tmp_path / "only", [record for record in again if "rp-" not in record["policy"]]))
    assert card.name == "Highest success"
    assert "no ceiling" in card.detail


@pytest.mark.parametrize("num_tasks", [1, 4])
def test_a_dash_in_place_of_an_interval_has_its_reason_below_the_table(num_tasks: int) -> None:
    low = np.nan if num_tasks == 1 else 0.25
    cell = with_interval(Estimate(0.5, low, low, low, num_tasks, 8))
    page = page_of(Table("Success", ("policy", "success"), [("random", cell)]))
    for text in (whole_page(page).decode(), page_markdown(page)):
        assert (NO_INTERVAL.split("(")[0] in text) == (num_tasks == 1)


@pytest.mark.parametrize("kind", ["scripted", "agents", "unfinished"])
def test_markdown_has_the_tables_of_the_page(tmp_path: Path, kind: str) -> None:
    records: list[Any] = (
        agent_records(num_tasks=4) if kind == "agents" else list(synthetic_run(num_tasks=6, num_seeds=2))
    )
    folder = write_run(tmp_path, records, planned=len(records) + 5 * (kind == "unfinished"))
    page = check(write_report(folder, markdown=tmp_path / "report.md"))
    shown = [
        [[" ".join(cell.split()) for cell in row] for row in table if row]
        for table in page.tables
        if "message" not in table[0][1:2]  # episodes for readers without a script stand in the page only
    ]
    figures, *found = markdown_tables(tmp_path / "report.md")  # key figures are no table in the page
    assert len(found) > 8
    for mine, its in zip(found, shown, strict=True):
        assert mine == its[-len(mine) :]
    assert {text for name, figure, _, _ in figures for text in (name, figure)} <= set(page.texts)
    assert ("Not finished" in (tmp_path / "report.md").read_text(encoding="utf-8")) == (kind == "unfinished")


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
    assert page_markdown(page_of(table)).split("## A\n\n")[1].split("\n\n**\n")[0].split("\n")[:9] == [
        "**what**",
        "",
        "| name | baseline full | baseline fail |",
        "| --- | ---: | ---: |",
        r"| a \* | 1.0 \[0.5, 1.5\] | 2 |",
        "| **mean** | 3 | 4 |",
        "",
        "*why*",
    ]


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("<tool_call>reader</tool_call>", "<tool_call>reader</tool_call>"),
        ("", "(stopped by itself)"),
        ('{"tool_calls": [{"function": {"name": "reader", "arguments": "{}"}}]}', "reader()"),
        (
            '{"tool_calls": [{"function": {"name": "a", "arguments": "{\\"x\\": 1}"}}, {"function": {"name": "b"}}]}',
            'a({"x": 1}), b()',
        ),
        ('{"content": "I am done", "tool_calls": []}', '{"content": "I am done", "tool_calls": []}'),
        ('{"tool_calls": [5]}', '{"tool_calls": [5]}'),
    ],
)
def test_a_native_message_shows_its_calls(message: str, line: str) -> None:
    assert message_line(message, 120) == line
