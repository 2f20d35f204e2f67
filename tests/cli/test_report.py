from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    from resilisim.evaluation import evaluate

    base = tmp_path_factory.mktemp("report")
    for policy in ("plan-follower", "repairing-follower"):
        evaluate([policy], 4, ["optimal", "flawed"], 2, out=base / policy, progress=False)
    return base


def test_report_writes_page_and_text_and_says_where(command, folders, tmp_path):
    outcome = command(
        "report", folders / "plan-follower", "--out", tmp_path / "x.html", "--markdown", tmp_path / "x.md"
    )
    assert outcome.code == 0, outcome.err
    assert "plan-follower" in outcome.out
    assert f"report: {tmp_path / 'x.html'}" in outcome.out
    assert f"Markdown: {tmp_path / 'x.md'}" in outcome.out
    assert (tmp_path / "x.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert (tmp_path / "x.md").read_text(encoding="utf-8").startswith("# ")
    assert not (folders / "plan-follower" / "report.html").exists()


def test_report_compares_with_another_run(command, folders, tmp_path):
    page = tmp_path / "x.html"
    other = folders / "repairing-follower"
    found = command("report", folders / "plan-follower", "--compare-with", other, "--out", page, "--json").json()
    assert found["report"] == str(page)
    assert found["markdown"] is None
    assert found["num_episodes"] == 16
    assert "Compared with another run" in page.read_text(encoding="utf-8")


def test_what_is_no_run_is_refused_in_one_line(command, folders, tmp_path):
    assert "no folder of results" in command("report", tmp_path).refusal()
    line = command("report", folders / "plan-follower", "--compare-with", tmp_path).refusal()
    assert "no folder of results" in line
