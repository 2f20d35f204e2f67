"""Targets of the warm start against the exact optimum, how states are sampled, and that a network learns them."""

from __future__ import annotations

import itertools
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from resilisim.envs.workflow.spaces import INVOKE_TOOL, RETRY_TOOL, action_index, num_actions
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.policies.ppo import imitation
from resilisim.policies.ppo.imitation import Imitation, Rehearsal, collect_batch, imitation_batches, tool_values
from resilisim.policies.ppo.network import WorkflowTransformer
from resilisim.simulator import EndRules, build_problem, execution, start_state
from resilisim.simulator.exact import solve
from resilisim.simulator.exact.values import TIE_TOLERANCE
from resilisim.simulator.problem import is_done, next_state
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import default_library

LIBRARY = default_library()
CHAIN = ("file_operations_reader", "data_processing_transformer", "file_operations_writer")
TASKS = [task.instance_id for task in benchmark_tasks("benchmark-v1")[:4]]
MOVES = st.lists(st.tuples(st.integers(0, 29), st.booleans()), max_size=9)


def values_of(problem, state):
    return tool_values(problem, state.status, state.counters)


def best_tools(problem, state):
    """Return the shares of the tools with the highest Q*; none where nothing can succeed any more."""
    values, value = values_of(problem, state)
    best = [name for name, own in zip(LIBRARY.names, values, strict=True) if own >= max(values) - 1e-12]
    return dict.fromkeys(best, 1.0 / len(best)) if value > 0.0 else {}


@given(MOVES, st.sampled_from([EndRules(), EndRules(max_consecutive_failures=0), EndRules(max_turns=6)]))
def test_values_are_those_of_the_optimum(moves, rules):
    problem = build_problem(LIBRARY, CHAIN, rules=rules)
    state = start_state(problem)
    for tool, success in moves:
        if state.ended_by is None and not is_done(problem, state):
            state = next_state(problem, state, execution(LIBRARY.names[tool]), success)
    if state.ended_by is not None:
        return
    values, value = values_of(problem, state)
    optimum = solve(problem)
    assert values == tuple(optimum.action_value(state, execution(name)) for name in LIBRARY.names)
    assert value == optimum.value(state)
    # The other way to ask searches less, and says the same.
    best, same = imitation.best_tools(problem, state.status, state.counters, 100_000)
    assert best == tuple(value > 0.0 and own >= value - TIE_TOLERANCE for own in values)
    assert same == value


@pytest.fixture(scope="module")
def vector_env():
    return WorkflowVectorEnv(16, tasks=TASKS, similarity=None, autoreset_mode="SameStep")


@pytest.mark.parametrize("mode", ["SameStep", "NextStep"])
def test_batches_hold_optimal_actions_of_the_states_shown(mode):
    environments = WorkflowVectorEnv(16, tasks=TASKS, similarity=None, autoreset_mode=mode)
    observations, _ = environments.reset(seed=5)
    expected = []
    for step in range(12):
        shown = {name: array.copy() for name, array in observations.items()}
        states = [(environments.problem(env), environments.episode_state(env)) for env in range(16)]
        batch, observations = collect_batch(environments, observations, range(step, step + 1), 0.3, seed=1)
        rows = [
            env for env, (problem, state) in enumerate(states) if state.ended_by is None and not is_done(problem, state)
        ]
        for name, array in shown.items():
            np.testing.assert_array_equal(batch[name], array[rows])
        for row, env in enumerate(rows):
            problem, state = states[env]
            expected.append(best_tools(problem, state))
            by_tool = batch["targets"][row, : 9 * 31].reshape(9, 31).sum(axis=0)[:30]
            found = {LIBRARY.names[tool]: by_tool[tool] for tool in np.flatnonzero(by_tool)}
            assert found == pytest.approx(expected[-1])
            assert batch["values"][row] == pytest.approx(values_of(problem, state)[1])
            assert not (batch["targets"][row] > 0)[batch["action_mask"][row] == 0].any()
    # Noise leads into states in which nothing can succeed any more, too.
    assert 0 < sum(not targets for targets in expected) < len(expected) / 2
    assert mode == "NextStep" or len(expected) == 12 * 16


class Scored:
    """Passes everything on and keeps the rewards of the steps that end an episode: 1 for full success."""

    def __init__(self, inner):
        self.inner = inner
        self.ended = []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def step(self, actions):
        result = self.inner.step(actions)
        self.ended += result[1][result[2]].tolist()
        return result


def test_without_noise_the_optimum_is_played():
    scored = Scored(WorkflowVectorEnv(16, tasks=TASKS[:1], similarity=None, autoreset_mode="SameStep"))
    (batch,) = imitation_batches(scored, num_batches=1, num_steps=400, actor_noise=0.0, seed=2)
    assert len(batch["values"]) == 400 * 16
    problem = scored.problem(0)
    # Neither a sure success nor a sure failure, so that a mean near it says something.
    optimum = solve(problem).value(start_state(problem))
    assert 0.3 < optimum < 0.7
    assert len(scored.ended) > 600  # so the standard error of the mean is at most 0.02
    assert np.mean(scored.ended) == pytest.approx(optimum, abs=0.06)


def test_sampling_is_a_function_of_the_seed(vector_env):
    def batches(seed):
        return list(imitation_batches(vector_env, num_batches=2, num_steps=5, actor_noise=0.5, seed=seed))

    one, same, other = batches(3), batches(3), batches(4)
    for first, second in zip(one, same, strict=True):
        for name in ("tools", "targets"):
            np.testing.assert_array_equal(first[name], second[name])
    assert not np.array_equal(one[1]["tools"], other[1]["tools"])


class OneState:
    """An environment that stays at the start of the chain, under a mask of one's own."""

    def __init__(self, mask):
        self.mask = mask

    def problem(self, index):
        return build_problem(LIBRARY, CHAIN)

    def episode_state(self, index):
        return start_state(self.problem(0))

    def step(self, actions):
        return {"action_mask": self.mask[None]}, None, None, None, {}


def test_both_ways_to_call_a_tool_share_its_part():
    reader, writer = LIBRARY.index("file_operations_reader"), LIBRARY.index("file_operations_writer")
    mask = np.zeros(num_actions(30), dtype=np.int8)
    both = [action_index(kind, reader, 30) for kind in (INVOKE_TOOL, RETRY_TOOL)]
    mask[both] = 1
    mask[action_index(INVOKE_TOOL, writer, 30)] = 1
    batch, _ = collect_batch(OneState(mask), {"action_mask": mask[None]}, range(1), 0.0, seed=0)
    assert batch["targets"][0, both].tolist() == [0.5, 0.5]
    mask[both] = 0  # a filter hides the best tool: the best of what is left
    batch, _ = collect_batch(OneState(mask), {"action_mask": mask[None]}, range(1), 0.0, seed=0)
    assert np.flatnonzero(batch["targets"][0]).tolist() == [action_index(INVOKE_TOOL, writer, 30)]


class Table(nn.Module):
    """Logits and a value that do not depend on the observation."""

    def __init__(self):
        super().__init__()
        self.output = nn.Parameter(torch.zeros(4))

    def forward(self, tools, task):
        return self.output.expand(len(tools), -1)


def small_batch(targets, mask, values):
    zeros = np.zeros((len(values), 1), np.uint8)
    arrays = {"action_mask": np.array(mask), "targets": np.array(targets, np.float32)}
    return {"tools": zeros, "task": zeros, **arrays, "values": np.array(values, np.float32)}


def imitate(network, batches, **options):
    imitation = Imitation(network, **options)
    return [update for batch in batches for update in imitation.learn(batch)]


def test_progress_is_measured_before_learning():
    batch = small_batch([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]], [[1, 1, 0]] * 3, [1.0, 1.0, 0.0])
    network = Table()
    (update,) = imitate(network, [small_batch([[0.0, 0.0, 0.0]], [[1, 1, 1]], [0.0])])
    assert (update.divergence, update.agreement) == (0.0, 0.0), "without targets only the value is taught"
    assert network.output.tolist() == [0.0] * 4
    assert imitate(network, [small_batch([], [], [])]) == []
    (update,) = imitate(network, [batch], learning_rate=0.0)
    # Two legal actions with equal logits: ln 2 from the first target, 0 from the second; the third has none.
    assert update.divergence == pytest.approx(np.log(2) / 2)
    assert update.agreement == 1.0
    assert update.value_error == pytest.approx(np.sqrt(2 / 3))
    assert network.output.tolist() == [0.0] * 4


def test_a_table_learns_the_target_shares_and_the_value():
    batch = small_batch([[0.75, 0.25, 0.0]] * 4, [[1, 1, 0]] * 4, [0.4] * 4)
    network = Table().eval()
    updates = imitate(network, [batch] * 300, learning_rate=0.05)
    assert updates[-1].divergence < 1e-4
    assert updates[-1].value_error < 1e-2
    assert network.output[2] == 0.0  # illegal: never moved
    assert not network.training


def test_steps_are_made_on_states_of_several_batches_the_latest_among_them():
    values = [0.1, 0.2, 0.3, 0.4]
    asked = []

    def coming():
        for number, value in enumerate(values):
            asked.append(number)
            yield small_batch([[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]], [[1, 1, 0]] * 2, [value] * 2)

    rehearsal = Rehearsal(num_updates=7, of_a_batch=2, num_mixed=2, num_states=5, num_kept=2)
    seen = []
    mixture = rehearsal.mixture

    class Noted(Rehearsal):
        def mixture(self, kept, generator):
            step, mixed = len(seen), mixture(kept, generator)
            assert asked[-1] == step // 2, "a batch is asked for when its turn has come"
            assert [len(batch["values"]) for batch in mixed] == [5] * min(step // 2 + 1, 2)
            seen.append([batch["values"][0] for batch in mixed])
            for batch in mixed:
                assert {tuple(row) for row in batch["targets"].tolist()} <= {(0.5, 0.5, 0.0), (0.0, 0.0, 0.0)}
            return mixed

    assert len(imitate(Table(), coming(), rehearsal=Noted(**asdict(rehearsal)))) == len(seen) == 7
    latest = [values[step // 2] for step in range(7)]
    assert [row[0] for row in seen] == pytest.approx(latest)
    assert [row[1] for row in seen[2:]] == pytest.approx([values[step // 2 - 1] for step in range(2, 7)])


def test_the_learning_rate_of_a_rehearsal_falls_to_nothing():
    batch = small_batch([[1.0, 0.0, 0.0]], [[1, 1, 0]], [1.0])
    network, moved = Table(), []
    network.output.register_hook(lambda gradient: moved.append(network.output.detach().clone()))
    assert len(imitate(network, [batch] * 10, learning_rate=0.1, rehearsal=Rehearsal(40, 4))) == 40
    steps = [float((after - before).abs().max()) for before, after in itertools.pairwise(moved)]
    assert steps[0] == pytest.approx(0.1, rel=0.01)
    assert steps[-1] < 0.01


@pytest.mark.long
def test_the_transformer_learns_the_optimum_of_a_few_tasks(vector_env):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = WorkflowTransformer(len(LIBRARY), width=16, layers=1, heads=2)
    batches = imitation_batches(vector_env, num_batches=80, num_steps=8, actor_noise=0.2, seed=0)
    updates = imitate(network, batches, learning_rate=5e-3)
    first, last = updates[:3], updates[-10:]
    # Untrained, the network is hardly better than chance among some 30 legal calls.
    assert np.mean([update.agreement for update in first]) < 0.4
    assert np.mean([update.agreement for update in last]) > 0.9
    assert np.mean([update.divergence for update in last]) < 0.3 * np.mean([update.divergence for update in first])
