"""Trained policies on disk: a folder with weights and a description, which can be loaded without trusting who made it.

* `policy.safetensors`: the network's tensors, 32 or 16 bit floats, nothing else
* `policy.json`: which network it is, what it was trained on, how, by which versions, and what it reached

Neither can hold code. A network is one of two known kinds with a few bounded numbers, and nothing of its size is
allocated before names, types and shapes in the file's header are those that this network has.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors
from torch import Tensor

from resilisim.errors import InvalidInputError, StoreError, unknown_name
from resilisim.inputs import read_json, shown
from resilisim.policies.ppo.description import (
    DESCRIPTION_FILE,
    Network,
    PolicyDescription,
    decode_text,
    read_description,
)
from resilisim.policies.ppo.network import make_network
from resilisim.provenance import content_hash, describe_os_error, encode_json, write_file_atomically

DEFAULT_CHECKPOINT = "default"
WEIGHTS_FILE = "policy.safetensors"

# Limits on what strangers can make this process hold.
MAX_DESCRIPTION_BYTES = 2**17
MAX_HEADER_BYTES = 2**17
MAX_PARAMETERS = 100_000_000
MAX_WEIGHTS_BYTES = 4 * MAX_PARAMETERS + MAX_HEADER_BYTES + 8
MAX_MESSAGE_LENGTH = 500  # what is wrong with a file may repeat what stands in it

# The shipped checkpoint; a folder of that name in the working directory is given as ./default.
_DEFAULT_FOLDER = Path(__file__).parent / DEFAULT_CHECKPOINT

_FLOAT_TYPES = {"F32": 4, "F16": 2}  # names in safetensors, bytes of a number

NumberType = Literal["float32", "float16"]


@dataclass(frozen=True, slots=True, eq=False)
class LoadedPolicy:
    """A policy from disk.

    Attributes:
        network: The network in evaluation mode, its weights as 32 bit floats that want no gradients.
        description: What stands about it.
        folder: Where it came from.
    """

    network: Network
    description: PolicyDescription
    folder: Path


def save_checkpoint(
    folder: Path | str, network: Network, description: PolicyDescription, numbers: NumberType = "float32"
) -> None:
    """Write a policy into a folder, which is made if it is not there; what it held of an older policy is replaced.

    Each file is replaced as a whole, and the description names the hash of the weights, so that a reader sees the old
    policy, the new one, or that the two files do not belong together.

    Args:
        folder: The folder.
        network: Its weights are written.
        description: What to say about it; `load_checkpoint` builds the network from it.
        numbers: How weights are written; "float16" halves the file and rounds.

    Raises:
        InvalidInputError: The description is not that of the network, or weights are not finite.
        StoreError: The folder cannot be written.
    """
    target = Path(folder)
    where = f"checkpoint {_named(folder)}"
    kept = torch.float16 if numbers == "float16" else torch.float32
    # Copies of their own, in order: the file format knows neither views nor tensors that share memory.
    tensors = {
        name: tensor.detach().to("cpu", kept).clone(memory_format=torch.contiguous_format)
        for name, tensor in sorted(network.state_dict().items())
    }
    weights = write_tensors(tensors)
    try:
        about = encode_json(description.to_mapping(hashlib.sha256(weights).hexdigest()), indent=2) + b"\n"
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"{where}: the description has no form in JSON: {error}") from error
    # What could not be read again is refused now, not when somebody needs it.
    read, _ = read_description(about, where)
    _read_weights(weights, _shapes(read, where), where)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make the folder {target}: {describe_os_error(error)}") from error
    write_file_atomically(target / WEIGHTS_FILE, weights)
    write_file_atomically(target / DESCRIPTION_FILE, about)


def load_checkpoint(folder: Path | str) -> LoadedPolicy:
    """Return the policy that a folder holds, running nothing of what stands there.

    Args:
        folder: A folder that `save_checkpoint` wrote, or "default" for the policy that ships with ResiliSim.

    Raises:
        InvalidInputError: It is no checkpoint, a broken one, or one for other observations or actions.
    """
    source = checkpoint_folder(folder)
    try:
        return _load(source, f"checkpoint {_named(folder)}")
    except InvalidInputError as error:
        if len(str(error)) <= MAX_MESSAGE_LENGTH:
            raise
        raise InvalidInputError(f"{str(error)[:MAX_MESSAGE_LENGTH]}...") from None


def description_hash(folder: Path | str) -> str:
    """Return the SHA-256, in hex, of a checkpoint's description, which names the hash of its weights.

    Raises:
        InvalidInputError: There is no such checkpoint.
    """
    where = f"checkpoint {_named(folder)}"
    return content_hash(_read_file(checkpoint_folder(folder) / DESCRIPTION_FILE, MAX_DESCRIPTION_BYTES, where))


def _named(folder: Path | str) -> str:
    """Return a folder's name for messages: on one line, and not too long."""
    return f"{str(folder)!r:.200}"


def _load(source: Path, where: str) -> LoadedPolicy:
    description, sha256 = read_description(_read_file(source / DESCRIPTION_FILE, MAX_DESCRIPTION_BYTES, where), where)
    shapes = _shapes(description, where)
    data = _read_file(source / WEIGHTS_FILE, MAX_WEIGHTS_BYTES, where)
    tensors = _read_weights(data, shapes, where)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise InvalidInputError(
            f"{where}: {WEIGHTS_FILE} is not the file that {DESCRIPTION_FILE} describes: expected both from one save"
        )
    # Building draws weights, which are replaced; whoever counts on PyTorch's generator must not notice.
    with torch.random.fork_rng(devices=[]):
        network = _build(description)
    network.load_state_dict(tensors)
    network.eval().requires_grad_(False)
    return LoadedPolicy(network, description, source)


def checkpoint_folder(folder: Path | str) -> Path:
    """Return where a checkpoint lies: the folder, or that of the shipped one for "default".

    Raises:
        InvalidInputError: There is no such folder.
    """
    source = _DEFAULT_FOLDER if str(folder) == DEFAULT_CHECKPOINT else Path(folder)
    try:
        is_there = stat.S_ISDIR(source.stat().st_mode)
        problem = "" if is_there else "is a file"
    except (OSError, ValueError) as error:  # a name with a null character is a ValueError
        problem = describe_os_error(error) if isinstance(error, OSError) else str(error)
    if not problem:
        return source
    if source == _DEFAULT_FOLDER:
        raise InvalidInputError("no trained policy ships with this version of ResiliSim: expected a checkpoint folder")
    raise InvalidInputError(
        f"no checkpoint {_named(folder)}: {problem}; expected a folder with {DESCRIPTION_FILE} and {WEIGHTS_FILE}, "
        f"or {DEFAULT_CHECKPOINT!r}"
    )


def _read_file(path: Path, limit: int, where: str) -> bytes:
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
    options: dict[str, Any] = dict(description.arguments)
    return make_network(description.kind, options.pop("num_tools"), options)


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
    """Return the tensors of a file as 32 bit floats."""
    place = f"{where}, {WEIGHTS_FILE}"
    _check_header(data, shapes, place)
    try:
        tensors = {name: tensor.to(torch.float32) for name, tensor in read_tensors(data).items()}
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise InvalidInputError(f"{place}: not a safetensors file: {' '.join(str(error).split())}") from error
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise InvalidInputError(f"{place}: tensor {name!r} holds NaN or an infinity: expected finite weights")
    return tensors


def _check_header(data: bytes, shapes: Mapping[str, tuple[int, ...]], place: str) -> None:
    """Refuse a file whose header does not announce exactly the expected tensors."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(MAX_HEADER_BYTES, len(data) - 8):
        hint = "; a pickle is never read" if data[:2] in (b"PK", b"\x80\x02", b"\x80\x04", b"\x80\x05") else ""
        raise InvalidInputError(
            f"{place}: not a safetensors file, or cut off: its {len(data):,} bytes hold no header{hint}"
        )
    header = read_json(decode_text(data[8 : 8 + length], place), place)
    if not isinstance(header, dict):
        raise InvalidInputError(f"{place}: the header is {shown(header)}: expected an object")
    header.pop("__metadata__", None)
    for name in header:
        if name not in shapes:
            raise unknown_name("tensor", name[:100], shapes, place)
    size = 0
    for name, shape in shapes.items():
        entry = header.get(name)
        if not isinstance(entry, dict):
            raise InvalidInputError(f"{place}: tensor {name!r} is missing: expected {len(shapes)} tensors")
        kind = entry.get("dtype")
        if not isinstance(kind, str) or kind not in _FLOAT_TYPES:
            raise InvalidInputError(f"{place}: tensor {name!r} is of type {shown(kind)}: expected F32 or F16")
        if entry.get("shape") != list(shape):
            raise InvalidInputError(
                f"{place}: tensor {name!r} has the shape {shown(entry.get('shape'))}: expected {list(shape)}"
            )
        size += _FLOAT_TYPES[kind] * torch.Size(shape).numel()
    if len(data) != 8 + length + size:
        raise InvalidInputError(
            f"{place}: {len(data):,} bytes: expected {8 + length + size:,}, the file may be cut off"
        )
