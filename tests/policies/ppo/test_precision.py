"""Mixed precision and devices of policy trainings, on a CPU: what is computed in bfloat16, and what a run remembers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from networks import SMALL as SMALL_NETWORK
from networks import observation, outputs, tensors
from test_training import small

from resilisim.envs.workflow.options import WorkflowOptions
from resilisim.errors import StoreError
from resilisim.policies.ppo import checkpoint, training, validation
from resilisim.policies.ppo.checkpoint import load_checkpoint, random_state, set_random_state
from resilisim.policies.ppo.features import ColumnFeatures
from resilisim.policies.ppo.network import make_network
from resilisim.policies.ppo.training import train, training_tasks
from resilisim.policies.ppo.validation import Validator
from resilisim.tool_library import default_library

CPU = torch.device("cpu")
KINDS = {"transformer": SMALL_NETWORK, "all tokens": {**SMALL_NETWORK, "attention_tokens": None}, "mlp": {"width": 16}}
HEADS = {"transformer": ("tool_head", "episode_head", "value_head"), "mlp": ("output",)}


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_computes_in_bfloat16_up_to_the_heads(kind):
    name = "mlp" if kind == "mlp" else "transformer"
    torch.manual_seed(0)
    network = make_network(name, 30, KINDS[kind])
    seen, types = observation(40, 30, distinct=True), {}
    for part, module in network.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda _, __, out, part=part: types.__setitem__(part, out.dtype))
    exact = outputs(network, seen)
    assert set(types.values()) == {torch.float32}
    network.autocast = True
    rounded = network(*tensors(seen))
    heads = {part for part, dtype in types.items() if dtype == torch.float32}
    assert heads == {*HEADS[name], *(["context"] if name == "transformer" else [])}
    assert rounded.dtype == torch.float32
    apart = (rounded - exact).abs().max()
    assert 0.0 < apart < 0.05
    # A head in bfloat16 would round logits of about 3 to steps of 2^-6.
    fine = rounded.detach() * 2**6
    assert (fine != fine.round()).float().mean() > 0.9
    rounded.sum().backward()
    assert all(weight.grad is not None and weight.grad.dtype == torch.float32 for weight in network.parameters())


def test_a_forward_copies_no_constant_from_the_host(monkeypatch):
    network, features = make_network("transformer", 30, SMALL_NETWORK), ColumnFeatures()
    shown = tensors(observation(3, 30))

    def refused(*_, **__):
        raise AssertionError("a tensor was made from Python's values")

    for name in ("tensor", "as_tensor", "from_numpy"):
        monkeypatch.setattr(torch, name, refused)
    monkeypatch.setattr(torch.Tensor, "new_tensor", refused)
    with torch.no_grad():
        network(*shown)
    assert {"read", "tool_table"} <= dict(features.named_buffers()).keys()
    assert not features.state_dict()  # constants are not saved


def test_validation_plays_as_the_policy_that_is_kept(monkeypatch):
    network = make_network("transformer", 30, SMALL_NETWORK)
    network.autocast = True
    seen = []
    monkeypatch.setattr(
        validation, "play_closed_loop", lambda *_, **__: seen.append(network.autocast) or np.ones((1, 1))
    )
    _, held_out = training_tasks(small(), default_library())
    assert Validator(held_out, 1, WorkflowOptions(), [1.0]).success(network) == 1.0
    assert seen == [False]
    assert network.autocast


def test_a_training_on_a_cpu_asks_no_gpu(monkeypatch, tmp_path):
    def refused(*_, **__):
        raise AssertionError("a GPU was asked")

    for name in ("is_available", "device_count", "get_rng_state", "get_rng_state_all", "set_rng_state"):
        monkeypatch.setattr(torch.cuda, name, refused)
    monkeypatch.setattr(torch.cuda, "get_device_name", refused)
    arrays, facts = random_state(CPU)
    set_random_state(arrays, facts, CPU)
    assert sorted(arrays) == ["random/numpy", "random/torch"]
    assert checkpoint.choose_device("cpu") == CPU
    with pytest.raises(AssertionError, match="a GPU was asked"):
        checkpoint.choose_device("auto")


def test_the_state_of_a_gpus_generator_is_kept_and_put_back(monkeypatch):
    gpu, states = torch.device("cuda"), []
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: torch.tensor([3, 1, 4], dtype=torch.uint8))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: states.append((state.tolist(), device)))
    arrays, facts = random_state(gpu)
    set_random_state(arrays, facts, gpu)
    assert states == [([3, 1, 4], gpu)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("precision") / "run"
    train(small("quick", "max_steps=64"), folder)
    return folder


def test_manifest_and_policy_name_device_precision_and_versions(run):
    manifest = json.loads((run / "manifest.json").read_text())
    for about in (manifest, load_checkpoint(run).description.provenance):
        assert about["device"] == "cpu"
        assert (about["arguments"]["computed_on"], about["arguments"]["computed_in"]) == ("cpu", "float32")
        assert about["versions"]["torch"] == torch.__version__
        assert {"stable-baselines3", "sb3-contrib", "numba", "numpy"} <= about["versions"].keys()


def test_a_run_is_not_continued_on_another_device_or_in_another_precision(run, monkeypatch, tmp_path):
    config = small("quick", "max_steps=64")
    with monkeypatch.context() as patch:
        patch.setattr(training, "choose_device", lambda name: torch.device("cuda"))
        patch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
        with pytest.raises(StoreError, match=r'computed_in is "float32" there and "bfloat16" here'):
            train(config, run)
        with pytest.raises(StoreError, match=r'computed_on is "cpu" there and "cuda" here'):
            train(config.model_copy(update={"autocast": False}), run)
    # A folder of an earlier version, whose manifest does not say it, is one of the CPU.
    manifest = json.loads((run / "manifest.json").read_text())
    del manifest["arguments"]["computed_on"], manifest["arguments"]["computed_in"]
    manifest["hash"] = checkpoint.content_hash(manifest["arguments"])
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert train(config, run).was_finished
