"""The planner of a trained policy: plans are what the policy calls, and predict what they are computed to be worth."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from networks import dependencies_first, first_tool_for_ever, next_required, save_random

from resilisim.envs.workflow import context as similarity_module
from resilisim.envs.workflow.actions import tool_of
from resilisim.envs.workflow.columns import SUCCESS
from resilisim.envs.workflow.env import WorkflowEnv
from resilisim.errors import ExactLimitError, InvalidInputError
from resilisim.policies.ppo import policy as planner_module
from resilisim.policies.ppo.checkpoint import load_checkpoint
from resilisim.policies.ppo.network import WorkflowActor
from resilisim.policies.ppo.policy import PolicyPlanner, TrainedPolicy
from resilisim.simulator.exact import plan_following, solve
from resilisim.simulator.law import BenchmarkLaw, EndRules
from resilisim.simulator.problem import build_problem
from resilisim.simulator.state import start_state
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import default_library
from resilisim.tool_library.parameters import check_parameters
from resilisim.workflows import Workflow, resolve_planner
from resilisim.workflows import planner as planners_module
from resilisim.workflows.plan_value import follow_steps
from resilisim.workflows.planner import no_similar_tools
from tests.workflows.toy_workflows import LIBRARY, task

TASKS = benchmark_tasks()[::500]


@pytest.fixture
def no_retrieval(monkeypatch):
    """Let tasks of other libraries have no similarities, so that no model is loaded."""

    def zeros(library, descriptions):
        return np.zeros((len(descriptions), len(library)), np.int16)

    monkeypatch.setattr(similarity_module, "retrieved_scores", zeros)


def problem_of(one, library=None, rules=None):
    return build_problem(library or default_library(), one.required_tools, BenchmarkLaw(), rules or EndRules())


def task_with(*required):
    """Return a shipped task with this required list."""
    return next(one for one in benchmark_tasks() if one.required_tools == required)


def test_a_plan_is_what_the_network_calls_when_all_goes_well(folder):
    planner, library = PolicyPlanner(folder), default_library()
    actor = WorkflowActor(load_checkpoint(folder).network)
    for one in TASKS:
        env = WorkflowEnv(tasks=[one])
        observation, _ = env.reset(seed=1)
        for step in planner.plan(one).steps:
            batch = {name: observation[name][None] for name in ("tools", "task")}
            chances = actor.probabilities(batch, observation["action_mask"][None])[0]
            status = env.episode_state().status
            for action in range(len(chances)):
                if tool_of(action, 30) < 0 or status[tool_of(action, 30)] == 2:
                    chances[action] = 0.0  # a step is done once
            best = int(chances.argmax())
            assert step.tool == library.names[tool_of(best, 30)]
            assert step.confidence == pytest.approx(chances[best], abs=1e-4)
            observation = env.step_with_outcome(best, SUCCESS)[0]


@pytest.mark.parametrize("seed", range(3))
def test_plans_end_and_predict_what_they_are_worth(tmp_path, seed):
    planner, library = PolicyPlanner(save_random(tmp_path, seed)), default_library()
    for one in TASKS:
        workflow, problem = planner.plan(one), problem_of(one)
        indices = [library.index(name) for name in workflow.tools]
        assert len(set(indices)) == len(indices) <= 10
        assert set(one.required_tools) <= set(workflow.tools) or len(indices) == 10
        assert not any(step.is_limited for step in workflow.steps if step.tool in one.required_tools)
        assert workflow.predicted_success_probability == pytest.approx(
            follow_steps(problem, workflow.steps).success, abs=1e-12
        )
        assert workflow.predicted_success_probability <= solve(problem).value(start_state(problem)) + 1e-12
        assert Workflow.from_mapping(workflow.to_mapping()) == workflow
        assert workflow.planner == planner.name == f"policy:{tmp_path}"
        for step in workflow.steps:
            assert check_parameters(library[step.tool], step.parameters, "strict") == []
            assert step.requires == library[step.tool].dependencies
            assert step.chosen_by == ("semantics" if step.tool in one.required_tools else "policy")
            assert 0.0 < step.confidence <= 1.0


def test_a_policy_that_calls_the_required_tools_plans_the_list(folder, acting_as):
    acting_as(next_required)
    planner = PolicyPlanner(folder)
    for one in TASKS:
        workflow = planner.plan(one)
        assert workflow.tools == one.required_tools
        assert workflow.predicted_success_probability == pytest.approx(plan_following(problem_of(one)), abs=1e-12)
        assert [step.confidence for step in workflow.steps] == [0.9] * len(workflow.steps)


def test_a_policy_that_runs_dependencies_first_says_why(folder, acting_as):
    acting_as(dependencies_first)
    one = task_with("file_operations_reader", "data_processing_transformer", "file_operations_writer")
    workflow = PolicyPlanner(folder).plan(one)
    outside = [step for step in workflow.steps if step.tool not in one.required_tools]
    assert outside
    assert [tool for tool in workflow.tools if tool in one.required_tools] == list(one.required_tools)
    assert workflow.predicted_success_probability > plan_following(problem_of(one)) + 0.05
    for step in outside:
        assert step.reason.startswith("not on the task's list, required by ")
        assert step.chosen_by == "policy"


def test_reasons_claim_nothing_that_a_policy_does_not_know(folder, acting_as):
    acting_as(next_required)
    one = next(
        one
        for one in benchmark_tasks()
        if one.required_tools[0] == "file_operations_reader"
        and any("transformer" in name for name in one.required_tools)
        and "data_processing_parser" not in one.required_tools
    )
    (step,) = (step for step in PolicyPlanner(folder).plan(one).steps if step.tool == "data_processing_transformer")
    assert step.reason == (
        "an operation that the task asks for; the trained policy does not run data_processing_parser first "
        "(success probability 0.400 without)"
    )


def test_alternatives_are_similar_tools_or_the_next_calls(folder, acting_as):
    acting_as(first_tool_for_ever)
    names = default_library().names
    plain = PolicyPlanner(folder).plan(TASKS[0])
    assert plain.steps[0].alternatives == names[1:4]
    assert plain.steps[1].alternatives == names[2:5]  # not the first, which has succeeded
    similar = PolicyPlanner(folder, similar=lambda name: [f"like {name}"]).plan(TASKS[0])
    assert similar.steps[0].alternatives == (f"like {names[0]}",)
    assert PolicyPlanner(folder, similar=no_similar_tools).plan(TASKS[0]).steps[0].alternatives == ()


def test_a_task_is_planned_once_while_its_plan_is_kept(folder, monkeypatch):
    made = []
    whole = planner_module.all_success_calls
    monkeypatch.setattr(planner_module, "all_success_calls", lambda *both: made.append(both[1]) or whole(*both))
    monkeypatch.setattr("resilisim.workflows.planner.KEPT_PLANS", 2)
    planner = PolicyPlanner(folder)
    plans = [planner.plan(TASKS[number]) for number in (0, 1, 0, 2, 0, 1)]
    assert [problem.required_tools for problem in made] == [TASKS[number].required_tools for number in (0, 1, 2, 1)]
    assert plans[0] == plans[2] == plans[4]
    assert plans[1] == plans[5]


@pytest.mark.usefixtures("no_retrieval")
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(LIBRARY.names), min_size=1, max_size=5, unique=True),
    st.integers(1, 10),
    st.sampled_from([0, 2, 5]),
    st.sampled_from([0, 2, 4]),
)
def test_any_weights_plan_for_other_libraries_and_rules(folder, required, turns, failures, loops):
    rules = EndRules(turns, failures, loops)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = task(*required)
    workflow, problem = PolicyPlanner(folder, LIBRARY, rules=rules).plan(one), problem_of(one, LIBRARY, rules)
    assert 1 <= len(workflow.steps) <= min(turns, 5)
    expected = follow_steps(problem, workflow.steps, "ignore").success
    assert workflow.predicted_success_probability == pytest.approx(expected, abs=1e-12)


EMBEDDINGS = {"width": 8, "heads": 2, "tool_embeddings": True}


@pytest.mark.parametrize(("kind", "options"), [("mlp", {"width": 8}), ("transformer", EMBEDDINGS)])
def test_weights_that_know_single_tools_are_refused_for_another_library(tmp_path, kind, options):
    save_random(tmp_path, kind=kind, options=options)
    assert PolicyPlanner(tmp_path).plan(TASKS[0]).steps
    for user in (PolicyPlanner, TrainedPolicy):
        with pytest.raises(InvalidInputError, match=r"was trained for the tool library [0-9a-f]{12}, got [0-9a-f]{12}"):
            user(tmp_path, LIBRARY)


def test_a_policy_of_hidden_lists_plans_without_seeing_them(tmp_path, acting_as):
    acting_as(next_required)  # which prefers nothing where DUE is not shown
    workflow = PolicyPlanner(save_random(tmp_path, required="hidden")).plan(TASKS[0])
    assert workflow.tools[:2] == default_library().names[:2]
    with pytest.raises(InvalidInputError, match="unknown required option 'maybe'"):
        PolicyPlanner(save_random(tmp_path / "other", required="maybe")).plan(TASKS[0])


def test_planners_by_name(folder, monkeypatch):
    planner = resolve_planner(f"policy:{folder}", similar=no_similar_tools, rules=EndRules(max_turns=3))
    assert isinstance(planner, PolicyPlanner)
    assert planner.rules.max_turns == 3
    assert planner.plan(TASKS[0]).planner == f"policy:{folder}"
    monkeypatch.chdir(folder.parent)
    relative = resolve_planner(f"policy:{folder.name}")
    assert relative.plan(TASKS[0]).planner == f"policy:{folder.name}"
    with pytest.raises(InvalidInputError, match="no checkpoint 'nowhere'"):
        resolve_planner("policy:nowhere")


def test_auto_takes_the_shipped_policy_where_the_law_cannot_be_solved(folder, monkeypatch):
    def too_large(problem):
        raise ExactLimitError("too large")

    monkeypatch.setattr(planners_module, "solve", too_large)
    monkeypatch.setattr("resilisim.policies.ppo.checkpoint._DEFAULT_FOLDER", folder / "absent")
    with pytest.raises(ExactLimitError, match=r"^too large; a trained policy could plan it, but no trained policy"):
        resolve_planner("auto").plan(TASKS[0])
    monkeypatch.setattr("resilisim.policies.ppo.checkpoint._DEFAULT_FOLDER", folder)
    workflow = resolve_planner("auto").plan(TASKS[0])
    assert workflow.planner == "policy:default"
    assert workflow.tools == PolicyPlanner(folder).plan(TASKS[0]).tools


def test_torch_is_imported_only_when_such_a_planner_is_made():
    code = (
        "import sys, resilisim, resilisim.cli.main, resilisim.envs, resilisim.policies, resilisim.workflows\n"
        "resilisim.workflows.resolve_planner('auto')\n"
        "print([name for name in ('torch', 'safetensors', 'stable_baselines3') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
