"""The network, its features, and how it is played."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import observation, outputs, tensors
from torch.nn import functional

from resilisim.envs.workflow import spaces
from resilisim.envs.workflow.spaces import (
    NUM_ACTION_TYPES,
    action_index,
    num_actions,
)
from resilisim.errors import InvalidInputError
from resilisim.policies.ppo.features import (
    AGE,
    NUM_TASK_INPUTS,
    NUM_TOOL_FEATURES,
    SLACK,
    SLACK_OFFSET,
    TASK_GROUPS,
    TOOL_GROUPS,
    ColumnFeatures,
    Group,
)
from resilisim.policies.ppo.network import (
    INITIAL_PRIOR,
    Layer,
    WorkflowActor,
    WorkflowTransformer,
    draw,
    is_awaited,
    make_network,
    relevance,
)

LOW_PRECISION = {"rtol": 1e-4, "atol": 1e-5}  # sums in another order


def test_the_features_of_a_group_are_codes_then_sign_then_scaled():
    table = Group(0, codes=4, positive=True, scale=10).table()
    assert table.shape == (256, 6)
    np.testing.assert_array_equal(table[0], [1, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(table[2], [0, 0, 1, 0, 1, 0.2])
    np.testing.assert_allclose(table[5], [0, 0, 0, 1, 1, 0.5])  # the last code stands for all larger values
    np.testing.assert_array_equal(table[255], [0, 0, 0, 1, 1, 2])  # scaled counts saturate


def test_every_column_has_one_group():
    assert [group.column for group in TOOL_GROUPS] == [*range(spaces.NUM_TOOL_COLUMNS), AGE]
    assert [group.column for group in TASK_GROUPS] == [*range(spaces.NUM_TASK_COLUMNS), SLACK]


def test_features_are_the_rows_of_the_groups_side_by_side():
    seen = observation(4, 7, seed=3)
    tools, task = tensors(seen)
    tool_features, task_features = ColumnFeatures()(tools, task)
    assert tool_features.shape == (4, 7, NUM_TOOL_FEATURES)
    assert task_features.shape == (4, NUM_TASK_INPUTS)
    for row in range(4):
        used, left, due = (
            int(seen["task"][row, c]) for c in (spaces.TASK_STEPS_USED, spaces.TASK_STEPS_LEFT, spaces.TASK_NUM_DUE)
        )
        slack = max(left - due + SLACK_OFFSET, 0)
        read = seen["task"][row].copy()
        read[[spaces.TASK_PHASE, spaces.TASK_STAGE]] = 0  # the trainer's, which the network does not read
        expected = [group.table()[value] for group, value in zip(TASK_GROUPS, [*read, slack], strict=True)]
        np.testing.assert_array_equal(task_features[row].numpy(), np.concatenate(expected))
        for tool in range(7):
            last = int(seen["tools"][row, tool, spaces.TOOL_LAST_STEP])
            age = max(used - last, 0) if last else 255
            values = [*seen["tools"][row, tool], age]
            expected = [group.table()[value] for group, value in zip(TOOL_GROUPS, values, strict=True)]
            np.testing.assert_array_equal(tool_features[row, tool].numpy(), np.concatenate(expected))


def test_relevance_puts_due_tools_before_attempted_before_confident_before_similar_before_first():
    tools = np.zeros((1, 8, spaces.NUM_TOOL_COLUMNS), dtype=np.uint8)
    tools[0, 1, spaces.TOOL_SIMILARITY] = 255
    tools[0, 2, spaces.TOOL_CONFIDENCE] = 1
    tools[0, 3, spaces.TOOL_STATUS] = spaces.STATUS_QUEUED
    tools[0, 4, spaces.TOOL_EXECUTIONS] = 1
    tools[0, 4, spaces.TOOL_CONFIDENCE] = 9
    tools[0, 5, spaces.TOOL_DUE] = 2
    tools[0, 6, spaces.TOOL_FIRST_DESCENDANT_DUE] = 1
    scores = relevance(torch.from_numpy(tools))
    assert scores.argsort(descending=True).tolist() == [[6, 5, 4, 3, 2, 1, 0, 7]]
    tools[0, 7, spaces.TOOL_DUE], tools[0, 7, spaces.TOOL_STATUS] = 1, spaces.STATUS_SUCCESS
    awaited = is_awaited(torch.from_numpy(tools)).tolist()
    assert awaited == [[False] * 5 + [True, True, False]], "due or led to, until it has succeeded"


@given(st.integers(0, 2**32), st.integers(1, 40))
@settings(max_examples=25, deadline=None)
def test_no_two_tools_are_equally_relevant(seed: int, num_tools: int):
    tools, _ = tensors(observation(2, num_tools, seed))
    assert all(len(set(row)) == num_tools for row in relevance(tools).tolist())


NETWORKS = {
    "12 tokens": {},
    "all tokens": {"attention_tokens": None},
    "wide": {"width": 48, "heads": 3, "layers": 1},
    "tool embeddings": {"tool_embeddings": True},
}


@pytest.mark.parametrize("options", [*NETWORKS.values(), None], ids=[*NETWORKS, "mlp"])
@pytest.mark.parametrize("num_tools", [1, 12, 30, 45])
def test_networks_have_a_logit_for_every_action_and_a_value(options, num_tools):
    shown = observation(3, num_tools)
    network = make_network("mlp" if options is None else "transformer", num_tools, options or {})
    result = outputs(network, shown)
    assert result.shape == (3, num_actions(num_tools) + 1)
    assert result.dtype == torch.float32
    assert result.isfinite().all()
    alone = torch.cat([outputs(network, {key: value[[row]] for key, value in shown.items()}) for row in range(3)])
    torch.testing.assert_close(result, alone, **LOW_PRECISION)
    # Before training every action is about equally likely, but for the preference for tools that the list waits for.
    awaited = is_awaited(torch.as_tensor(shown["tools"]))
    by_type = result[:, : NUM_ACTION_TYPES * (num_tools + 1)].view(3, NUM_ACTION_TYPES, num_tools + 1)
    by_type[:, :, :num_tools] -= (0.0 if options is None else INITIAL_PRIOR) * awaited[:, None]
    assert result.abs().max() < 0.5


def test_a_layer_is_attention_with_one_key_and_value_for_all_heads():
    layer, tokens = Layer(width=24, heads=3), torch.randn(5, 7, 24)
    query, key, value = layer.query_key_value(layer.attention_norm(tokens)).split([24, 8, 8], dim=-1)
    heads = query.view(5, 7, 3, 8).transpose(1, 2)
    shared = [part[:, None].expand(5, 3, 7, 8) for part in (key, value)]
    attended = functional.scaled_dot_product_attention(heads, *shared).transpose(1, 2).reshape(5, 7, 24)
    middle = tokens + layer.attention_out(attended)
    expected = middle + layer.hidden_out(layer.hidden(layer.hidden_norm(middle)).relu())
    torch.testing.assert_close(layer(tokens), expected)


@pytest.mark.parametrize("attention_tokens", [None, 12])
def test_permuted_tools_have_permuted_logits(attention_tokens):
    num_tools = 30
    network = WorkflowTransformer(num_tools, attention_tokens=attention_tokens)
    seen = observation(5, num_tools, distinct=True)
    order = np.random.default_rng(1).permutation(num_tools)
    before = outputs(network, seen)
    after = outputs(network, seen | {"tools": seen["tools"][:, order]})
    typed = NUM_ACTION_TYPES * (num_tools + 1)
    expected = before[:, :typed].view(5, NUM_ACTION_TYPES, num_tools + 1)[..., [*order, num_tools]]
    torch.testing.assert_close(after[:, :typed].view_as(expected), expected, **LOW_PRECISION)
    torch.testing.assert_close(after[:, typed:], before[:, typed:], **LOW_PRECISION)
    assert not torch.allclose(after[:, :num_tools], before[:, :num_tools], **LOW_PRECISION)


def test_the_logits_of_a_tool_stand_at_its_actions():
    """What changes only one tool, outside the attention, changes the logits of that tool's nine actions only."""
    num_tools = 30
    network = WorkflowTransformer(num_tools, attention_tokens=4)
    seen = observation(1, num_tools)
    tool = int(relevance(torch.from_numpy(seen["tools"])).argmin())
    changed = {key: value.copy() for key, value in seen.items()}
    changed["tools"][0, tool, spaces.TOOL_LEVEL] += 3
    different = (outputs(network, seen) != outputs(network, changed))[0].nonzero().flatten().tolist()
    assert different == [action_index(kind, tool, num_tools) for kind in range(NUM_ACTION_TYPES)]


@pytest.mark.parametrize("num_tools", [12, 45])
def test_one_set_of_weights_serves_libraries_of_other_sizes(num_tools):
    trained, other = WorkflowTransformer(30), WorkflowTransformer(num_tools)
    other.load_state_dict(trained.state_dict())
    seen = observation(2, num_tools)
    # The same forward, because nothing in it knows the library's size; embeddings of single tools do.
    assert torch.equal(outputs(other, seen), outputs(trained, seen))
    with pytest.raises(InvalidInputError, match="heads 3: expected a divisor of width 32"):
        WorkflowTransformer(30, heads=3)
    with pytest.raises(RuntimeError, match="tool_vectors"):
        WorkflowTransformer(num_tools, tool_embeddings=True).load_state_dict(
            WorkflowTransformer(30, tool_embeddings=True).state_dict()
        )


def test_choosing_tokens_changes_nothing_where_there_are_no_layers_between():
    """Gathering and scattering put every token back at its place: without attention both ways give the same."""
    few, every = WorkflowTransformer(30, attention_tokens=12), WorkflowTransformer(30, attention_tokens=None)
    every.load_state_dict(few.state_dict())
    few.layers, every.layers = torch.nn.ModuleList(), torch.nn.ModuleList()
    seen = observation(4, 30)
    actions = num_actions(30)  # the value sees the mean of the chosen tokens
    torch.testing.assert_close(outputs(few, seen)[:, :actions], outputs(every, seen)[:, :actions], **LOW_PRECISION)


@pytest.mark.parametrize(
    ("architecture", "options"), [("mlp", {"width": 32}), *(("transformer", options) for options in NETWORKS.values())]
)
def test_gradient_reaches_every_parameter(architecture, options):
    network = make_network(architecture, 30, options)
    # From zero biases and equal logits some gradients would vanish by symmetry.
    weights = torch.randn(31, num_actions(30) + 1)
    (network(*tensors(observation(31, 30))) * weights).sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_draw_follows_the_probabilities_and_never_takes_an_impossible_index():
    weights = torch.tensor([0.0, 3.0, 0.0, 1.0, 0.0])
    drawn = draw(weights.expand(40_000, 5))
    counts = drawn.bincount(minlength=5)
    assert counts[[0, 2, 4]].tolist() == [0, 0, 0]
    assert abs(counts[1].item() / 40_000 - 0.75) < 0.01  # 4.6 standard deviations


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-24])
def test_draw_takes_a_possible_index_at_both_ends(monkeypatch, uniform):
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.full(shape, uniform))
    weights = torch.tensor([[0.0, 0.2, 0.1, 0.0], [0.0, 0.0, 1e-30, 0.0]])
    assert draw(weights).tolist() == ([1, 2] if uniform == 0 else [2, 2])


def test_the_actor_gives_the_probabilities_of_legal_actions_and_takes_the_best():
    network = WorkflowTransformer(30)
    seen = observation(400, 30)
    for value in seen.values():
        value.flags.writeable = False
    mask = seen["action_mask"]
    actor = WorkflowActor(network)
    probabilities = actor.probabilities(seen, mask)
    logits = outputs(network, observation(400, 30))[:, :-1].masked_fill(torch.tensor(mask == 0), -torch.inf)
    np.testing.assert_allclose(probabilities, logits.softmax(dim=-1).numpy(), rtol=1e-5)
    assert (probabilities[mask == 0] == 0).all()
    np.testing.assert_array_equal(actor.act(seen, mask), probabilities.argmax(axis=1))
