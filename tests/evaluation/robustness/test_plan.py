"""Which runs a profile has: each differs from the standard one in one thing."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation.robustness.points import (
    AXES,
    DEFAULT_RELIABILITIES,
    DEFAULT_TURNS,
    PART_AXES,
    ProfilePoints,
    check_points,
    law_at,
    merge_with_earlier,
    number_settings,
    plan_runs,
    read_profile,
    write_profile,
)
from resilisim.simulator import Law
from resilisim.workflows.flaws import FLAW_TYPES, SEVERITIES
from tests.evaluation.toy_policies import toy_tasks

STANDARD = EnvironmentSettings(base=0.75, max_turns=9)
EVERYTHING = check_points(AXES, DEFAULT_RELIABILITIES, DEFAULT_TURNS, FLAW_TYPES, SEVERITIES)


def test_each_run_changes_one_thing() -> None:
    tasks = toy_tasks(3)
    carried = {flaw: np.array([True, False, True]) for flaw in FLAW_TYPES}
    carried["missing_step"] = np.zeros(3, dtype=np.bool_)
    points = EVERYTHING.with_standard(STANDARD)
    standard, *others = plan_runs(points, STANDARD, ("optimal", "baseline"), tasks, carried)
    assert (standard.name, standard.environment, standard.left_out) == ("standard", STANDARD, 0)
    assert len({run.name for run in others}) == len(others) == 6 + 6 + 6  # no plan carries a missing step
    for run in others:
        changes = {name for name, value in asdict(run.environment).items() if value != getattr(STANDARD, name)}
        if run.axis == "flaws":
            assert changes == set()
            assert run.prompts == tuple(f"flawed:{run.value}:{severity}" for severity in SEVERITIES)
            assert ([task.instance_id for task in run.tasks], run.left_out) == (
                [tasks[0].instance_id, tasks[2].instance_id],
                1,
            )
        else:
            assert changes == {"base" if run.axis == "reliability" else "max_turns"}
            assert (run.prompts, list(run.tasks)) == (("optimal", "baseline"), tasks)
    assert points.reliability == (0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.0)
    played = {run.environment for run in (standard, *others)}
    assert set(number_settings(points, STANDARD)) == played


@pytest.mark.parametrize("part", PART_AXES)
def test_a_part_of_the_law_is_an_axis_from_none_of_it_to_all(part: str) -> None:
    points = check_points(part, (), (), (), (), (0.0, 0.25, 1.0)).with_standard(STANDARD)
    runs = plan_runs(points, STANDARD, ("optimal",), toy_tasks(2), {})
    assert [(run.name, run.value) for run in runs] == [("standard", None), (f"{part}-0.25", 0.25), (f"{part}-1", 1.0)]
    for run in runs[1:]:
        law = run.environment.failure_model()
        assert law.parts == (part,)
        assert replace(law, **{part: None}) == STANDARD.failure_model()
        assert run.environment.with_options(law="benchmark", base=STANDARD.base) == STANDARD
    assert number_settings(points, STANDARD) == tuple(run.environment for run in runs)


def test_strengths_mean_what_the_page_says() -> None:
    constants = {"base": 0.8, "not_executed": 0.5, "failed": 0.7, "history": 0.9}
    assert Law.from_mapping(law_at("outage", 0.2, constants, 10)).outage.share_down == pytest.approx(0.2)
    assert Law.from_mapping(law_at("rate_limit", 0.4, constants, 10)).rate_limit.calls == 3
    assert Law.from_mapping(law_at("drift", 0.5, constants, 10)).drift.per_message == -0.05


def test_flaws_are_compared_with_the_sound_plan_whatever_the_prompts_are() -> None:
    points = check_points("flaws", (), (), "tool_misuse", "light")
    runs = plan_runs(points, STANDARD, ("baseline",), toy_tasks(1), {"tool_misuse": np.array([True])})
    assert [(run.name, run.prompts) for run in runs] == [
        ("standard", ("baseline",)),
        ("flaws-none", ("optimal",)),
        ("flaws-tool_misuse", ("flawed:tool_misuse:light",)),
    ]


def test_names_of_folders_sort_and_differ() -> None:
    points = check_points(("reliability", "turns"), (0.5, 0.555, 1.0), (4, 12), (), ())
    names = [run.name for run in plan_runs(points, STANDARD, ("optimal",), toy_tasks(1), {})]
    assert names == ["standard", "reliability-0.50", "reliability-0.555", "reliability-1.00", "turns-04", "turns-12"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"axes": "turn"}, "unknown axis 'turn': did you mean 'turns'"),
        ({"axes": ()}, "no axis was given: expected at least one"),
        ({"reliabilities": (0.5, 1.2)}, r"reliability is 1\.2: expected above 0 and at most 1"),
        ({"reliabilities": 0.0}, r"reliability is 0\.0: expected above 0"),
        ({"reliabilities": (math.nan,)}, "reliability is nan: expected"),
        ({"reliabilities": "0.5"}, r"reliability is '0\.5': expected a number"),
        ({"reliabilities": (True,)}, "reliability is True: expected"),
        ({"turns": (6, 0)}, "turns is 0: expected at least 1"),
        ({"turns": (6.5,)}, r"turns is 6\.5: expected a whole number"),
        ({"flaws": ("missing_steps",)}, "unknown flaw 'missing_steps': did you mean 'missing_step'"),
        ({"severities": ("sever",)}, "unknown severity 'sever': did you mean 'severe'"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        "axes": AXES,
        "reliabilities": DEFAULT_RELIABILITIES,
        "turns": DEFAULT_TURNS,
        "flaws": FLAW_TYPES,
        "severities": SEVERITIES,
    }
    with pytest.raises(InvalidInputError, match=message):
        check_points(**{**arguments, **changes})


def test_points_are_sorted_each_there_once_and_none_of_axes_that_are_not_wanted() -> None:
    flaws, severities = ["semantic_drift", "tool_misuse"], ["severe", "light"]
    points = check_points(AXES, (1, 0.5, 0.5), np.array([8, 4, 8]), flaws, severities)
    assert points == ProfilePoints((0.5, 1.0), (4, 8), ("tool_misuse", "semantic_drift"), ("light", "severe"))
    assert check_points("turns", 7.0, (5,), "nonsense", ()) == ProfilePoints(turns=(5,))
    assert ProfilePoints(turns=(5,)).with_standard(STANDARD) == ProfilePoints(turns=(5, 9))


def test_a_later_command_adds_its_points(tmp_path: Path) -> None:
    arguments = {"seeds": [0, 1]}
    first = check_points("turns", (), (4,), (), ())
    write_profile(tmp_path / "new", arguments, first, plan_runs(first, STANDARD, ("optimal",), toy_tasks(1), {}))
    before = read_profile(tmp_path / "new")
    assert before is not None
    assert [run["name"] for run in before["runs"]] == ["standard", "turns-04"]
    second = check_points(("reliability", "flaws"), (0.5,), (), "tool_misuse", "light")
    merged = merge_with_earlier(tmp_path / "new", arguments, second)
    assert merged == ProfilePoints((0.5,), (4,), ("tool_misuse",), ("light",))
    write_profile(tmp_path / "new", arguments, merged, [])
    after = read_profile(tmp_path / "new")
    assert after is not None
    assert (after["created"], after["hash"]) == (before["created"], before["hash"])
    assert merge_with_earlier(tmp_path / "new", arguments, first) == merged


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    points = check_points("flaws", (), (), "tool_misuse", "light")
    write_profile(tmp_path, {"seeds": [0, 1]}, points, [])
    with pytest.raises(StoreError, match=r"holds another profile: seeds is \[0, 1\] there and \[0\] here; use another"):
        merge_with_earlier(tmp_path, {"seeds": [0]}, points)
    severe = check_points("flaws", (), (), "tool_misuse", "severe")
    with pytest.raises(StoreError, match="holds flaws of the severities light, and here they are severe"):
        merge_with_earlier(tmp_path, {"seeds": [0, 1]}, severe)
    text = (tmp_path / "profile.json").read_text(encoding="utf-8")
    (tmp_path / "profile.json").write_text(text.replace("tool_misuse", "tool_misused"), encoding="utf-8")
    with pytest.raises(StoreError, match="its points cannot be read"):
        merge_with_earlier(tmp_path, {"seeds": [0, 1]}, points)
    (tmp_path / "manifest.json").write_text("{}", encoding="utf-8")
    with pytest.raises(StoreError, match="holds an ordinary run"):
        merge_with_earlier(tmp_path, {"seeds": [0, 1]}, points)
