"""The report: one file, nothing loaded from elsewhere, nothing from a record becomes markup, all numbers in tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilisim.errors import StoreError
from resilisim.evaluation.episode.record import LOSS_LABELS
from resilisim.evaluation.report import write_report
from resilisim.evaluation.report.charts import element, render
from resilisim.evaluation.report.results import loss_bar
from resilisim.evaluation.run.store import read_manifest, read_records
from resilisim.evaluation.table.episodes import sums_of
from resilisim.evaluation.table.summary import format_interval, format_percent, summarise
from tests.evaluation.report.pages import check, make_run, write_run
from tests.evaluation.synthetic import CARELESSNESS, synthetic_run

EVIL = "<script>alert('x')</script>&\"'|`*_"


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


def test_nothing_from_a_record_becomes_markup(tmp_path: Path) -> None:
    records = []
    for record in synthetic_run(("random",), ("baseline",), num_tasks=4, num_seeds=3):
        steps = [{**step, "message": EVIL, "error": EVIL, "tool": EVIL, "kind": EVIL} for step in record["steps"]]
        evil = {
            **record,
            "policy": EVIL,
            "task_type": EVIL + record["task_type"],
            "instance_id": EVIL + record["instance_id"],
            "required_tools": [EVIL],
            "ended_by": EVIL,
            "planner": EVIL,
            "steps": steps,
            "losses": {EVIL: record["regret"]},
        }
        records.append(evil)
    page = check(make_run(tmp_path, records))
    assert EVIL in "".join(page.texts)


@pytest.mark.parametrize("message", ["\x00\x1b[31m\ud800", "a" * 100_000, "]]>", "\u202eright to left"])
def test_odd_messages_do_no_harm(tmp_path: Path, message: str) -> None:
    records = []
    for record in synthetic_run(("random",), ("baseline",), num_tasks=2, num_seeds=1):
        records.append({**record, "steps": [{**step, "message": message} for step in record["steps"]]})
    path = make_run(tmp_path, records)
    check(path)
    assert "\x00" not in path.read_text(encoding="utf-8")
    assert len(path.read_bytes()) < 200_000


@pytest.mark.parametrize(
    ("policies", "tasks", "seeds"), [(("random",), 1, 1), (("random",), 1, 5), (("exact-optimum",), 3, 1)]
)
def test_the_smallest_runs_have_a_report(tmp_path: Path, policies: tuple[str, ...], tasks: int, seeds: int) -> None:
    check(make_run(tmp_path, list(synthetic_run(policies, ("optimal",), tasks, seeds))))


def test_many_policies_and_task_types_have_a_report(tmp_path: Path) -> None:
    names = tuple(f"some.package.agents:AgentNumber{number}" for number in range(12))
    records = [
        {**record, "task_type": f"type_{int(record['instance_id'][-8:], 16) % 20}"}
        for record in synthetic_run(names, ("baseline", "optimal"), num_tasks=40, num_seeds=1)
    ]
    text = "".join(check(make_run(tmp_path, records)).texts)
    assert "12 rarer types left out" in text


def test_a_bound_in_place_of_the_optimum_is_said(tmp_path: Path) -> None:
    records = list(synthetic_run(num_tasks=2, num_seeds=1))
    assert "lower bounds" not in "".join(check(make_run(tmp_path / "exact", records)).texts)
    bounded = [{**record, "optimum_gap": 0.0111 if record["index"] == 3 else 0.0} for record in records]
    text = "".join(check(make_run(tmp_path / "bounded", bounded)).texts)
    assert "lower bounds, at most 1.2 points too low" in text


def test_an_unfinished_run_says_so(tmp_path: Path) -> None:
    records = list(synthetic_run(num_tasks=2, num_seeds=1))
    text = "".join(check(make_run(tmp_path / "some", records, planned=1000)).texts)
    assert f"{len(records)} of 1,000 episodes" in text
    assert "No episode is finished yet" in "".join(check(make_run(tmp_path / "none", [], planned=10)).texts)


def test_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    path = make_run(tmp_path, list(synthetic_run(num_tasks=5, num_seeds=1)))
    first = path.read_bytes()
    assert write_report(tmp_path).read_bytes() == first
    assert write_report(tmp_path, tmp_path / "other.html").read_bytes() == first


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


def test_a_folder_without_a_run_has_no_report(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no folder of results"):
        write_report(tmp_path)


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


def test_markup_escapes_whatever_was_not_built() -> None:
    assert element("p", "<script>alert('x')</script>&\"") == (
        "<p>&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&#34;</p>"
    )
    assert element("p", element("b", "x"), (), ["y", "3"]) == "<p><b>x</b>y3</p>"
    assert element("a", title=EVIL).count("<") == 2
    assert element("line", x1=1.0, y1=-0.001, stroke_width=2.345, class_="a b", id=None) == (
        '<line x1="1" y1="0" stroke-width="2.35" class="a b"></line>'
    )
    assert element("svg", viewBox="0 0 1 1") == '<svg viewBox="0 0 1 1"></svg>'
    assert render("\x07\ud800é") == "��é"
