"""The network as a policy of sb3-contrib's MaskablePPO."""

import gymnasium
import gymnasium.spaces
import numpy as np
import pytest
import torch
from networks import observation, outputs, tensors
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.distributions import MaskableCategoricalDistribution
from stable_baselines3.common.vec_env import DummyVecEnv

from resilisim.envs.workflow import spaces
from resilisim.envs.workflow.spaces import INVOKE_TOOL, action_index, num_actions
from resilisim.policies.ppo.sb3 import MaskedActions, WorkflowPolicy


def test_masked_actions_agree_with_the_distribution_of_sb3_contrib():
    logits = torch.randn(50, 283)
    mask = torch.from_numpy(observation(50, 30)["action_mask"]).bool()
    actions = torch.tensor([int(row.nonzero()[0]) for row in mask])
    ours, theirs = MaskedActions(283), MaskableCategoricalDistribution(283)
    gradients = []
    for masks in (mask, mask.float().numpy(), None):
        for distribution in (ours, theirs):
            leaf = logits.clone().requires_grad_()
            distribution.proba_distribution(leaf)
            distribution.apply_masking(masks)
            (distribution.log_prob(actions) + 0.3 * distribution.entropy()).sum().backward()
            gradients.append(leaf.grad)
        torch.testing.assert_close(ours.log_prob(actions), theirs.log_prob(actions))
        torch.testing.assert_close(ours.entropy(), theirs.entropy())
        torch.testing.assert_close(gradients[-2], gradients[-1])
        assert torch.equal(ours.mode(), theirs.mode())


NUM_TOOLS = 6


class Lottery(gymnasium.Env):
    """Episodes of five steps: INVOKE_TOOL of the one tool that is due is worth 1, half of the actions are not legal."""

    observation_space = gymnasium.spaces.Dict(
        tools=gymnasium.spaces.Box(0, 255, (NUM_TOOLS, spaces.NUM_TOOL_COLUMNS), np.uint8),
        task=gymnasium.spaces.Box(0, 255, (spaces.NUM_TASK_COLUMNS,), np.uint8),
        action_mask=gymnasium.spaces.Box(0, 1, (num_actions(NUM_TOOLS),), np.int8),
    )
    action_space = gymnasium.spaces.Discrete(num_actions(NUM_TOOLS))

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.look(), {}

    def look(self):
        self.due = int(self.rng.integers(NUM_TOOLS))
        tools = np.zeros((NUM_TOOLS, spaces.NUM_TOOL_COLUMNS), np.uint8)
        tools[self.due, spaces.TOOL_DUE] = 1
        self.mask = self.rng.random(num_actions(NUM_TOOLS)) < 0.5
        self.mask[INVOKE_TOOL * (NUM_TOOLS + 1) : NUM_TOOLS] = True
        return {
            "tools": tools,
            "task": np.zeros(spaces.NUM_TASK_COLUMNS, np.uint8),
            "action_mask": self.mask.astype(np.int8),
        }

    def action_masks(self):
        return self.mask

    def step(self, action):
        assert self.mask[action], "an illegal action was taken"
        reward = float(action == action_index(INVOKE_TOOL, self.due, NUM_TOOLS))
        self.steps += 1
        return self.look(), reward, self.steps == 5, False, {}


def train(steps, **options):
    model = MaskablePPO(
        WorkflowPolicy,
        DummyVecEnv([Lottery] * 4),
        n_steps=64,
        batch_size=64,
        n_epochs=4,
        learning_rate=3e-3,
        seed=0,
        device="cpu",
        policy_kwargs={"features_extractor_kwargs": options},
    )
    return model.learn(steps)


@pytest.mark.long
def test_maskable_ppo_trains_the_network():
    model = train(256 * 12, attention_tokens=3, width=16, heads=2, layers=1)
    env = Lottery()
    seen, _ = env.reset()
    hits = 0
    for _ in range(100):
        action, _ = model.predict(seen, action_masks=env.action_masks(), deterministic=True)
        hits += int(action) == action_index(INVOKE_TOOL, env.due, NUM_TOOLS)
        seen = env.look()
    assert hits == 100


def policy_for(num_tools, **options):
    space = gymnasium.spaces.Dict(
        tools=gymnasium.spaces.Box(0, 255, (num_tools, spaces.NUM_TOOL_COLUMNS), np.uint8),
        task=gymnasium.spaces.Box(0, 255, (spaces.NUM_TASK_COLUMNS,), np.uint8),
    )
    actions = gymnasium.spaces.Discrete(num_actions(num_tools))
    return WorkflowPolicy(space, actions, lambda _: 1e-3, features_extractor_kwargs=options)


def test_the_optimiser_holds_the_networks_parameters_once_and_nothing_else():
    policy = policy_for(30)
    held = [parameter for group in policy.optimizer.param_groups for parameter in group["params"]]
    network = policy.features_extractor.network
    assert [id(parameter) for parameter in held] == [id(parameter) for parameter in network.parameters()]
    assert len(list(policy.parameters())) == len(held)


def test_policy_gives_the_networks_logits_and_value_and_only_legal_actions():
    policy = policy_for(30)
    seen = observation(200, 30)
    tools, task = tensors(seen)
    given = {"tools": tools, "task": task}
    mask = seen["action_mask"]
    expected = outputs(policy.features_extractor.network, seen)
    with torch.no_grad():
        drawn, value, log_prob = policy(given, action_masks=mask)
        again, log_prob_again, entropy = policy.evaluate_actions(given, drawn, action_masks=torch.from_numpy(mask))
        distribution = policy.get_distribution(given)
        torch.testing.assert_close(policy.predict_values(given), value)
    assert mask[np.arange(200), drawn].all()
    torch.testing.assert_close(value.flatten(), expected[:, -1])
    torch.testing.assert_close(again, value)
    torch.testing.assert_close(log_prob_again, log_prob)
    torch.testing.assert_close(distribution.logits, expected[:, :-1])
    assert (entropy > 0).all()
    assert (entropy.numpy() <= np.log(mask.sum(axis=1)) + 1e-4).all()
