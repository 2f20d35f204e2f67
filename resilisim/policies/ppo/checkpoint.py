"""Trained policies on disk: a folder with weights and a description, which can be loaded without trusting who made it.

* `policy.safetensors`: the network's tensors, 32 or 16 bit floats, nothing else
* `policy.json`: which network it is, what it was trained on, how, by which versions, and what it reached

Neither can hold code. A network is one of two known kinds with a few bounded numbers, and nothing of its size is
allocated before names, types and shapes of the tensors in the file are those that this network has.

The folder of a training run also holds `resume.safetensors`, the point from which a killed run goes on, bit for bit on
a CPU: arrays (network, optimiser, random generators, environments, last observation) and, as JSON text beside them,
counters and the memory of the training's parts. It is one file, replaced as a whole, and reading it runs no code. It is
always taken between two rollouts: after an update, before the next step of an environment; while the network imitates,
between two batches, with those that are rehearsed.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ConfigDict, Field
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as encode_arrays
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors
from torch import Tensor

from resilisim.envs.workflow.spaces import (
    ACTION_TYPES,
    LAW_COLUMNS,
    META_ACTIONS,
    PART_COLUMNS,
    STATUSES,
    TASK_COLUMNS,
    TOOL_COLUMNS,
)
from resilisim.errors import InvalidInputError, StoreError, nearest_name, one_line, unknown_name
from resilisim.inputs import inside, read_json, shown, validated
from resilisim.policies.ppo import SHIPPED_CHECKPOINTS, split_look_ahead
from resilisim.policies.ppo.features import (
    PART_RELATIONS,
    STATE_STATUS,
    STATE_TASK_COLUMNS,
    STATE_TOOL_COLUMNS,
    TASK_GROUPS,
    TOOL_GROUPS,
    TOOL_RELATIONS,
    groups_of_parts,
)
from resilisim.policies.ppo.network import Layer, Network, WorkflowMLP, make_network
from resilisim.provenance import canonical_json, content_hash, describe_os_error, encode_json
from resilisim.run_folder import RunFolder, make_folder, write_file_atomically
from resilisim.tasks.benchmark import BENCHMARK_VERSION, benchmark_of
from resilisim.tool_library import ToolLibrary

if TYPE_CHECKING:
    from sb3_contrib import MaskablePPO

DESCRIPTION_FILE = "policy.json"
WEIGHTS_FILE = "policy.safetensors"
# What not every transformer reads, by the names of its arguments; all but the first are settings of a training.
SETTINGS_OF_READING = ("by_state", "relations", "detailed")
READS = ("law_parts", *SETTINGS_OF_READING)
# To be raised when a network computes something else from weights of the same names and shapes.
NETWORKS_VERSION = 1

DEFAULT_CHECKPOINT = "default"
# The shipped checkpoints by name; a folder of that name in the working directory is given as ./default.
_SHIPPED = {name: Path(__file__).parent / name for name in SHIPPED_CHECKPOINTS}

# Limits on what strangers can make this process hold.
MAX_DESCRIPTION_BYTES = 2**17
MAX_PARAMETERS = 100_000_000
MAX_WEIGHTS_BYTES = 4 * MAX_PARAMETERS + 2**17
_MAX_MESSAGE_LENGTH = 500  # what is wrong with a file may repeat what stands in it

PICKLES = (b"PK", b"\x80\x02", b"\x80\x04", b"\x80\x05")  # how files that `torch.save` and `pickle` write begin

Text = Annotated[str, Field(min_length=1)]
NumTools = Annotated[int, Field(ge=1, le=100_000)]
Width = Annotated[int, Field(ge=1, le=4096)]


@cache
def layout_version(
    law_parts: bool = False, by_state: bool = False, relations: bool = False, detailed: bool = False
) -> str:
    """Return a hash of what the columns of observations, networks and their inputs, and the numbers of actions mean.

    A policy that was trained on another layout would read nonsense, so it is refused. Those of laws with parts count
    for networks that read them, and what else not every network reads for those that do; so each is known by what it
    was made with, whatever is added for others.
    """
    of_tools, of_law = groups_of_parts(detailed)
    inputs = [group.to_mapping() for group in (*of_tools, *of_law)]
    parts: dict[str, Any] = {}
    if law_parts:
        columns = PART_COLUMNS[: len(of_tools)], LAW_COLUMNS[: len(of_law)]
        parts = {"tool_parts": columns[0], "law": columns[1], "part_inputs": inputs}
    if by_state:
        parts |= {"state": [STATE_TOOL_COLUMNS, STATE_TASK_COLUMNS, STATE_STATUS]}
    if relations:
        parts |= {"relations": [TOOL_RELATIONS, PART_RELATIONS]}
    return content_hash(
        parts
        | {
            "tools": TOOL_COLUMNS,
            "task": TASK_COLUMNS,
            "statuses": STATUSES,
            "inputs": [group.to_mapping() for group in (*TOOL_GROUPS, *TASK_GROUPS)],
            "networks": NETWORKS_VERSION,
            "actions": ACTION_TYPES,
            "meta_actions": META_ACTIONS,
        }
    )


def _layout_of(arguments: Mapping[str, Any]) -> str:
    """Return the layout that a network with some arguments reads."""
    return layout_version(*(arguments.get(name) is True for name in READS))


class _Strict:
    """What is read from `policy.json`: nothing more, nothing less, and nothing converted."""

    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class TransformerArguments(_Strict):
    """What `WorkflowTransformer` is built with, within the limits of a stranger's file."""

    num_tools: NumTools
    width: Width
    layers: Annotated[int, Field(ge=1, le=64)]
    heads: Annotated[int, Field(ge=1, le=64)]
    attention_tokens: NumTools | None
    tool_embeddings: bool
    law_parts: bool = False
    by_state: bool = False
    relations: bool = False
    detailed: bool = False


@dataclass(frozen=True, slots=True)
class MLPArguments(_Strict):
    """What `WorkflowMLP` is built with."""

    num_tools: NumTools
    width: Width


# The kinds of networks, by the names that `network` knows.
NETWORK_ARGUMENTS: Mapping[str, type[Any]] = {"transformer": TransformerArguments, "mlp": MLPArguments}


@dataclass(frozen=True, slots=True)
class NetworkDescription(_Strict):
    """Which network it is: its kind, and the arguments of that kind."""

    kind: Literal["transformer", "mlp"]
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BenchmarkIdentity(_Strict):
    """The name of a task set, and the hash of its bytes."""

    version: Text
    sha256: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDescription(_Strict):
    """What stands about a policy in `policy.json`."""

    format: Literal["resilisim-policy-1"]
    network: NetworkDescription
    weights_sha256: Text  # in hex, of the file with the weights that it belongs to
    layout: str  # version of observations and actions, see `layout_version`
    library: Text  # content hash of the tool library that it was trained on
    benchmark: BenchmarkIdentity
    training: dict[str, Any]
    provenance: dict[str, Any]  # command, versions, platform, time
    results: dict[str, Any]


def describe_policy(
    network: Network,
    library: ToolLibrary,
    training: Mapping[str, Any],
    provenance: Mapping[str, Any],
    results: Mapping[str, Any],
) -> PolicyDescription:
    """Return the description of a network that was trained on a library; the rest is free JSON objects."""
    arguments: dict[str, int | bool | None] = {"num_tools": network.num_tools}
    if isinstance(network, WorkflowMLP):
        kind: Literal["transformer", "mlp"] = "mlp"
        arguments["width"] = network.hidden.out_features
    else:
        kind = "transformer"
        layers = [layer for layer in network.layers if isinstance(layer, Layer)]
        arguments |= {
            "width": network.context.out_features,
            "layers": len(layers),
            "heads": layers[0].heads,
            "attention_tokens": network.attention_tokens,
            "tool_embeddings": network.tool_vectors is not None,
        }
        # Only where they hold, so that descriptions without them stay what they are.
        reads = {"law_parts": network.part_features is not None}
        reads |= {name: getattr(network, name) for name in SETTINGS_OF_READING}
        arguments |= {name: True for name, is_so in reads.items() if is_so}
    return PolicyDescription(
        format="resilisim-policy-1",
        network=NetworkDescription(kind, arguments),
        weights_sha256="-",  # as long as it is not saved
        layout=_layout_of(arguments),
        library=library.content_hash,
        benchmark=BenchmarkIdentity(**benchmark_of(str(training.get("tasks", BENCHMARK_VERSION)))),
        training=dict(training),
        provenance=dict(provenance),
        results=dict(results),
    )


def read_description(data: bytes, where: str) -> PolicyDescription:
    """Return a description, if it is one for this version's observations and actions; `where` names the checkpoint."""
    place = f"{where}, {DESCRIPTION_FILE}"
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{place}: not UTF-8 text at byte {error.start:,}: expected JSON") from error
    read = validated(PolicyDescription, read_json(text, place), place)
    layout = _layout_of(read.network.arguments)
    if read.layout != layout:
        raise InvalidInputError(
            f"{place}, field 'layout': {shown(read.layout, 20)} is for other observations or actions; expected "
            f"{layout[:12]}..., trained with this version of ResiliSim"
        )
    kind = NETWORK_ARGUMENTS[read.network.kind]
    validated(kind, read.network.arguments, f"{place}, field 'network', field 'arguments'")
    return read


@dataclass(frozen=True, slots=True, eq=False)
class LoadedPolicy:
    """A policy from disk."""

    network: Network  # in evaluation mode, its weights as 32 bit floats that want no gradients
    description: PolicyDescription
    folder: Path
    look_ahead: int = 0  # how many calls it looks ahead (`look_ahead`)


def save_checkpoint(
    folder: Path | str,
    network: Network,
    description: PolicyDescription,
    numbers: Literal["float32", "float16"] = "float32",
) -> None:
    """Write a policy into a folder, which is made if it is not there; what it held of an older policy is replaced.

    Each file is replaced as a whole, and the description names the hash of the weights, so that a reader sees the old
    policy, the new one, or that the two files do not belong together. "float16" halves the file and rounds.

    Raises:
        InvalidInputError: The description is not that of the network, or weights are not finite.
        StoreError: The folder cannot be written.
    """
    where = f"checkpoint {_named(folder)}"
    kept = torch.float16 if numbers == "float16" else torch.float32
    # Copies of their own, in order: the file format knows neither views nor tensors that share memory.
    tensors = {
        name: tensor.detach().to("cpu", kept).clone(memory_format=torch.contiguous_format)
        for name, tensor in sorted(network.state_dict().items())
    }
    weights = write_tensors(tensors)
    description = replace(description, weights_sha256=hashlib.sha256(weights).hexdigest())
    try:
        about = encode_json(asdict(description), indent=2) + b"\n"
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"{where}: the description has no form in JSON: {error}") from error
    # What could not be read again is refused now, not when somebody needs it.
    _read_weights(weights, _shapes(read_description(about, where), where), where)
    make_folder(Path(folder))
    write_file_atomically(Path(folder) / WEIGHTS_FILE, weights)
    write_file_atomically(Path(folder) / DESCRIPTION_FILE, about)


def load_checkpoint(folder: Path | str) -> LoadedPolicy:
    """Return the policy that a folder holds, or that ships under a name, running nothing of what stands there.

    A number of calls to look ahead may follow, as in `default+2`. No checkpoint, a broken one, and one for other
    observations or actions is an InvalidInputError.
    """
    source, look_ahead = checkpoint_folder(folder)
    try:
        return replace(_load(source, f"checkpoint {_named(folder)}"), look_ahead=look_ahead)
    except InvalidInputError as error:
        if len(str(error)) <= _MAX_MESSAGE_LENGTH:
            raise
        raise InvalidInputError(f"{str(error)[:_MAX_MESSAGE_LENGTH]}...") from None


def description_hash(folder: Path | str) -> str:
    """Return the SHA-256, in hex, of a checkpoint's description, which names the hash of its weights."""
    where = f"checkpoint {_named(folder)}"
    return content_hash(_read_file(checkpoint_folder(folder)[0] / DESCRIPTION_FILE, MAX_DESCRIPTION_BYTES, where))


def _named(folder: Path | str) -> str:
    """Return a folder's name for messages: on one line, and not too long."""
    return f"{str(folder)!r:.200}"


def _load(source: Path, where: str) -> LoadedPolicy:
    description = read_description(_read_file(source / DESCRIPTION_FILE, MAX_DESCRIPTION_BYTES, where), where)
    shapes = _shapes(description, where)
    data = _read_file(source / WEIGHTS_FILE, MAX_WEIGHTS_BYTES, where)
    tensors = _read_weights(data, shapes, where)
    if hashlib.sha256(data).hexdigest() != description.weights_sha256:
        raise InvalidInputError(
            f"{where}: {WEIGHTS_FILE} is not the file that {DESCRIPTION_FILE} describes: expected both from one save"
        )
    # Building draws weights, which are replaced; whoever counts on PyTorch's generator must not notice.
    with torch.random.fork_rng(devices=[]):
        network = _build(description)
    network.load_state_dict(tensors)
    network.eval().requires_grad_(False)
    return LoadedPolicy(network, description, source)


def checkpoint_folder(folder: Path | str) -> tuple[Path, int]:
    """Return where a checkpoint lies, and how many calls ahead is looked: 0 unless the name ends with `+` and a number.

    It is the folder, which has to be there, or that of a shipped one for its name.
    """
    name, look_ahead = (str(folder), 0) if Path(folder).is_dir() else split_look_ahead(str(folder))
    source = _SHIPPED.get(name, Path(name))
    try:
        is_there = stat.S_ISDIR(source.stat().st_mode)
        problem = "" if is_there else "is a file"
    except (OSError, ValueError) as error:  # a name with a null character is a ValueError
        problem = describe_os_error(error) if isinstance(error, OSError) else str(error)
    if not problem:
        return source, look_ahead
    if name in _SHIPPED:
        raise InvalidInputError("no trained policy ships with this version of ResiliSim: expected a checkpoint folder")
    near = nearest_name(name, _SHIPPED)
    raise InvalidInputError(
        f"no checkpoint {_named(folder)}: {problem}; expected a folder with {DESCRIPTION_FILE} and {WEIGHTS_FILE}, "
        f"or {' or '.join(map(repr, _SHIPPED))}" + (f"; did you mean {near!r}?" if near else "")
    )


def _read_file(path: Path, limit: int, where: str) -> bytes:
    inside(path.parent, path, f"{where}: file")
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise InvalidInputError(f"{where}: {path.name} is not an ordinary file: expected one")
        size = info.st_size
        data = b""
        if size <= limit:
            with path.open("rb") as stream:
                data = stream.read(limit + 1)  # it may grow while it is read
            size = len(data)
    except OSError as error:
        raise InvalidInputError(f"{where}: cannot read {path.name}: {describe_os_error(error)}") from error
    if size > limit:
        raise InvalidInputError(f"{where}: {path.name} has {size:,} bytes: expected at most {limit:,}")
    return data


def _build(description: PolicyDescription) -> Network:
    options = dict(description.network.arguments)
    return make_network(description.network.kind, options.pop("num_tools"), options)


def _shapes(description: PolicyDescription, where: str) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the tensors of a network, without making room for them."""
    try:
        with torch.device("meta"):
            network = _build(description)
    except InvalidInputError as error:  # a width that its heads do not divide
        raise InvalidInputError(f"{where}, {DESCRIPTION_FILE}: there is no such network: {error}") from error
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    size = sum(tensor.numel() for tensor in network.state_dict().values())
    if size > MAX_PARAMETERS:
        raise InvalidInputError(f"{where}: the network has {size:,} numbers: expected at most {MAX_PARAMETERS:,}")
    return shapes


def _read_weights(data: bytes, shapes: Mapping[str, tuple[int, ...]], where: str) -> dict[str, Tensor]:
    """Return the tensors of a file, which have to be those of the shapes, as 32 bit floats."""
    place = f"{where}, {WEIGHTS_FILE}"
    try:
        tensors = read_tensors(data)  # no more than the file holds, which is what its header has to announce
    except (SafetensorError, ValueError, RuntimeError, KeyError) as error:
        hint = "; a pickle is never read" if data.startswith(PICKLES) else ""
        raise InvalidInputError(
            f"{place}: not a safetensors file, or cut off, with {len(data):,} bytes: {one_line(error)}{hint}"
        ) from error
    for name in tensors:
        if name not in shapes:
            raise unknown_name("tensor", name[:100], shapes, place)
    for name, shape in shapes.items():
        tensor = tensors.get(name)
        if tensor is None:
            raise InvalidInputError(f"{place}: tensor {name!r} is missing: expected {len(shapes)} tensors")
        if tensor.dtype not in (torch.float32, torch.float16):
            raise InvalidInputError(f"{place}: tensor {name!r} is of type {tensor.dtype}: expected 32 or 16 bit floats")
        if tensor.shape != shape:
            raise InvalidInputError(
                f"{place}: tensor {name!r} has the shape {list(tensor.shape)}: expected {list(shape)}"
            )
        if not bool(torch.isfinite(tensor).all()):
            raise InvalidInputError(f"{place}: tensor {name!r} holds NaN or an infinity: expected finite weights")
    return {name: tensor.to(torch.float32) for name, tensor in tensors.items()}


PROGRESS_FILE = "progress.jsonl"
RESUME_FILE = "resume.safetensors"
RESUME_FORMAT = "resilisim-resume-1"
_FACTS = "facts"
# Beside those that every manifest names.
TRAINING_PACKAGES = ("torch", "stable-baselines3", "sb3-contrib", "numba")

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Everything that a run has to know to go on: arrays, named part/name, and JSON values."""

    arrays: Arrays
    facts: Mapping[str, Any]


def choose_device(name: str) -> torch.device:
    """Return the device of a name; auto is CUDA where there is a device, else the CPU."""
    if name == "cpu" or not torch.cuda.is_available():
        if name == "cuda":
            raise InvalidInputError("device 'cuda': torch finds no CUDA device here; expected auto or cpu")
        return torch.device("cpu")
    return torch.device("cuda")


class TrainingFolder(RunFolder):
    """The folder of a training run: its manifest, its log of evaluations, and the point to resume from, if any.

    A run stays on the kind of device that it began on: elsewhere its numbers, and so what it learns, are others.
    """

    def __init__(
        self, directory: Path, arguments: Mapping[str, Any], device: torch.device, packages: Sequence[str] = ()
    ) -> None:
        super().__init__(
            *(directory, {**arguments, "computed_on": device.type}, PROGRESS_FILE),
            is_exclusive=True,
            packages=(*TRAINING_PACKAGES, *packages),
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        )
        try:
            self.point = read_resume_point(directory / RESUME_FILE)
            # Lines behind the point will be written again.
            size = 0 if self.point is None else int(self.point.facts["progress_size"])
            if os.stat(self.lines.path).st_size > size:
                os.truncate(self.lines.path, size)
        except BaseException:
            self.close()
            raise

    def write_point(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Replace the point to resume from, so that a reader finds the old one or the new one."""
        # Copies in order: the file format takes what lies in memory, whatever the strides.
        ordered = {name: np.array(array, order="C") for name, array in arrays.items()}
        facts = {"format": RESUME_FORMAT, **facts, "progress_size": os.stat(self.lines.path).st_size}
        encoded = encode_arrays(ordered, metadata={_FACTS: canonical_json(facts)})
        write_file_atomically(self.directory / RESUME_FILE, encoded)


def read_resume_point(path: Path) -> ResumePoint | None:
    """Return the point that a file holds, or None if there is no file."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            facts = json.loads((file.metadata() or {}).get(_FACTS, "null"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise StoreError(f"cannot read {path}: {describe_os_error(error)}") from error
    except (SafetensorError, ValueError, RecursionError) as error:
        raise StoreError(f"{path} is broken: {one_line(error)}") from error
    if not isinstance(facts, dict) or facts.get("format") != RESUME_FORMAT:
        raise StoreError(f"{path} does not have the format {RESUME_FORMAT!r}")
    return ResumePoint(arrays, facts)


def model_state(model: MaskablePPO) -> ResumePoint:
    """Return what a model knows: weights, optimiser, counters, last observation, and the random generators' states."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, tensor in model.policy.state_dict().items():
        arrays[f"policy/{name}"] = tensor.detach().cpu().numpy()
    arrays |= optimizer_state(model.policy.optimizer)
    last = model._last_obs
    if not isinstance(last, dict) or model._last_episode_starts is None:
        raise ValueError("the model has no last observation yet: expected one that has been reset")
    for name, observation in last.items():
        arrays[f"last/{name}"] = observation
    arrays["last_episode_starts"] = model._last_episode_starts
    random_arrays, random_facts = random_state(model.device)
    counters = {"num_timesteps": model.num_timesteps, "n_updates": model._n_updates}
    return ResumePoint({**arrays, **random_arrays}, {"model": counters, "random": random_facts})


def restore_model(model: MaskablePPO, point: ResumePoint) -> None:
    """Give a model of the same configuration what `model_state` returned; the random generators too."""
    try:
        model.policy.load_state_dict({name: _tensor(array) for name, array in part_of(point.arrays, "policy").items()})
        restore_optimizer(model.policy.optimizer, point.arrays)
        model._last_obs = part_of(point.arrays, "last")
        model._last_episode_starts = point.arrays["last_episode_starts"]
        model.num_timesteps = int(point.facts["model"]["num_timesteps"])
        model._n_updates = int(point.facts["model"]["n_updates"])
        set_random_state(point.arrays, point.facts["random"], model.device)
    except (KeyError, ValueError, RuntimeError, TypeError) as error:
        raise StoreError(f"{RESUME_FILE} does not fit this training: {one_line(error)}") from error


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, NDArray[Any]]:
    """Return what an optimiser remembers of its steps, named `optimizer/<parameter>/<name>`."""
    return {
        f"optimizer/{place}/{name}": torch.as_tensor(value).detach().cpu().numpy()
        for place, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, arrays: Arrays) -> None:
    """Give an optimiser of the same parameters what `optimizer_state` returned."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, array in part_of(arrays, "optimizer").items():
        place, _, name = key.partition("/")
        state.setdefault(int(place), {})[name] = _tensor(array)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def random_state(device: torch.device) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the states of the generators that stable-baselines3 draws from: NumPy's, torch's, and the device's.

    A GPU is asked only if it is the device: asking makes a context on it, which takes hundreds of megabytes.
    """
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002
    arrays: dict[str, NDArray[Any]] = {"random/numpy": np.asarray(keys), "random/torch": torch.get_rng_state().numpy()}
    if device.type == "cuda":
        arrays["random/cuda"] = torch.cuda.get_rng_state(device).numpy()
    facts = {"kind": kind, "position": int(position), "has_gauss": int(has_gauss), "gauss": float(gauss)}
    return arrays, facts


def set_random_state(arrays: Arrays, facts: Mapping[str, Any], device: torch.device) -> None:
    """Put the generators back into the states that `random_state` returned."""
    numbers = (facts["kind"], arrays["random/numpy"], facts["position"], facts["has_gauss"], facts["gauss"])
    np.random.set_state(numbers)  # noqa: NPY002
    torch.set_rng_state(_tensor(arrays["random/torch"]))
    if device.type == "cuda":
        torch.cuda.set_rng_state(_tensor(arrays["random/cuda"]), device)


def part_of(arrays: Arrays, part: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of one part, without its prefix."""
    return {name.removeprefix(f"{part}/"): array for name, array in arrays.items() if name.startswith(f"{part}/")}


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.array(array, order="C"))
