"""How agents recover from what a part of the law does to them, counted in their messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import InvalidInputError
from resilisim.evaluation.robustness import profile
from resilisim.evaluation.robustness.points import part_setting
from resilisim.evaluation.robustness.profile_result import count_setbacks, setbacks_of
from resilisim.reporting.profile import profile_page, profile_tables
from resilisim.tasks import benchmark_tasks

LAW = {"equivalents": {"read": ["fetch"]}}


def step(tool: str | None, result: str | None = None, kind: str = "execute") -> dict[str, Any]:
    """Return what counts of a step."""
    return {"kind": kind, "tool": tool} | ({} if result is None else {"result": result})


WAIT = step(None, kind="wait")
SEARCH = step(None, kind="search")


@pytest.mark.parametrize(
    ("steps", "count", "mended"),
    [
        ([step("read", "success")], [0, 0, 0], [0, 0, 0]),
        ([step("read", "outage"), WAIT, step("read", "success")], [1, 1, 0], [1, 0, 0]),
        ([step("read", "outage"), SEARCH, step("read", "success")], [1, 1, 0], [0, 0, 0]),
        ([WAIT, step("read", "rate_limited"), step("read", "success"), WAIT], [1, 1, 0], [0, 0, 0]),
        ([step("read", "rate_limited"), WAIT, step("fetch", "success")], [1, 1, 0], [0, 1, 0]),
        ([step("read", "failure"), step("fetch", "success")], [0, 1, 0], [0, 1, 0]),
        ([step("fetch", "failure"), step("read", "success")], [0, 1, 0], [0, 1, 0]),
        ([step("write", "failure"), step("fetch", "success")], [0, 0, 0], [0, 0, 0]),
        ([step("read", "corrupt"), step("read", "corrupt"), step("read", "success")], [0, 0, 2], [0, 0, 2]),
        ([step("read", "corrupt"), step("write", "success")], [0, 0, 1], [0, 0, 0]),
        ([step("read", "outage"), step("read", "corrupt")], [1, 1, 1], [0, 0, 0]),
    ],
)
def test_setbacks_and_what_mended_them(steps: list[dict[str, Any]], count: list[int], mended: list[int]) -> None:
    assert setbacks_of(steps, ["read", "write"], LAW) == (count, mended)


def test_setbacks_are_summed_by_task_and_their_shares_estimated() -> None:
    def record(task: str, mends: bool) -> dict[str, Any]:
        steps = [step("read", "corrupt"), *[step("read", "success")] * mends]
        beside = {"policy": "p", "prompt_type": "optimal", "required_tools": ["read"], "law": {}}
        return {**beside, "instance_id": task, "steps": steps}

    records = [record("a", True), record("a", False), record("b", True), record("b", True)]
    found = count_setbacks(records, {"a": 0, "b": 1, "c": 2})[("p", "optimal")]
    assert found.count.tolist() == [[0, 0, 0], [0, 0, 0], [2, 2, 0]]
    assert found.mended.tolist()[2] == [1, 2, 0]
    recovery = found.recovery()
    assert recovery.checking.value == 0.75
    assert recovery.checking.num_clusters == 2
    assert recovery.waiting.value != recovery.waiting.value  # NaN: nothing could be waited out


def test_a_profile_says_how_policies_recover(tmp_path: Path) -> None:
    options: dict[str, Any] = {"axes": ["corrupt", "rate_limit"], "strengths": [0.5], "progress": False}
    short = [task for task in benchmark_tasks() if len(task.required_tools) == 1][:2]
    found = profile(["repairing-follower", "exact-optimum"], short, 8, out=tmp_path, **options)
    corrupt, limit = found.axis("corrupt"), found.axis("rate_limit")
    assert [point.recovery is None for point in corrupt.curves[0].points] == [True, False]
    shares = {curve.who.policy: curve.points[1].recovery for curve in corrupt.curves}
    follower, optimum = shares["repairing-follower"], shares["exact-optimum"]
    assert follower is not None
    assert optimum is not None
    assert follower.checking.value == 0.0 < optimum.checking.value
    mapping = json.loads(json.dumps(found.to_mapping()))["axes"]["corrupt"]["curves"][0]["points"]
    assert "recovery" not in mapping[0]
    assert mapping[1]["recovery"]["checking"]["value"] == 0.0
    headings = [table.caption for table in profile_tables(found)]
    assert any("mended" in heading for heading in headings)
    page = str(profile_page(found))
    assert "by checking results" in page
    assert limit.curves[0].points[1].recovery is not None


def test_a_standard_law_may_name_equivalents_but_no_parts() -> None:
    standard = EnvironmentSettings(law={"base": 0.7, "equivalents": {"network_fetcher": ["network_poster"]}})
    law = part_setting(standard, "broken", 0.2).failure_model()
    assert law.to_mapping()["equivalents"] == {"network_fetcher": ["network_poster"]}
    assert (law.base, law.to_mapping()["broken"]) == (0.7, {"probability": 0.2})
    with pytest.raises(InvalidInputError, match="without parts"):
        part_setting(EnvironmentSettings(law="outages"), "broken", 0.2)
