"""The trained policy: what its network plays in Workflow-v0, luck for luck, and plans worth what they predict."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from networks import dependencies_first, first_tool_for_ever, next_required, save_random

from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.workflow import context as similarity_module
from resilisim.envs.workflow.env import WorkflowEnv
from resilisim.envs.workflow.spaces import STATUS_SUCCESS, tool_of
from resilisim.errors import ExactLimitError, InvalidInputError, StoreError
from resilisim.evaluation import evaluate
from resilisim.policies import make_policy, policy_names
from resilisim.policies.base import is_privileged, policy_name
from resilisim.policies.checks import check_policy
from resilisim.policies.ppo import checkpoint
from resilisim.policies.ppo import policy as planner_module
from resilisim.policies.ppo.checkpoint import load_checkpoint
from resilisim.policies.ppo.network import WorkflowActor
from resilisim.policies.ppo.policy import PolicyPlanner, TrainedPolicy
from resilisim.seeding import EVALUATION_SALT
from resilisim.simulator.end_rules import EndRules
from resilisim.simulator.exact import plan_following, solve
from resilisim.simulator.law import Law
from resilisim.simulator.problem import build_problem, start_state
from resilisim.simulator.state import ENDED
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import default_library
from resilisim.tool_library.parameters import check_parameters
from resilisim.workflows import Workflow
from resilisim.workflows import planner as planners_module
from resilisim.workflows.plan_value import follow_steps
from resilisim.workflows.planner import no_similar_tools, resolve_planner
from tests.workflows.toy_workflows import LIBRARY as TOYS
from tests.workflows.toy_workflows import task as toy_task

LIBRARY = default_library()
TASKS = benchmark_tasks("benchmark-v1")[::700]


def environment(**options):
    return ConversationEnv(library=LIBRARY, search="lexical", **options)


def same_but_for_the_end(mirrored, state):
    """Compare states; Workflow-v0 ends where all is done or no turn is left, before Conversation's last message."""
    assert (mirrored.status, mirrored.executions) == (state.status, state.executions)
    assert mirrored.counters[:ENDED] == state.counters[:ENDED]


def play(policy, env, task, seed):
    """Play one episode; return the executions, the reward and the last info, and check the mirror on the way."""
    observation, info = env.reset(seed=seed, options={"task": task})
    policy.reset(observation, info)
    ended, reward, executions = False, 0.0, []
    while not ended:
        message = policy.act(observation, info)
        same_but_for_the_end(policy._mirror.state, info["state"])
        observation, reward, ended, _, info = env.step(message)
        if "execution" in info:
            executions.append((info["execution"]["tool"], info["execution"]["success"]))
    return executions, reward, info


def play_workflow(network, task, seed):
    """Play the same episode in Workflow-v0; return its executions and whether it was a full success."""
    env = WorkflowEnv(tasks=[task], salt=EVALUATION_SALT)
    actor = WorkflowActor(network)
    observation, info = env.reset(seed=0, options={"task": 0, "episode_seed": seed})
    ended, executions = False, []
    while not ended:
        batch = {name: observation[name][None] for name in ("tools", "task")}
        action = actor.act(batch, observation["action_mask"][None])[0]
        observation, _, ended, _, info = env.step(action)
        executions.append((info["execution"]["tool"], info["execution"]["success"]))
    return executions, info["full_success"]


@pytest.mark.parametrize("protocol", ["text", "native"])
def test_it_plays_what_its_network_plays_in_workflow(folder, protocol):
    policy, env = make_policy(f"policy:{folder}"), environment(protocol=protocol)
    network = load_checkpoint(folder).network
    for task in TASKS:
        for seed in range(2):
            executions, reward, _ = play(policy, env, task, seed)
            assert (executions, bool(reward)) == play_workflow(network, task, seed)


def test_it_finishes_when_all_is_done_and_calls_in_strict_mode(folder, acting_as):
    acting_as(dependencies_first)
    policy, env = TrainedPolicy(folder), environment(parameters="strict")
    outcomes = [play(policy, env, task, seed) for task in TASKS for seed in range(20)]
    assert all(info["score"]["ended_by"] in ("completion", "consecutive_failures") for _, _, info in outcomes)
    assert sum(reward for _, reward, _ in outcomes) / len(outcomes) > 0.5
    for executions, reward, info in outcomes:
        first = list(dict.fromkeys(tool for tool, success in executions if success))
        assert reward == ([tool for tool in first if tool in info["required_tools"]] == info["required_tools"])


def test_it_knows_turns_in_which_nothing_ran(folder, acting_as):
    acting_as(next_required)
    policy, env = TrainedPolicy(folder), environment()
    observation, info = env.reset(seed=0, options={"task": TASKS[0]})
    policy.reset(observation, info)
    policy.act(observation, info)
    for _ in range(3):  # something else was said in its place
        observation, _, _, _, info = env.step("<tool_info>file_operations_reader</tool_info>")
        policy.act(observation, info)
    assert policy._mirror.state.turns_used == info["state"].turns_used == 3


def test_it_conforms(folder, monkeypatch):
    tasks = {task.required_tools: task for task in benchmark_tasks("benchmark-v1")}
    monkeypatch.setattr("resilisim.policies.checks.CHECKED_TASKS", list(tasks)[:3])
    monkeypatch.setattr(
        "resilisim.envs.workflow.context.retrieved_scores",
        lambda library, descriptions: np.zeros((len(descriptions), len(library)), np.int16),
    )
    assert check_policy(TrainedPolicy(folder)) == []
    task = Task.from_mapping({"required_tools": ["network_fetcher"], "description": "Fetch it."}, LIBRARY)
    assert play(TrainedPolicy(folder), environment(), task, 0)[0], "a task of one's own needs no shipped text"


def test_policies_by_name(folder, monkeypatch):
    policy = make_policy(f"policy:{folder}", offered={"library": LIBRARY})
    assert isinstance(policy, TrainedPolicy)
    assert is_privileged(policy)
    assert policy_name(policy) == f"policy:{folder}"
    assert "trained" in policy_names()
    assert policy_name(make_policy("trained", checkpoint=folder)) == "trained"
    monkeypatch.setitem(checkpoint._SHIPPED, "default", folder)
    assert policy_name(make_policy("trained")) == "trained"
    assert policy_name(make_policy("policy:default")) == "policy:default"
    monkeypatch.chdir(folder.parent)
    assert policy_name(make_policy(f"policy:{folder.name}")) == f"policy:{folder.name}"


def test_what_cannot_be_loaded_is_told_and_a_module_named_policy_is_found(folder, monkeypatch, tmp_path):
    with pytest.raises(InvalidInputError, match="no checkpoint 'nowhere'"):
        make_policy("policy:nowhere")
    with pytest.raises(InvalidInputError, match="no checkpoint 'runs/1'"):
        make_policy("policy:runs/1")
    monkeypatch.setitem(checkpoint._SHIPPED, "default", folder / "absent")
    with pytest.raises(InvalidInputError, match="no trained policy ships"):
        make_policy("trained")
    (tmp_path / "policy.py").write_text("class Mine:\n    name = 'mine'\n    reset = act = lambda *_: None\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert policy_name(make_policy("policy:Mine")) == "mine", "a module of this name is still found"
    assert isinstance(make_policy(f"policy:{folder}"), TrainedPolicy)


@pytest.mark.long
def test_evaluations_hand_other_processes_the_name_only(folder, tmp_path):
    spec = f"policy:{folder}"
    one, two = (
        evaluate(spec, [TASKS[0]], "optimal", 4, planner=spec, workers=workers, out=tmp_path / name, progress=False)
        for workers, name in ((1, "one"), (2, "two"))
    )
    assert [row.to_mapping() for row in one.rows] == [row.to_mapping() for row in two.rows]
    assert {(row.policy, row.planner, row.privileged) for row in one.rows} == {(spec, spec, True)}


def test_a_run_goes_on_with_the_same_weights_only(tmp_path):
    folder, out = save_random(tmp_path / "policy"), tmp_path / "run"
    spec, task = f"policy:{folder}", TASKS[0]
    first = evaluate(spec, [task], seeds=1, out=out, planner=spec, progress=False)
    again = evaluate(spec, [task], seeds=1, out=out, planner=spec, progress=False)
    assert [row.to_mapping() for row in first.rows] == [row.to_mapping() for row in again.rows]
    assert list(first.manifest["arguments"]["checkpoints"]) == [spec]
    assert "checkpoints" not in evaluate("random", [task], progress=False).manifest["arguments"]
    save_random(tmp_path / "policy", seed=1)
    with pytest.raises(StoreError, match=r"another run: checkpoints\."):
        evaluate(spec, [task], seeds=1, out=out, planner=spec, progress=False)


PLANNED = benchmark_tasks("benchmark-v1")[::500]


@pytest.fixture
def no_retrieval(monkeypatch):
    """Let tasks of other libraries have no similarities, so that no model is loaded."""

    def zeros(library, descriptions):
        return np.zeros((len(descriptions), len(library)), np.int16)

    monkeypatch.setattr(similarity_module, "retrieved_scores", zeros)


def problem_of(one, library=None, rules=None):
    return build_problem(library or default_library(), one.required_tools, Law(), rules or EndRules())


def task_with(*required):
    """Return a shipped task with this required list."""
    return next(one for one in benchmark_tasks("benchmark-v1") if one.required_tools == required)


def test_a_plan_is_what_the_network_calls_when_all_goes_well(folder):
    planner, library = PolicyPlanner(folder), default_library()
    actor = WorkflowActor(load_checkpoint(folder).network)
    for one in PLANNED:
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
            observation = env.step_with_outcome(best, STATUS_SUCCESS)[0]


@pytest.mark.parametrize("seed", range(3))
def test_plans_end_and_predict_what_they_are_worth(tmp_path, seed):
    planner, library = PolicyPlanner(save_random(tmp_path, seed)), default_library()
    for one in PLANNED:
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
    for one in PLANNED:
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
        for one in benchmark_tasks("benchmark-v1")
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
    plain = PolicyPlanner(folder).plan(PLANNED[0])
    assert plain.steps[0].alternatives == names[1:4]
    assert plain.steps[1].alternatives == names[2:5]  # not the first, which has succeeded
    similar = PolicyPlanner(folder, similar=lambda name: [f"like {name}"]).plan(PLANNED[0])
    assert similar.steps[0].alternatives == (f"like {names[0]}",)
    assert PolicyPlanner(folder, similar=no_similar_tools).plan(PLANNED[0]).steps[0].alternatives == ()


def test_a_task_is_planned_once_while_its_plan_is_kept(folder, monkeypatch):
    made = []
    whole = planner_module.all_success_calls
    monkeypatch.setattr(planner_module, "all_success_calls", lambda *both: made.append(both[1]) or whole(*both))
    monkeypatch.setattr("resilisim.workflows.planner.KEPT_PLANS", 2)
    planner = PolicyPlanner(folder)
    plans = [planner.plan(PLANNED[number]) for number in (0, 1, 0, 2, 0, 1)]
    assert [problem.required_tools for problem in made] == [PLANNED[number].required_tools for number in (0, 1, 2, 1)]
    assert plans[0] == plans[2] == plans[4]
    assert plans[1] == plans[5]


@pytest.mark.usefixtures("no_retrieval")
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(TOYS.names), min_size=1, max_size=5, unique=True),
    st.integers(1, 10),
    st.sampled_from([0, 2, 5]),
    st.sampled_from([0, 2, 4]),
)
def test_any_weights_plan_for_other_libraries_and_rules(folder, required, turns, failures, loops):
    rules = EndRules(turns, failures, loops)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = toy_task(*required)
    workflow, problem = PolicyPlanner(folder, TOYS, rules=rules).plan(one), problem_of(one, TOYS, rules)
    assert 1 <= len(workflow.steps) <= min(turns, 5)
    expected = follow_steps(problem, workflow.steps, "ignore").success
    assert workflow.predicted_success_probability == pytest.approx(expected, abs=1e-12)


EMBEDDINGS = {"width": 8, "heads": 2, "tool_embeddings": True}


@pytest.mark.parametrize(("kind", "options"), [("mlp", {"width": 8}), ("transformer", EMBEDDINGS)])
def test_weights_that_know_single_tools_are_refused_for_another_library(tmp_path, kind, options):
    save_random(tmp_path, kind=kind, options=options)
    assert PolicyPlanner(tmp_path).plan(PLANNED[0]).steps
    for user in (PolicyPlanner, TrainedPolicy):
        with pytest.raises(InvalidInputError, match=r"was trained for the tool library [0-9a-f]{12}, got [0-9a-f]{12}"):
            user(tmp_path, TOYS)


def test_a_policy_of_hidden_lists_plans_without_seeing_them(tmp_path, acting_as):
    acting_as(next_required)  # which prefers nothing where DUE is not shown
    workflow = PolicyPlanner(save_random(tmp_path, required="hidden")).plan(PLANNED[0])
    assert workflow.tools[:2] == default_library().names[:2]
    with pytest.raises(InvalidInputError, match="unknown required option 'maybe'"):
        PolicyPlanner(save_random(tmp_path / "other", required="maybe")).plan(PLANNED[0])


def test_planners_by_name(folder, monkeypatch):
    planner = resolve_planner(f"policy:{folder}", similar=no_similar_tools, rules=EndRules(max_turns=3))
    assert isinstance(planner, PolicyPlanner)
    assert planner.rules.max_turns == 3
    assert planner.plan(PLANNED[0]).planner == f"policy:{folder}"
    monkeypatch.chdir(folder.parent)
    relative = resolve_planner(f"policy:{folder.name}")
    assert relative.plan(PLANNED[0]).planner == f"policy:{folder.name}"
    with pytest.raises(InvalidInputError, match="no checkpoint 'nowhere'"):
        resolve_planner("policy:nowhere")


def test_auto_takes_the_shipped_policy_where_the_law_cannot_be_solved(folder, monkeypatch):
    def too_large(problem):
        raise ExactLimitError("too large")

    monkeypatch.setattr(planners_module, "solve", too_large)
    monkeypatch.setitem(checkpoint._SHIPPED, "default", folder / "absent")
    with pytest.raises(ExactLimitError, match=r"^too large; a trained policy could plan it, but no trained policy"):
        resolve_planner("auto").plan(PLANNED[0])
    monkeypatch.setitem(checkpoint._SHIPPED, "default", folder)
    workflow = resolve_planner("auto").plan(PLANNED[0])
    assert workflow.planner == "policy:default"
    assert workflow.tools == PolicyPlanner(folder).plan(PLANNED[0]).tools


def test_who_looks_ahead_plays_conversations_and_makes_no_plans(tmp_path):
    folder = save_random(tmp_path / "policy")
    policy = make_policy(f"policy:{folder}+1")
    assert policy_name(policy) == f"policy:{folder}+1"
    executions, _, info = play(policy, environment(), TASKS[0], 1)
    assert len(executions) > 0
    assert info["state"].counters[ENDED]
    with pytest.raises(InvalidInputError, match=f"expected policy:{folder}$"):
        PolicyPlanner(f"{folder}+1")
    with pytest.raises(InvalidInputError, match="did you mean 'default'"):
        load_checkpoint("defalt+2")
