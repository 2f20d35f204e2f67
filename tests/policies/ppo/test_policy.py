"""The trained policy in Conversation-v0: it plays what its network plays in Workflow-v0, luck for luck."""

from __future__ import annotations

import numpy as np
import pytest
from networks import dependencies_first, next_required, save_random

from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.workflow.env import WorkflowEnv
from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation import evaluate
from resilisim.policies import is_privileged, make_policy, policy_name, policy_names
from resilisim.policies.checks import CommonWordSearch, check_policy
from resilisim.policies.ppo.checkpoint import load_checkpoint
from resilisim.policies.ppo.network import WorkflowActor
from resilisim.policies.ppo.policy import TrainedPolicy
from resilisim.seeding import EVALUATION_SALT
from resilisim.simulator.state import ENDED
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import default_library

LIBRARY = default_library()
TASKS = benchmark_tasks()[::700]


def environment(**options):
    return ConversationEnv(library=LIBRARY, search=CommonWordSearch(LIBRARY), **options)


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
    tasks = {task.required_tools: task for task in benchmark_tasks()}
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
    monkeypatch.setattr("resilisim.policies.ppo.checkpoint._DEFAULT_FOLDER", folder)
    assert policy_name(make_policy("trained")) == "trained"
    assert policy_name(make_policy("policy:default")) == "policy:default"
    monkeypatch.chdir(folder.parent)
    assert policy_name(make_policy(f"policy:{folder.name}")) == f"policy:{folder.name}"


def test_what_cannot_be_loaded_is_told_and_a_module_named_policy_is_found(folder, monkeypatch, tmp_path):
    with pytest.raises(InvalidInputError, match="no checkpoint 'nowhere'"):
        make_policy("policy:nowhere")
    with pytest.raises(InvalidInputError, match="no checkpoint 'runs/1'"):
        make_policy("policy:runs/1")
    monkeypatch.setattr("resilisim.policies.ppo.checkpoint._DEFAULT_FOLDER", folder / "absent")
    with pytest.raises(InvalidInputError, match="no trained policy ships"):
        make_policy("trained")
    (tmp_path / "policy.py").write_text("class Mine:\n    name = 'mine'\n    reset = act = lambda *_: None\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert policy_name(make_policy("policy:Mine")) == "mine", "a module of this name is still found"
    assert isinstance(make_policy(f"policy:{folder}"), TrainedPolicy)


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
