"""Targets of the warm start against the exact optimum, how states are sampled, and that a network learns them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from resilisim.envs.workflow.actions import INVOKE_TOOL, RETRY_TOOL, action_index, num_actions
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.errors import InvalidInputError
from resilisim.policies.ppo.imitation import (
    ImitationBatch,
    ImitationConfig,
    collect_imitation_batch,
    imitate,
    imitation_batches,
    optimal_targets,
    tool_values,
)
from resilisim.policies.ppo.network import WorkflowTransformer
from resilisim.simulator import FINISH, EndRules, build_problem, execution, next_state, start_state
from resilisim.simulator.exact import solve
from resilisim.simulator.state import CONSECUTIVE_FAILURES, LOOP_SIGNATURE, NUM_FAILURES, TURNS_USED, is_done
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import default_library

LIBRARY = default_library()
CHAIN = ("file_operations_reader", "data_processing_transformer", "file_operations_writer")
TASKS = [task.instance_id for task in benchmark_tasks()[:4]]
MOVES = st.lists(st.tuples(st.integers(0, 29), st.booleans()), max_size=9)


def reached(problem, moves):
    """The state that some executions with given outcomes lead to, as far as the episode goes."""
    state = start_state(problem)
    for tool, success in moves:
        if state.ended_by is None and not is_done(problem, state):
            state = next_state(problem, state, execution(LIBRARY.names[tool]), success)
    return state


@given(MOVES, st.sampled_from([EndRules(), EndRules(max_consecutive_failures=0), EndRules(max_turns=6)]))
@settings(max_examples=60)
def test_values_are_those_of_the_optimum(moves: list[tuple[int, bool]], rules: EndRules) -> None:
    problem = build_problem(LIBRARY, CHAIN, rules=rules)
    state = reached(problem, moves)
    if state.ended_by is not None:
        return
    values, value = tool_values(problem, state)
    optimum = solve(problem)
    assert values == tuple(optimum.action_value(state, execution(name)) for name in LIBRARY.names)
    assert value == optimum.value(state)


@given(MOVES)
@settings(max_examples=60)
def test_targets_are_all_tools_with_the_highest_value(moves: list[tuple[int, bool]]) -> None:
    problem = build_problem(LIBRARY, CHAIN)
    state = reached(problem, moves)
    optimum = solve(problem)
    targets = optimal_targets(problem, state)
    assert targets.value == optimum.value(state)
    over = state.ended_by is not None or is_done(problem, state) or targets.value == 0.0
    if over or optimum.best_action(state) == FINISH:
        assert targets.probabilities == {}
        return
    best = {name for name in LIBRARY.names if optimum.action_value(state, execution(name)) > targets.value - 1e-12}
    assert set(targets.probabilities) == best
    assert set(targets.probabilities.values()) == {1.0 / len(best)}
    assert optimum.best_action(state).tool in best


def test_the_start_of_a_chain_has_one_best_tool() -> None:
    problem = build_problem(LIBRARY, CHAIN)
    targets = optimal_targets(problem, start_state(problem))
    # A dependency of the transformer that is not required: the optimum runs it before anything else.
    assert targets.probabilities == {"data_processing_parser": 1.0}
    assert targets.value == pytest.approx(0.923321, abs=1e-6)


def test_tools_that_only_break_a_row_of_failures_share_equally() -> None:
    problem = build_problem(LIBRARY, CHAIN)
    counters = list(start_state(problem).counters)
    counters[TURNS_USED], counters[NUM_FAILURES], counters[CONSECUTIVE_FAILURES] = 4, 4, 4
    state = start_state(problem)
    for tool in ("data_processing_transformer",) * 4:
        state = next_state(problem, state, execution(tool), success=False)
    assert state.counters == tuple(counters)
    assert state.counters[LOOP_SIGNATURE] == -1
    targets = optimal_targets(problem, state)
    assert sum(targets.probabilities.values()) == pytest.approx(1.0)
    values, _ = tool_values(problem, state)
    assert len(targets.probabilities) == sum(value >= max(values) - 1e-12 for value in values)


@pytest.fixture(scope="module")
def vector_env():
    return WorkflowVectorEnv(16, tasks=TASKS, similarity=None, autoreset_mode="SameStep")


@pytest.mark.parametrize("mode", ["SameStep", "NextStep"])
def test_batches_hold_optimal_actions_of_the_states_shown(mode: str) -> None:
    environments = WorkflowVectorEnv(16, tasks=TASKS, similarity=None, autoreset_mode=mode)
    observations, _ = environments.reset(seed=5)
    expected = []
    for step in range(12):
        shown = {name: array.copy() for name, array in observations.items()}
        states = [(environments.problem(env), environments.episode_state(env)) for env in range(16)]
        batch, observations = collect_imitation_batch(
            environments, observations, num_steps=1, actor_noise=0.3, seed=1, first_step=step
        )
        rows = [
            env for env, (problem, state) in enumerate(states) if state.ended_by is None and not is_done(problem, state)
        ]
        assert len(batch) == len(rows)
        for name, array in batch.observations.items():
            np.testing.assert_array_equal(array, shown[name][rows])
        for row, env in enumerate(rows):
            problem, state = states[env]
            expected.append(optimal_targets(problem, state))
            by_tool = batch.targets[row, : 9 * 31].reshape(9, 31).sum(axis=0)[:30]
            assert {LIBRARY.names[tool]: by_tool[tool] for tool in np.flatnonzero(by_tool)} == pytest.approx(
                expected[-1].probabilities
            )
            assert batch.values[row] == pytest.approx(expected[-1].value)
            assert not (batch.targets[row] > 0)[~batch.action_mask[row]].any()
    # Noise leads into states in which nothing can succeed any more, too.
    assert 0 < sum(not targets.probabilities for targets in expected) < len(expected) / 2
    if mode == "SameStep":
        assert len(expected) == 12 * 16


class Scored:
    """Passes everything on and keeps the rewards of the steps that end an episode: 1 for full success."""

    def __init__(self, inner: WorkflowVectorEnv) -> None:
        self.inner = inner
        self.num_envs = inner.num_envs
        self.problem = inner.problem
        self.episode_state = inner.episode_state
        self.reset = inner.reset
        self.ended: list[float] = []

    def step(self, actions):
        result = self.inner.step(actions)
        self.ended += result[1][result[2]].tolist()
        return result


def test_without_noise_the_optimum_is_played() -> None:
    scored = Scored(WorkflowVectorEnv(16, tasks=TASKS[:1], similarity=None, autoreset_mode="SameStep"))
    (batch,) = imitation_batches(scored, num_batches=1, num_steps=400, actor_noise=0.0, seed=2)
    assert len(batch) == 400 * 16
    problem = scored.problem(0)
    # Neither a sure success nor a sure failure, so that a mean near it says something.
    optimum = solve(problem).value(start_state(problem))
    assert 0.3 < optimum < 0.7
    assert len(scored.ended) > 600  # so the standard error of the mean is at most 0.02
    assert np.mean(scored.ended) == pytest.approx(optimum, abs=0.06)


def test_sampling_is_a_function_of_the_seed(vector_env) -> None:
    def batches(seed: int) -> list[ImitationBatch]:
        arguments = {"num_batches": 2, "num_steps": 5, "actor_noise": 0.5}
        return list(imitation_batches(vector_env, seed=seed, **arguments))

    one, same, other = batches(3), batches(3), batches(4)
    for first, second in zip(one, same, strict=True):
        np.testing.assert_array_equal(first.observations["tools"], second.observations["tools"])
        np.testing.assert_array_equal(first.targets, second.targets)
    assert not np.array_equal(one[1].observations["tools"], other[1].observations["tools"])


class Table(nn.Module):
    """Logits and a value that do not depend on the observation."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.output = nn.Parameter(torch.zeros(actions + 1))

    def forward(self, tools: torch.Tensor, task: torch.Tensor) -> torch.Tensor:
        return self.output.expand(len(tools), -1)


def small_batch(targets: list[list[float]], mask: list[list[bool]], values: list[float]) -> ImitationBatch:
    count = len(values)
    observations = {"tools": np.zeros((count, 2, 3), np.uint8), "task": np.zeros((count, 4), np.uint8)}
    return ImitationBatch(observations, np.array(mask), np.array(targets, np.float32), np.array(values, np.float32))


def test_progress_is_measured_before_learning() -> None:
    batch = small_batch([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]], [[True, True, False]] * 3, [1.0, 1.0, 0.0])
    network = Table(3)
    (update,) = imitate(network, [batch], ImitationConfig(learning_rate=0.0))
    # Two legal actions with equal logits: ln 2 from the first target, 0 from the second; the third has none.
    assert update.divergence == pytest.approx(np.log(2) / 2)
    assert update.agreement == 1.0
    assert update.value_error == pytest.approx(np.sqrt(2 / 3))
    assert network.output.tolist() == [0.0] * 4


def test_a_table_learns_the_target_shares_and_the_value() -> None:
    batch = small_batch([[0.75, 0.25, 0.0]] * 4, [[True, True, False]] * 4, [0.4] * 4)
    network = Table(3).eval()
    seen = []
    updates = imitate(network, [batch] * 300, ImitationConfig(learning_rate=0.05), seen.append)
    assert seen == updates
    assert updates[-1].divergence < 1e-4
    assert updates[-1].value_error < 1e-2
    assert network.output[2] == 0.0  # illegal: never moved
    assert not network.training


def test_states_without_targets_teach_only_the_value() -> None:
    batch = small_batch([[0.0, 0.0, 0.0]], [[True, True, True]], [0.0])
    network = Table(3)
    (update,) = imitate(network, [batch])
    assert (update.divergence, update.agreement) == (0.0, 0.0)
    assert network.output.tolist() == [0.0] * 4
    empty = small_batch([], [], [])
    assert imitate(network, [empty]) == []


def test_a_network_of_another_size_is_refused() -> None:
    batch = small_batch([[1.0, 0.0, 0.0]], [[True, True, True]], [0.0])
    with pytest.raises(InvalidInputError, match=r"returned shape \(1, 6\): expected \(1, 4\)"):
        imitate(Table(5), [batch])


def test_settings_are_checked(vector_env) -> None:
    with pytest.raises(InvalidInputError, match="learning_rate is -1"):
        ImitationConfig(learning_rate=-1.0)
    observations, _ = vector_env.reset(seed=0)
    with pytest.raises(InvalidInputError, match=r"actor_noise is 1\.5: expected a number, 0 to 1"):
        collect_imitation_batch(vector_env, observations, num_steps=1, actor_noise=1.5, seed=0)


def test_the_transformer_learns_the_optimum_of_a_few_tasks(vector_env) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = WorkflowTransformer(len(LIBRARY), width=16, layers=1, heads=2)
    batches = imitation_batches(vector_env, num_batches=80, num_steps=8, actor_noise=0.2, seed=0)
    updates = imitate(network, batches, ImitationConfig(learning_rate=5e-3))
    first, last = updates[:3], updates[-10:]
    # Untrained, the network is hardly better than chance among some 30 legal calls.
    assert np.mean([update.agreement for update in first]) < 0.4
    assert np.mean([update.agreement for update in last]) > 0.9
    assert np.mean([update.divergence for update in last]) < 0.3 * np.mean([update.divergence for update in first])


def test_both_ways_to_call_a_tool_share_its_part() -> None:
    class OneState:
        num_envs = 1

        def problem(self, index):
            return build_problem(LIBRARY, CHAIN)

        def episode_state(self, index):
            return start_state(self.problem(0))

        def reset(self, *, seed=None):
            return {}, {}

        def step(self, actions):
            return {"action_mask": mask[None]}, None, None, None, {}

    reader, writer = LIBRARY.index("file_operations_reader"), LIBRARY.index("file_operations_writer")
    mask = np.zeros(num_actions(30), dtype=np.int8)
    both = [action_index(kind, reader, 30) for kind in (INVOKE_TOOL, RETRY_TOOL)]
    mask[both] = 1
    mask[action_index(INVOKE_TOOL, writer, 30)] = 1
    batch, _ = collect_imitation_batch(OneState(), {"action_mask": mask[None]}, num_steps=1, actor_noise=0.0, seed=0)
    assert batch.targets[0, both].tolist() == [0.5, 0.5]
    mask[both] = 0  # a filter hides the best tool: the best of what is left
    batch, _ = collect_imitation_batch(OneState(), {"action_mask": mask[None]}, num_steps=1, actor_noise=0.0, seed=0)
    assert np.flatnonzero(batch.targets[0]).tolist() == [action_index(INVOKE_TOOL, writer, 30)]
