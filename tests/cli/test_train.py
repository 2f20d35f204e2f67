from __future__ import annotations

import subprocess
import sys

import pytest

from resilisim.cli import train as command_module
from resilisim.cli.train import progress_line
from resilisim.envs.random_libraries import random_settings
from resilisim.evaluation.run.progress import Progressing
from resilisim.evaluation.trained import measure_policy
from resilisim.policies.ppo.training import TrainingProgress
from resilisim.policies.ppo.validation import Evaluation
from resilisim.reporting.learning import CURVE_FILE
from resilisim.simulator.exact.optimum import start_optimum
from resilisim.simulator.problem import build_problem

SETTINGS = (
    "tasks=40",
    "num_envs=8",
    "rollout_steps=8",
    "batch_size=32",
    "epochs=1",
    "width=8",
    "heads=2",
    "layers=1",
    "validation_tasks=4",
    "validation_episodes=2",
    "num_threads=1",
    "tensorboard=false",
)
TRAIN = ["train", "--preset", "quick", "--device", "cpu", "--steps", "128"]
TRAIN += [word for setting in SETTINGS for word in ("--set", setting)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, python):
    """The folder of a short run, trained by the installed command."""
    out = tmp_path_factory.mktemp("train") / "run"
    done = subprocess.run(
        [*python, "-m", "resilisim", *TRAIN, "--out", str(out)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "128 steps are done" in done.stdout
    assert "share of the optimum" in done.stdout
    assert f"resilisim train evaluate {out}" in done.stderr
    assert "share of the optimum on validation tasks" in done.stderr
    return out


def test_bare_command_shows_its_help(command):
    outcome = command("train")
    assert outcome.code == 0
    for word in ("--preset", "--set", "evaluate"):
        assert word in outcome.out


def test_the_same_command_says_that_it_is_finished(command, folder):
    outcome = command(*TRAIN, "--out", folder, "--json")
    result = outcome.json()
    assert result["was_finished"] is True
    assert (result["steps"], result["reason"], result["directory"]) == (128, "128 steps are done", str(folder))
    assert set(result["best"]) == {"steps", "minutes", "success", "optimum", "share", "shares"}
    assert "it is finished" in command(*TRAIN, "--out", folder).err
    curve = (folder / CURVE_FILE).read_text(encoding="utf-8")
    assert "V*, the most that anybody can reach" in curve
    assert "Content-Security-Policy" in curve


def test_another_configuration_is_refused(command, folder):
    line = command(*TRAIN, "--seed", "3", "--out", folder).refusal()
    assert "training.seed is 0 there and 3 here" in line
    assert "another folder" in line


def test_a_library_of_ones_own_belongs_to_the_run(command, folder, tmp_path):
    larger = tmp_path / "larger.json"
    assert command("tools", "generate", "--size", 31, "--out", larger).code == 0
    assert 'library is "' in command(*TRAIN, "--library", larger, "--out", folder).refusal()


def test_evaluate_measures_both_loops_against_the_optimum(command, folder):
    measured = command("train", "evaluate", folder, "--episodes", "3", "--tasks", "6", "--json").json()
    assert (measured["tasks"], measured["episodes"], measured["split"]) == (6, 3, "test")
    assert 0.0 < measured["optimum"] < 1.0
    assert measured["ratio"] == pytest.approx(measured["success"] / measured["optimum"])
    assert sum(group["tasks"] for group in measured["by_type"].values()) == 6
    plan = measured["open_loop"]
    assert plan["optimum"] == measured["optimum"]
    assert set(plan["by_type"]) == set(measured["by_type"])
    assert 0.0 <= plan["ratio"] <= 1.0
    assert measured["training"]["warm_start"] is None
    assert measured["training"]["max_steps"] == 128
    outcome = command("train", "evaluate", folder, "--episodes", "1", "--tasks", "6", "--split", "validation")
    assert outcome.code == 0
    assert "on the validation split, 1 episodes of each task" in outcome.out
    assert "PPO alone" in outcome.err


def test_a_policy_that_imitated_alone_is_not_said_to_have_been_trained_by_ppo(command):
    outcome = command("train", "evaluate", "default", "--episodes", "1", "--tasks", "2")
    assert "trained on benchmark-v2 by imitation of the exact optimum (1,800 updates);" in outcome.err


def test_a_law_file_and_random_libraries_are_measured(command, folder, tmp_path):
    law = tmp_path / "law.yaml"
    law.write_text("drift: {per_message: -0.02}\n")
    drifting = command("train", "evaluate", folder, "--episodes", "2", "--tasks", "3", "--law", law, "--json").json()
    assert drifting["open_loop"] is None
    assert drifting["law"]["drift"] == {"per_message": -0.02}
    table = ("train", "evaluate", folder, "--random-tools", "12", "--random-libraries", "2", "--tasks", "2")
    table += ("--part", "none", "--part", "drift", "--episodes", "3")
    measured = command(*table, "--json").json()
    assert [(row["tools"], row["part"]) for row in measured["rows"]] == [(12, "none"), (12, "drift")]
    drawn = [random_settings("test", number, 2, num_tools=12, parts=(), selected=False) for number in range(2)]
    plain = []
    for one in drawn:
        library, law, rules = one.options.resolved_library(), one.options.failure_model(), one.options.end_rules()
        plain += [start_optimum(build_problem(library, task.required_tools, law, rules)) for task in one.tasks]
    assert measured["rows"][0]["optimum"] == pytest.approx(sum(plain) / 4)
    for row in measured["rows"]:
        assert 0.0 < row["optimum"] < 1.0
        assert row["ratio"] == pytest.approx(row["success"] / row["optimum"])
        assert row["ratio_interval"][0] <= row["ratio"] <= row["ratio_interval"][1]
    assert "did you mean 'drift'?" in command(*table, "--part", "drfit").refusal()
    for option in ("--law", "outages"), ("--split", "train"):
        assert f"option {option[0]}: random libraries bring their own" in command(*table, *option).refusal()
    for option in ("--part", "drift"), ("--random-libraries", "2"):
        refusal = command("train", "evaluate", "default", *option).refusal()
        assert refusal.endswith("without random libraries: give --random-tools, too")


def test_measures_are_the_means_that_they_claim_to_be(folder):
    from resilisim.simulator.exact import bound
    from resilisim.tasks.benchmark import benchmark_tasks
    from resilisim.tool_library import default_library

    tasks = benchmark_tasks()[:5]
    measured = measure_policy(str(folder), tasks, 4, default_library(), Progressing)
    optima = [bound(task.required_tools, clairvoyant_seeds=0)["optimum"] for task in tasks]
    assert measured["optimum"] == pytest.approx(sum(optima) / 5)
    total = sum(group["success"] * group["tasks"] for group in measured["by_type"].values())
    assert measured["success"] == pytest.approx(total / 5)


def test_a_missing_extra_is_named(command, monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.startswith("resilisim.policies.ppo.")]:
        monkeypatch.delitem(sys.modules, name)
    import resilisim.policies.ppo

    monkeypatch.delattr(resilisim.policies.ppo, "training", raising=False)
    monkeypatch.setitem(sys.modules, "sb3_contrib", None)
    line = command(*TRAIN, "--out", tmp_path / "run").refusal()
    assert "sb3_contrib" in line
    assert "pip install -c constraints.txt '.[train]'" in line
    assert not (tmp_path / "run").exists()


def test_ctrl_c_says_how_to_go_on(command, monkeypatch, tmp_path):
    class Interrupted:
        @staticmethod
        def train(*_):
            raise KeyboardInterrupt

    monkeypatch.setattr(command_module, "import_training", lambda: Interrupted)
    outcome = command(*TRAIN, "--out", tmp_path / "run")
    assert outcome.code == 130
    assert "the same command resumes it" in outcome.err


def test_a_line_of_progress():
    evaluation = Evaluation(100, 0.5, 0.4, 0.8, 0.5)
    progress = TrainingProgress(1_234_567, 2.0, 45_000.4, 0.61, evaluation, evaluation, 192.0)
    assert progress_line(progress) == (
        "1,234,567 steps, 45,000 steps/s, success in training 0.610, "
        "share of the optimum on validation tasks 0.500 (best 0.500), 3 min 12 s left"
    )
    assert progress_line(TrainingProgress(0, 0.0, 0.0, None, None, None, None)) == "0 steps"
    imitating = TrainingProgress(0, 1.0, 0.0, None, None, None, 60.0, 480, 0.915)
    assert progress_line(imitating) == (
        "480 updates of imitating the optimum, like the optimum in 92% of the states, 1 min 00 s left"
    )
