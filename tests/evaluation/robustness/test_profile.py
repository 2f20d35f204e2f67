"""A robustness profile: ordinary runs on common luck, the exact optimum on its own curve, nothing played twice."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from resilisim.chat import ChatRequest
from resilisim.errors import InvalidInputError
from resilisim.evaluation import read_records, read_results
from resilisim.evaluation.robustness import profiling as profile_job
from resilisim.evaluation.robustness.points import ProfileRun, check_points
from resilisim.evaluation.robustness.profiling import ProfileResult, plan_profile, profile
from resilisim.evaluation.run.store import read_manifest
from resilisim.run_folder import first_difference
from resilisim.tool_library import ToolLibrary, default_library
from tests.evaluation.agent_models import FollowingModel, following
from tests.evaluation.robustness.profile_kill_target import make_profile
from tests.evaluation.toy_policies import Quitter, Reading, toy_tasks
from tests.killing import kill_when, num_lines

ROOT = Path(__file__).parents[3]
POLICIES = ("exact-optimum", Reading, Quitter)
FLAWS = ("sequential_order", "missing_step", "redundant_operation")


def small_profile(folder: Path, **changes: object) -> ProfileResult:
    """Make the profile that most tests look at, or another one."""
    arguments: dict[str, object] = {
        "bases": (0.5, 1.0),
        "turns": (3, 6),
        "flaws": FLAWS,
        "severities": ("light", "severe"),
        "progress": False,
    }
    return profile(POLICIES, toy_tasks(), 4, out=folder, **{**arguments, **changes})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ProfileResult:
    """A small profile of six toy tasks."""
    return small_profile(tmp_path_factory.mktemp("profile"))


def test_every_run_is_an_ordinary_folder_that_differs_in_one_thing(made: ProfileResult) -> None:
    names = [run.name for run in made.runs]
    assert names == [
        "standard",
        "reliability-0.50",
        "reliability-1.00",
        "turns-03",
        "turns-06",
        *(f"flaws-{flaw}" for flaw in FLAWS),
    ]
    usual = read_manifest(made.directory / "standard")["arguments"]
    for run in made.runs:
        assert read_results(made.directory / run.name).num_episodes == run.num_episodes == run.num_planned
        here = read_manifest(made.directory / run.name)["arguments"]
        difference = first_difference(usual["environment"], here["environment"])
        if run.name.startswith("reliability"):
            assert difference == ("base", 0.8, float(run.name[-4:]))
        elif run.name.startswith("turns"):
            assert difference == ("max_turns", 10, int(run.name[-2:]))
        else:
            assert difference is None
    assert made.is_finished
    listed = json.loads((made.directory / "profile.json").read_text(encoding="utf-8"))["runs"]
    assert [run["name"] for run in listed] == names


def test_the_optimum_lies_on_its_own_curve_once_luck_is_taken_out(made: ProfileResult) -> None:
    for axis in made.axes:
        curve = next(curve for curve in axis.curves if curve.who.policy == "exact-optimum")
        for point, optimum in zip(curve.points, axis.optimum, strict=True):
            assert point.adjusted.value == pytest.approx(optimum, abs=1e-12)
            assert abs(point.success.value - optimum) < 0.35  # 24 episodes
        assert curve.area.adjusted.value == pytest.approx(1.0, abs=1e-12)
        assert curve.who.privileged
        for exact in (axis.optimum, axis.plan_following):
            assert list(exact) == sorted(exact)
        assert all(plain <= best + 1e-12 for best, plain in zip(axis.optimum, axis.plan_following, strict=True))
    assert made.axis("reliability").optimum[-1] == 1.0  # tools that never fail
    with pytest.raises(InvalidInputError, match="unknown axis 'reliabilities': did you mean 'reliability'"):
        made.axis("reliabilities")
    # Three turns: tasks with one required tool have some to spare, of the others every turn must be a success.
    assert made.axis("turns").values == (3, 6, 10)


def test_changes_are_taken_from_the_very_episodes_of_the_standard_run(made: ProfileResult) -> None:
    def outcomes(run: str) -> dict[tuple[str, int], int]:
        records = read_records(made.directory / run)
        return {(r["instance_id"], r["seed"]): r["outcome"] for r in records if r["policy"] == "reading"}

    usual, worse = outcomes("standard"), outcomes("reliability-0.50")
    assert usual.keys() == worse.keys()
    curve = next(curve for curve in made.axis("reliability").curves if curve.who.policy == "reading")
    half, standard, _ = curve.points
    assert standard.change is None
    assert half.change is not None
    mean = sum(worse[episode] - usual[episode] for episode in usual) / len(usual)
    assert half.change.raw.value == pytest.approx(mean)
    assert half.change.raw.low < half.change.raw.value < half.change.raw.high


def test_all_runs_share_their_luck(made: ProfileResult) -> None:
    """An execution that succeeds with some probability succeeds wherever its probability is no lower."""
    met: dict[tuple[str, int, str, int], list[tuple[float, bool]]] = {}
    for run in made.runs:
        for record in read_records(made.directory / run.name):
            for step in record["steps"]:
                if step["kind"] == "execute" and step["success"] is not None:
                    assert step["tool"] is not None
                    assert step["attempt"] is not None
                    assert step["success_probability"] is not None
                    key = (record["instance_id"], record["seed"], step["tool"], step["attempt"])
                    met.setdefault(key, []).append((step["success_probability"], step["success"]))
    compared = 0
    for draws in met.values():
        failed = [probability for probability, success in draws if not success]
        succeeded = [probability for probability, success in draws if success]
        if failed and succeeded:
            compared += 1
            assert max(failed) < min(succeeded)
    assert compared > 20


def test_an_agent_that_quits_has_nothing_to_lose_and_no_false_certainty(made: ProfileResult) -> None:
    for axis in made.axes:
        curve = next(curve for curve in axis.curves if curve.who.policy == "quitter")
        assert curve.area.better.value == 0.0
        assert curve.area.better.high > 0.3  # of six tasks
        assert all(point.change is None or point.change.raw.value == 0.0 for point in curve.points)
    assert made.flaws is not None
    quitter = made.flaws.policies[2]
    assert quitter.drop.raw.value == 0.0
    assert quitter.drop.raw.high > 0.3
    assert len(quitter.worst) == 6


def test_each_flaw_counts_the_tasks_that_carry_it(made: ProfileResult) -> None:
    assert made.flaws is not None
    # Two of the six tasks have one tool: no order, no middle.
    assert {(r.flaw, r.num_tasks, r.left_out) for r in made.flaws.references} == {
        ("sequential_order", 4, 2),
        ("missing_step", 4, 2),
        ("redundant_operation", 6, 0),
    }
    for reference in made.flaws.references:
        played = list(read_records(made.directory / f"flaws-{reference.flaw}"))
        assert len({record["instance_id"] for record in played}) == reference.num_tasks
        for policy in made.flaws.policies:
            cell = policy.cell(reference.flaw, reference.severity)
            assert cell is not None
            assert cell.success.num_episodes == 4 * reference.num_tasks


def test_a_reader_of_plans_obeys_and_the_optimum_does_not(made: ProfileResult) -> None:
    assert made.flaws is not None
    optimum, reader, _ = made.flaws.policies
    assert optimum.recovered.better.value == pytest.approx(1.0, abs=1e-12)
    assert optimum.drop.raw.value == 0.0
    for cell in optimum.cells:
        assert cell.adjusted.value == pytest.approx(cell.reference.deviate, abs=1e-12)
    for cell in reader.cells:
        assert abs(cell.success.value - cell.reference.obey) < 0.35  # of 16 to 24 episodes
        if cell.reference.obey == 0.0:
            assert cell.success.value == 0.0
    assert abs(reader.recovered.better.value) < 0.2
    assert reader.drop.raw.value > 0.2
    lowest = min(cell.success.value for cell in reader.cells if cell.change is not None)
    assert reader.worst_success.value == lowest
    cell = reader.cell(reader.worst[0].flaw, reader.worst[0].severity)
    assert cell is not None
    assert reader.worst_success.high > cell.success.high  # it was chosen because it is the lowest


def test_a_finished_profile_plays_nothing_again_and_says_the_same(made: ProfileResult) -> None:
    before = {path: path.read_bytes() for path in made.directory.rglob("*.json*")}
    told: list[tuple[int, int, ProfileRun]] = []
    job = profile_job_of(made.directory)
    again = job.play(job.solve(), lambda number, total, run: told.append((number, total, run)))
    assert {path: path.read_bytes() for path in made.directory.rglob("*.json*")} == before
    assert again.to_mapping() == made.to_mapping()
    assert [(number, total, run.name) for number, total, run in told] == [
        (number, 8, run.name) for number, run in enumerate(made.runs, start=1)
    ]
    json.dumps(again.to_mapping(), allow_nan=False)


def profile_job_of(folder: Path) -> profile_job.ProfileJob:
    """Return the job of the small profile."""
    points = check_points(("reliability", "turns", "flaws"), (0.5, 1.0), (3, 6), FLAWS, ("light", "severe"))
    return plan_profile(POLICIES, toy_tasks(), 4, points, out=folder, progress=False)


@pytest.mark.long
def test_a_killed_profile_goes_on(tmp_path: Path, python: list[str]) -> None:
    whole = make_profile(str(tmp_path / "whole"))
    folder = tmp_path / "killed"
    command = [*python, "-m", "tests.evaluation.robustness.profile_kill_target", str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    second = folder / "reliability-0.50" / "episodes.jsonl"
    kill_when(process, lambda: num_lines(second) >= 3)
    first = (folder / "standard" / "episodes.jsonl").read_bytes()
    assert not (folder / "turns-04").exists()
    kept = second.read_bytes()
    result = make_profile(str(folder))
    assert (folder / "standard" / "episodes.jsonl").read_bytes() == first
    assert second.read_bytes().startswith(kept[: kept.rindex(b"\n") + 1])
    assert {**result.to_mapping(), "directory": ""} == {**whole.to_mapping(), "directory": ""}


def test_several_prompts_have_a_curve_each_and_flaws_their_own_sound_run(tmp_path: Path) -> None:
    found = profile(
        Quitter,
        toy_tasks(3),
        out=tmp_path,
        axes=("turns", "flaws"),
        turns=(4,),
        flaws="redundant_operation",
        severities="light",
        prompts=("baseline", "chain_of_thought"),
    )
    assert [curve.who.prompt for curve in found.axis("turns").curves] == ["baseline", "chain_of_thought"]
    assert "flaws-none" in [run.name for run in found.runs]
    assert found.flaws is not None
    assert found.flaws.policies[0].optimal.num_episodes == 3


def test_what_breaks_outside_leaves_the_profile_unfinished_until_it_is_mended(tmp_path: Path) -> None:
    def one_in_three(request: ChatRequest) -> bool:
        return int(request.cache_scope[:8], 16) % 3 == 0

    def run_with(fails: Callable[[ChatRequest], bool]) -> ProfileResult:
        agent = following(FollowingModel(fails))
        return profile(agent, toy_tasks(), 2, out=tmp_path, axes="turns", turns=(6,), progress=False)

    broken = run_with(one_in_three)
    assert not broken.is_finished
    assert broken.num_episodes + broken.num_failures == 2 * 12
    assert broken.num_failures > 0
    assert "status 503" in broken.last_error
    mended = run_with(lambda request: False)
    assert mended.is_finished
    assert mended.num_failures == 0
    assert mended.axis("turns").curves[0].points[0].success.num_episodes == 12


def test_where_nothing_was_played_there_are_no_numbers(tmp_path: Path) -> None:
    agent = following(FollowingModel(lambda request: True))
    axes = ("turns", "flaws")
    found = profile(agent, toy_tasks(2), out=tmp_path, axes=axes, turns=(4,), flaws="tool_misuse", severities="light")
    (curve,) = found.axis("turns").curves
    assert curve.who.policy == "react"
    assert math.isnan(curve.area.raw.value)
    assert all(math.isnan(point.success.value) for point in curve.points)
    assert found.flaws is not None
    assert found.flaws.policies[0].worst == ()
    json.dumps(found.to_mapping(), allow_nan=False)


def test_bad_arguments_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "none"
    for changed, text in (
        ({"bases": (1.5,)}, r"reliability is 1\.5"),
        ({"workers": 0}, "workers is 0"),
        ({"out": 5}, "out is 5"),
        ({"axes": "turn"}, "unknown axis 'turn'"),
    ):
        with pytest.raises(InvalidInputError, match=text):
            profile(Quitter, toy_tasks(2), **{"out": folder, **changed})
    tools = json.loads(default_library().to_json())
    for tool in tools["tools"]:
        tool["success_probability"] = 0.7
    library = ToolLibrary.from_json(json.dumps(tools), source="test")
    with pytest.raises(InvalidInputError, match="every tool of the library has a success probability of its own"):
        profile(Quitter, toy_tasks(2), out=folder, library=library)
    assert not folder.exists()
