"""Checkpoints: they bring back the same network, and a broken or hostile folder is refused with one line."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import struct
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from networks import observation, outputs

from resilisim.errors import InvalidInputError, StoreError
from resilisim.policies.ppo import checkpoint as checkpoint_module
from resilisim.policies.ppo.checkpoint import (
    MAX_DESCRIPTION_BYTES,
    BenchmarkIdentity,
    checkpoint_folder,
    describe_policy,
    layout_version,
    load_checkpoint,
    save_checkpoint,
)
from resilisim.policies.ppo.network import make_network
from resilisim.tasks.benchmark import BENCHMARK_VERSION, benchmark_of
from resilisim.tool_library import default_library
from tests.guards import no_endless_work

NUM_TOOLS = 30
NETWORKS = {
    "transformer": ("transformer", {"width": 8, "layers": 2, "heads": 2, "attention_tokens": 4}),
    "all tools": ("transformer", {"width": 8, "layers": 1, "heads": 1, "attention_tokens": None}),
    "embeddings": ("transformer", {"width": 8, "layers": 1, "heads": 2, "tool_embeddings": True}),
    "mlp": ("mlp", {"width": 4}),
}


ARGUMENTS = {"num_tools": 30, "width": 8, "layers": 2, "heads": 2, "attention_tokens": 4, "tool_embeddings": False}


def network_of(name="transformer", seed=0):
    kind, options = NETWORKS[name]
    torch.manual_seed(seed)
    return make_network(kind, NUM_TOOLS, options)


def description_of(network, **changes):
    parts = {"training": {"seed": 1, "filters": []}, "provenance": {"command": "train"}, "results": {"success": 0.9}}
    return describe_policy(network, default_library(), **{**parts, **changes})


@pytest.fixture
def saved(tmp_path):
    network = network_of()
    save_checkpoint(tmp_path / "policy", network, description_of(network))
    return tmp_path / "policy"


def refusal(folder):
    """Return the one line with which a folder is refused."""
    with pytest.raises(InvalidInputError) as caught:
        load_checkpoint(folder)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) <= 600
    return text


def change(folder, **changes):
    """Rewrite fields of the description; a field that becomes ... is left out."""
    path = folder / "policy.json"
    mapping = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in mapping.items() if value is not ...}))


def rewrite_header(folder, edit):
    """Rewrite the header of the weights; the numbers stay."""
    path = folder / "policy.safetensors"
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    edit(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


@pytest.mark.parametrize("name", NETWORKS)
def test_a_loaded_network_does_what_the_saved_one_did(tmp_path, name):
    network, seen = network_of(name), observation(5, NUM_TOOLS)
    save_checkpoint(tmp_path, network, description_of(network))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    loaded = load_checkpoint(tmp_path)
    assert torch.equal(torch.rand(3), expected)  # loading leaves the random numbers of others alone
    assert torch.equal(outputs(loaded.network, seen), outputs(network, seen))
    assert not loaded.network.training
    assert not any(parameter.requires_grad for parameter in loaded.network.parameters())
    assert loaded.folder == tmp_path


def test_what_stands_about_a_policy_comes_back(saved):
    description = load_checkpoint(saved).description
    expected = description_of(network_of())
    assert description == replace(expected, weights_sha256=description.weights_sha256)
    assert (description.network.kind, description.network.arguments) == ("transformer", ARGUMENTS)
    fields = ["format", "network", "weights_sha256", "layout", "library", "benchmark"]
    assert list(json.loads((saved / "policy.json").read_text())) == [*fields, "training", "provenance", "results"]
    assert description.benchmark == BenchmarkIdentity(**benchmark_of(BENCHMARK_VERSION))
    assert description.library == default_library().content_hash
    assert description.layout == layout_version()
    assert sorted(os.listdir(saved)) == ["policy.json", "policy.safetensors"]


def test_half_precision_halves_the_file_and_saving_replaces_an_older_policy(saved, tmp_path):
    network = network_of()
    save_checkpoint(tmp_path / "half", network, description_of(network), "float16")
    small, large = ((folder / "policy.safetensors").stat().st_size for folder in (tmp_path / "half", saved))
    assert small < 0.6 * large
    loaded = load_checkpoint(tmp_path / "half").network.state_dict()
    for name, tensor in network.state_dict().items():
        assert torch.equal(loaded[name], tensor.half().float())
    other = network_of(seed=1)
    save_checkpoint(saved, other, description_of(other, results={"success": 0.5}))
    replaced = load_checkpoint(saved)
    assert replaced.description.results == {"success": 0.5}
    assert torch.equal(replaced.network.context.weight, other.context.weight)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_weights_that_could_not_be_read_again_are_not_saved(tmp_path, value):
    network = network_of()
    with torch.no_grad():
        network.context.weight[0, 0] = value
    numbers = "float16" if value == 1e30 else "float32"  # 1e30 has no form in 16 bits
    with pytest.raises(InvalidInputError, match=r"tensor 'context.weight' holds NaN or an infinity"):
        save_checkpoint(tmp_path / "new", network, description_of(network), numbers)
    assert not (tmp_path / "new").exists()


def test_a_description_of_another_network_is_not_saved(tmp_path):
    with pytest.raises(InvalidInputError, match=r"policy\.safetensors"):
        save_checkpoint(tmp_path, network_of("transformer"), description_of(network_of("embeddings")))
    with pytest.raises(InvalidInputError, match="no form in JSON"):
        save_checkpoint(tmp_path, network_of(), description_of(network_of(), results={"success": float("nan")}))
    assert os.listdir(tmp_path) == []


def test_what_is_not_there_is_told_and_default_is_what_ships(saved, tmp_path, monkeypatch):
    monkeypatch.setitem(checkpoint_module._SHIPPED, "default", tmp_path / "absent")
    text = "no trained policy ships with this version of ResiliSim: expected a checkpoint folder"
    assert refusal("default") == text
    monkeypatch.setitem(checkpoint_module._SHIPPED, "default", saved)
    assert load_checkpoint("default").folder == checkpoint_folder("default")[0] == saved
    with pytest.raises(StoreError, match="cannot make the folder"):
        save_checkpoint(saved / "policy.json" / "below", network_of(), description_of(network_of()))
    assert refusal(tmp_path / "nothing").startswith(f"no checkpoint '{tmp_path}/nothing': no such file or directory")
    assert "is a file" in refusal(saved / "policy.json")
    assert "null" in refusal("a\0b")
    (saved / "policy.safetensors").unlink()
    assert refusal(saved).endswith("cannot read policy.safetensors: no such file or directory")
    (saved / "policy.json").unlink()
    assert refusal(saved).endswith("cannot read policy.json: no such file or directory")


@pytest.mark.parametrize("name", ["policy.json", "policy.safetensors"])
def test_files_that_are_none_are_told(saved, name):
    path = saved / name
    path.unlink()
    path.mkdir()
    assert refusal(saved).endswith(f"{name}' is not an ordinary file: expected one")
    path.rmdir()
    path.symlink_to(path)
    assert f"{name}' cannot be read: " in refusal(saved)
    path.unlink()
    os.mkfifo(path)  # opening it would wait for ever
    assert refusal(saved).endswith(f"{name}' is not an ordinary file: expected one")


def transformer(**arguments):
    return {"network": {"kind": "transformer", "arguments": {**ARGUMENTS, **arguments}}}


BAD_FIELDS = [
    ({"format": "resilisim-policy-2"}, "field 'format': got \"resilisim-policy-2\"; expected resilisim-policy-1"),
    ({"format": ...}, "field 'format': is missing"),
    ({"network": {"kind": "transformr", "arguments": {}}}, "did you mean 'transformer'?"),
    ({"network": {"kind": "os:system", "arguments": {}}}, "expected one of transformer, mlp"),
    ({"network": {"kind": "mlp", "arguments": {}}}, "field 'num_tools': is missing"),
    ({"network": {"kind": "mlp", "arguments": {"num_tools": 30, "width": 4, "x": 1}}}, "unknown field 'x'"),
    ({"layout": "0" * 64}, "is for other observations or actions"),
    ({"library": 7}, "field 'library': got 7"),
    ({"weights_sha256": ""}, "field 'weights_sha256': got \"\"; expected a non-empty string"),
    ({"weights_sha256": "0" * 64}, "policy.safetensors is not the file that policy.json describes"),
    ({"__reduce__": ["os.system", "true"]}, "unknown field '__reduce__'"),
    ({"w" * 5000: 1}, "unknown field"),
    (transformer(heads=3), "there is no such network: heads 3"),
    *((transformer(width=width), "field 'width': got ") for width in (0, 8.0, "8", True, None, 10**12, 10**200)),
    (transformer(num_tools=10**9), "field 'num_tools': got "),
    (transformer(attention_tokens={}), "field 'attention_tokens': got "),
    (transformer(tool_embeddings=1), "field 'tool_embeddings': got 1"),
]


@pytest.mark.parametrize(("changes", "said"), BAD_FIELDS, ids=[str(number) for number in range(len(BAD_FIELDS))])
def test_bad_fields_are_told_at_once(saved, changes, said):
    change(saved, **changes)
    text = refusal(saved)
    assert said in text
    assert f"checkpoint '{saved}', policy.json" in text or "describes" in text


MEMORY_OF_REFUSALS = """
import json, resource, sys
from pathlib import Path
from resilisim.errors import InvalidInputError
from resilisim.policies.ppo.checkpoint import load_checkpoint
path = Path(sys.argv[1]) / "policy.json"
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for network in json.loads(sys.argv[2]):
    path.write_text(json.dumps({**json.loads(path.read_text()), "network": network}))
    try:
        load_checkpoint(path.parent)
    except InvalidInputError as error:
        print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.long
def test_networks_that_the_file_does_not_hold_take_no_memory(saved):
    networks = [
        {"kind": "transformer", "arguments": {**ARGUMENTS, "width": 4096, "layers": 64, "heads": 64}},
        {"kind": "mlp", "arguments": {"num_tools": 100_000, "width": 4096}},
        {"kind": "transformer", "arguments": {**ARGUMENTS, "width": 512, "layers": 40}},
    ]
    command = [sys.executable, "-c", MEMORY_OF_REFUSALS, str(saved), json.dumps(networks)]
    *refusals, mebibytes = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for refusal in refusals[:2]:
        assert re.search(r"the network has [\d,]{13,} numbers: expected at most 100,000,000$", refusal)
    assert "has the shape" in refusals[2] or "is missing" in refusals[2]
    assert int(mebibytes) < 100


BAD_JSON = [
    b"",
    b"\xff\xfe{}",
    b'{"format": "resilisim-policy-1", "format": "resilisim-policy-1"}',
    b"[" * 100_000,
    b"!!python/object/apply:os.system ['true']",
]


@pytest.mark.parametrize("text", BAD_JSON, ids=lambda text: text[:24].decode("latin-1") or "empty")
def test_descriptions_that_are_no_json_are_told_quickly(saved, text):
    (saved / "policy.json").write_bytes(text)
    with no_endless_work():
        assert "policy.json" in refusal(saved)


def test_large_files_are_not_read(saved):
    with (saved / "policy.json").open("wb") as stream:
        stream.truncate(10 * 2**40)  # a sparse file; it takes no room
    assert refusal(saved).endswith(f"expected at most {MAX_DESCRIPTION_BYTES:,}")
    save_checkpoint(saved, network_of(), description_of(network_of()))
    with (saved / "policy.safetensors").open("r+b") as stream:
        stream.truncate(2**40)
    with no_endless_work():
        assert "expected at most" in refusal(saved)


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_is_refused_and_never_run(saved, tmp_path, protocol):
    trap = tmp_path / "trap"
    data = pickle.dumps(Payload(trap), protocol=protocol)
    for name in ("policy.safetensors", "policy.json"):
        (saved / name).write_bytes(data)
        assert name in refusal(saved)
    assert not trap.exists()
    pickle.loads(data).close()  # the trap does work
    assert trap.exists()


@given(st.data())
def test_cut_or_changed_weights_are_told(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("cut")
    network = network_of()
    save_checkpoint(folder, network, description_of(network))
    path = folder / "policy.safetensors"
    whole = path.read_bytes()
    if data.draw(st.booleans()):
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))] + data.draw(st.binary(max_size=20)))
    else:
        place = data.draw(st.integers(0, len(whole) - 1))
        changed = whole[place] ^ data.draw(st.integers(1, 255))
        path.write_bytes(whole[:place] + bytes([changed]) + whole[place + 1 :])
    assert "policy.safetensors" in refusal(folder)


HEADER_EDITS = {
    "missing": (lambda header: header.pop("context.weight"), "not a safetensors file"),
    "extra": (
        lambda header: header.update(more={"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}),
        "unknown tensor 'more'",
    ),
    "shape": (lambda header: header["context.weight"].update(shape=[4, 16]), "has the shape [4, 16]: expected [8, 8]"),
    "huge shape": (lambda header: header["context.weight"].update(shape=[2**40, 8]), "not a safetensors file"),
    "type": (lambda header: header["context.weight"].update(dtype="I32"), "is of type torch.int32: expected 32 or 16"),
    "offsets": (lambda header: header["context.weight"].update(data_offsets=[0, 4]), "not a safetensors file"),
    "far offsets": (
        lambda header: header["context.weight"].update(data_offsets=[2**50, 2**50 + 256]),
        "not a safetensors file",
    ),
    "overlap": (
        lambda header: header["context.weight"].update(
            data_offsets=header["layers.0.attention_out.weight"]["data_offsets"]
        ),
        "not a safetensors file",
    ),
    "metadata": (lambda header: header.update(__metadata__={"a": [1]}), "not a safetensors file"),
    "fields": (lambda header: header["context.weight"].update(code="import os"), "policy.safetensors"),
}


@pytest.mark.parametrize("name", HEADER_EDITS)
def test_wrong_tensors_are_told(saved, name):
    edit, said = HEADER_EDITS[name]
    rewrite_header(saved, edit)
    assert said in refusal(saved)


def test_weights_of_another_network_are_told(saved, tmp_path):
    torch.save(network_of().state_dict(), saved / "policy.safetensors")
    assert refusal(saved).endswith("; a pickle is never read")
    other = network_of("all tools")
    save_checkpoint(tmp_path / "other", other, description_of(other))
    (saved / "policy.safetensors").write_bytes((tmp_path / "other" / "policy.safetensors").read_bytes())
    assert "policy.safetensors: tensor 'layers." in refusal(saved)
    same_shapes = network_of(seed=3)
    save_checkpoint(tmp_path / "other", same_shapes, description_of(same_shapes))
    (saved / "policy.safetensors").write_bytes((tmp_path / "other" / "policy.safetensors").read_bytes())
    assert "is not the file that policy.json describes" in refusal(saved)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_no_numbers_are_told(saved, value):
    path = saved / "policy.safetensors"
    data = bytearray(path.read_bytes())
    data[-4:] = struct.pack("<f", value)
    path.write_bytes(data)
    change(saved, weights_sha256=hashlib.sha256(data).hexdigest())
    assert "holds NaN or an infinity: expected finite weights" in refusal(saved)
