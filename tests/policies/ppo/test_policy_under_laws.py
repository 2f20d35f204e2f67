"""Trained policies under laws with parts: what they see, what they say, and how they are trained."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from networks import SMALL as SMALL_NETWORK
from networks import save_random

from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.workflow import spaces
from resilisim.envs.workflow.spaces import (
    INVOKE_TOOL,
    META_NO_OP,
    RETRY_TOOL,
    VALIDATE_OUTPUT,
    action_index,
    meta_action_index,
    num_actions,
)
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.errors import InvalidInputError
from resilisim.policies.ppo.checkpoint import DESCRIPTION_FILE, layout_version, load_checkpoint
from resilisim.policies.ppo.config import load_config
from resilisim.policies.ppo.features import groups_of_parts
from resilisim.policies.ppo.imitation import collect_batch, imitation_batches
from resilisim.policies.ppo.network import WorkflowActor, make_network
from resilisim.policies.ppo.policy import LawBlindActor, TrainedPolicy, benchmark_actions, reads_laws
from resilisim.policies.ppo.training import train
from resilisim.seeding import EVALUATION_SALT
from resilisim.simulator import Law, RateLimit
from resilisim.simulator.exact import solve
from tests.envs.workflow.test_law_parts import LAWS, TASK
from tests.simulator.test_parts import SMALL

READING = {**SMALL_NETWORK, "law_parts": True}
DETAILED = {**READING, "by_state": True, "relations": True, "detailed": True}


@pytest.mark.parametrize("options", [SMALL_NETWORK, READING, DETAILED])
@pytest.mark.parametrize(
    "name", ["much at once", "error kinds", "corrupt, only validators tell", "rate limit of tools", "plain"]
)
def test_a_policy_plays_a_conversation_and_sees_it_as_it_is(tmp_path, name, options):
    folder = save_random(tmp_path, 3, SMALL, options=options)
    policy, said = TrainedPolicy(folder, SMALL), set()
    conversation = ConversationEnv(law=LAWS.get(name, Law()), max_turns=8, library=SMALL, search="lexical")
    for seed in range(6):
        observation, info = conversation.reset(seed=seed, options={"task": TASK})
        policy.reset(observation, info)
        ended = False
        while not ended:
            before, message = info["state"], policy.act(observation, info)
            seen = policy._mirror.state
            assert (seen.status, seen.executions) == (before.status, before.executions)
            assert seen.counters[:4] == before.counters[:4]
            assert _without_digests(seen.parts) == _without_digests(before.parts)
            assert message is not None
            said.add(message.partition(">")[0])
            observation, _, ended, _, info = conversation.step(message)
    assert "<tool_call" in said
    assert "law_parts" in options or "<wait/" not in said  # a policy of the benchmark does not know what that is for


def _without_digests(parts):
    """Return what is known, but for which parameters were refused: a conversation's have required ones."""
    return ["refused" if one > 1 << 60 else one for one in parts]


def test_a_policy_that_reads_laws_waits_and_accepts(tmp_path, monkeypatch):
    meta, accept = meta_action_index(0, 4), action_index(VALIDATE_OUTPUT, 4, 4)

    class Actor:
        """Accepts if it can, else waits as long as the limit of the first due tool lasts."""

        def __init__(self, network):
            pass

        def probabilities(self, observation, mask):
            logits = np.zeros(mask.shape[1])
            due = np.flatnonzero(observation["tools"][0][:, 2] == 1)
            logits[[kind * 5 + tool for kind in (0, 2) for tool in due]] = 5.0
            limited = len(due) and observation["tool_parts"][0][due[0], spaces.PART_FREE_IN] > 0
            logits[meta], logits[accept] = 9.0 if limited else -9.0, 9.0
            logits = np.where(mask[0], logits, -99.0)
            return np.exp(logits - logits.max())[None].astype(np.float32)

    monkeypatch.setattr("resilisim.policies.ppo.policy.WorkflowActor", Actor)
    said = []
    for name in ("rate limit of tools", "corrupt, only validators tell"):
        policy = TrainedPolicy(save_random(tmp_path / name, 0, SMALL, options=READING), SMALL)
        conversation = ConversationEnv(law=LAWS[name], max_turns=9, library=SMALL, search="lexical")
        for seed in range(4):
            observation, info = conversation.reset(seed=seed, options={"task": TASK})
            policy.reset(observation, info)
            ended = False
            while not ended:
                said.append(policy.act(observation, info))
                observation, _, ended, _, info = conversation.step(said[-1])
    assert "<wait/>" in said
    assert "<finish/>" in said


def test_a_policy_of_the_benchmark_calls_only_and_changes_what_was_refused():
    mask = np.zeros((3, num_actions(4)), dtype=np.int8)
    # Tool 2 was refused, tool 0 is new, tool 1 has failed; then nothing but to wait.
    legal = [action_index(INVOKE_TOOL, 2, 4), action_index(RETRY_TOOL, 2, 4)]
    legal += [action_index(INVOKE_TOOL, 0, 4), action_index(RETRY_TOOL, 1, 4)]
    mask[0, [*legal, meta_action_index(0, 4)]] = 1
    mask[1, legal[2:]] = 1
    mask[2, meta_action_index(0, 4)] = 1
    known, meant = benchmark_actions(mask)
    assert np.flatnonzero(known[0]).tolist() == sorted(legal[1:])
    assert np.flatnonzero(known[1]).tolist() == sorted(legal[2:])
    assert np.flatnonzero(known[2]).tolist() == [meta_action_index(0, 4)], "nothing to execute: what is legal"
    assert np.flatnonzero(meant[0] != np.arange(mask.shape[1])).tolist() == [legal[1]]
    assert meant[0, legal[1]] == legal[0]

    class Last:
        def act(self, observation, mask):
            return mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)

    chosen = LawBlindActor(Last()).act({}, mask)
    assert chosen.tolist() == [legal[0], legal[3], meta_action_index(0, 4)]


@pytest.mark.parametrize("detailed", [False, True])
def test_the_network_reads_every_column_that_it_is_made_for_and_none_without_a_law(detailed):
    of_tools, of_law = groups_of_parts(detailed=True)
    for groups, number in ((of_tools, spaces.NUM_PART_COLUMNS), (of_law, spaces.NUM_LAW_COLUMNS)):
        assert [group.column for group in groups] == list(range(number))
    num_read = dict(zip(("tool_parts", "law"), map(len, groups_of_parts(detailed)), strict=True))
    torch.manual_seed(0)
    network = make_network("transformer", 4, {**READING, "detailed": detailed})
    generator = np.random.default_rng(0)
    shown = {
        "tools": generator.integers(0, 4, (2, 4, 19)),
        "task": generator.integers(0, 4, (2, 38)),
        "tool_parts": generator.integers(0, 4, (2, 4, spaces.NUM_PART_COLUMNS)),
        "law": generator.integers(0, 4, (2, spaces.NUM_LAW_COLUMNS)),
    }
    tensors = {name: torch.from_numpy(array) for name, array in shown.items()}
    with torch.no_grad():
        base = network(**tensors)
        assert base.shape == (2, num_actions(4) + 1)
        assert not torch.equal(base, network(tensors["tools"], tensors["task"]))
        for name in ("tool_parts", "law"):
            for column in range(shown[name].shape[-1]):
                changed = tensors[name].clone()
                changed[..., column] = 3 - changed[..., column]
                is_read = not torch.equal(base, network(**{**tensors, name: changed}))
                assert is_read == (column < num_read[name]), (name, column)


def test_a_checkpoint_that_reads_laws_has_a_layout_of_its_own(tmp_path):
    plain, reading = tmp_path / "plain", tmp_path / "reading"
    save_random(plain, 0, SMALL)
    save_random(reading, 0, SMALL, options=READING)
    about = json.loads((reading / DESCRIPTION_FILE).read_text())
    assert about["network"]["arguments"]["law_parts"] is True
    assert about["layout"] == layout_version(True) != layout_version()
    assert "law_parts" not in json.loads((plain / DESCRIPTION_FILE).read_text())["network"]["arguments"]
    assert load_checkpoint(reading).network.part_features is not None
    about["layout"] = layout_version()
    (reading / DESCRIPTION_FILE).write_text(json.dumps(about))
    with pytest.raises(InvalidInputError, match="layout"):
        load_checkpoint(reading)


def test_the_optimum_is_imitated_where_waiting_is_best():
    law = Law(rate_limit=RateLimit(1, 4))
    envs = WorkflowVectorEnv(4, law=law, tasks=[TASK], library=SMALL, similarity=None, max_turns=8)
    waited = 0
    for batch in imitation_batches(envs, num_batches=2, num_steps=4, actor_noise=0.2, seed=0):
        assert (batch["targets"][batch["action_mask"] == 0] == 0.0).all()
        waited += (batch["targets"][:, meta_action_index(0, 4)] > 0.0).sum()
        assert set(batch) >= {"tool_parts", "law"}
    assert waited


@pytest.mark.parametrize("name", sorted(LAWS))
def test_targets_are_choices_with_the_highest_value(name):
    envs = WorkflowVectorEnv(6, law=LAWS[name], tasks=[TASK], library=SMALL, similarity=None, max_turns=5)
    observations, _ = envs.reset(seed=3)
    told, best_of = 0, 0
    for step in range(7):
        states = [(solve(envs.problem(one)), envs.episode_state(one)) for one in range(6)]
        messages = [[envs.message(action, one) for action in range(envs.core.action_space.n)] for one in range(6)]
        batch, observations = collect_batch(envs, observations, range(step, step + 1), 0.4, seed=1)
        running = [one for one, (_, state) in enumerate(states) if state.ended_by is None]
        assert len(batch["values"]) == len(running)
        for row, one in enumerate(running):
            optimum, state = states[one]
            values = [-1.0 if sent is None else optimum.action_value(state, sent) for sent in messages[one]]
            chosen = np.flatnonzero(batch["targets"][row])
            assert batch["values"][row] == pytest.approx(max(values), abs=1e-6)
            assert (len(chosen) > 0) == (max(values) > 0.0)
            assert np.array(values)[chosen] == pytest.approx(max(values), abs=1e-9)
            told += len(chosen)
            best_of += np.isclose(values, max(values), rtol=0, atol=1e-12).sum() if len(chosen) else 0
    assert 0 < told <= best_of  # what another choice is surely as good as may be left out


def test_of_the_policies_that_ship_the_default_one_reads_laws_and_waits():
    default = load_checkpoint("default")
    assert reads_laws(default)
    assert not reads_laws(load_checkpoint("benchmark"))
    envs = WorkflowVectorEnv(8, law=LAWS["rate limit of tools"], tasks=[TASK], library=SMALL, similarity=None)
    shown, _ = envs.reset(seed=0)
    waited = 0
    for _ in range(6):
        chosen = WorkflowActor(default.network).act(shown, shown["action_mask"])
        waited += (chosen == meta_action_index(META_NO_OP, len(SMALL))).sum()
        shown = envs.step(chosen)[0]
    assert waited


def test_training_refuses_what_cannot_read_a_law(tmp_path):
    config = load_config("quick", settings=["law=rate-limits", "network=mlp", "max_minutes=none", "max_steps=64"])
    with pytest.raises(InvalidInputError, match="expected a transformer"):
        train(config, tmp_path)
    with pytest.raises(InvalidInputError, match="did you mean 'rate-limits'"):
        load_config("quick", settings=["law=rate-limit"])


@pytest.mark.long
def test_a_policy_is_trained_under_a_law_and_plays_under_it(tmp_path):
    tasks = tmp_path / "tasks.jsonl"
    lists = [list(names) for size in (1, 2, 3) for names in itertools.combinations(SMALL.names, size)]
    wanted = [{**TASK.to_mapping(), "instance_id": f"task_{n}", "required_tools": one} for n, one in enumerate(lists)]
    tasks.write_text("".join(json.dumps(one) + "\n" for one in wanted))
    (tmp_path / "law.yaml").write_text("rate_limit: {calls: 1, window: 3}\n")
    settings = ["max_steps=2048", "num_envs=64", "batch_size=256", "validation_tasks=1", "evaluate_every=1024"]
    settings += [f"tasks={tasks}", f"law={tmp_path / 'law.yaml'}", "max_minutes=none", "tensorboard=false"]
    result = train(load_config("quick", settings=settings), tmp_path / "run", library=SMALL)
    assert result.steps == 2048
    assert 0.0 < result.best.success <= result.best.optimum + 0.2
    policy = TrainedPolicy(tmp_path / "run", SMALL)
    conversation = ConversationEnv(
        law=str(tmp_path / "law.yaml"), library=SMALL, search="lexical", salt=EVALUATION_SALT
    )
    observation, info = conversation.reset(seed=0, options={"task": TASK})
    policy.reset(observation, info)
    assert policy.act(observation, info) is not None
