"""The folder of a training run, and the point from which a killed run goes on, bit for bit on a CPU.

`resume.safetensors` holds arrays (network, optimiser, random generators, environments, last observation) and, as JSON
text beside them, counters and the memory of the training's parts. It is one file, replaced as a whole, and reading it
runs no code. It is always taken between two rollouts: after an update, before the next step of an environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as encode_arrays
from sb3_contrib import MaskablePPO

from resilisim.errors import StoreError
from resilisim.provenance import canonical_json, describe_os_error
from resilisim.run_folder import RunFolder, write_file_atomically

PROGRESS_FILE = "progress.jsonl"
RESUME_FILE = "resume.safetensors"
RESUME_FORMAT = "resilisim-resume-1"
_FACTS = "facts"

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Everything that a run has to know to go on.

    Attributes:
        arrays: Arrays by name; names have the form part/name.
        facts: JSON values by name.
    """

    arrays: Arrays
    facts: Mapping[str, Any]


class TrainingFolder(RunFolder):
    """The folder of a training run: its manifest, its log of evaluations, and the point to resume from.

    Args:
        directory: The folder; it is made if it is not there.
        arguments: Everything that decides what the results are; JSON values.

    Attributes:
        point: The point to resume from, or None to begin.

    Raises:
        StoreError: The folder cannot be written, holds something else, or holds a run with other arguments.
    """

    def __init__(self, directory: Path, arguments: Mapping[str, Any]) -> None:
        super().__init__(directory, arguments, PROGRESS_FILE, is_exclusive=True)
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
        """Replace the point to resume from.

        Raises:
            StoreError: It cannot be written; the old one is untouched.
        """
        size = os.stat(self.lines.path).st_size
        write_resume_point(self.directory / RESUME_FILE, ResumePoint(arrays, {**facts, "progress_size": size}))


def write_resume_point(path: Path, point: ResumePoint) -> None:
    """Write a point so that a reader finds the old one or the new one, whatever happens meanwhile.

    Raises:
        StoreError: The file cannot be written; the old one is untouched.
    """
    # Copies in order: the file format takes what lies in memory, whatever the strides.
    arrays = {name: np.array(array, order="C") for name, array in point.arrays.items()}
    facts = {"format": RESUME_FORMAT, **point.facts}
    write_file_atomically(path, encode_arrays(arrays, metadata={_FACTS: canonical_json(facts)}))


def read_resume_point(path: Path) -> ResumePoint | None:
    """Return the point that a file holds, or None if there is no file.

    Raises:
        StoreError: The file cannot be read or is not such a point.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            facts = json.loads((file.metadata() or {}).get(_FACTS, "null"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise StoreError(f"cannot read {path}: {describe_os_error(error)}") from error
    except (SafetensorError, ValueError, RecursionError) as error:
        raise StoreError(f"{path} is broken: {' '.join(str(error).split())}") from error
    if not isinstance(facts, dict) or facts.get("format") != RESUME_FORMAT:
        raise StoreError(f"{path} does not have the format {RESUME_FORMAT!r}")
    return ResumePoint(arrays, facts)


def model_state(model: MaskablePPO) -> ResumePoint:
    """Return what a model knows: weights, optimiser, counters, last observation, and the random generators' states."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, tensor in model.policy.state_dict().items():
        arrays[f"policy/{name}"] = tensor.detach().cpu().numpy()
    for place, values in model.policy.optimizer.state_dict()["state"].items():
        for name, value in values.items():
            arrays[f"optimizer/{place}/{name}"] = torch.as_tensor(value).detach().cpu().numpy()
    last = model._last_obs
    if not isinstance(last, dict) or model._last_episode_starts is None:
        raise ValueError("the model has no last observation yet: expected one that has been reset")
    for name, observation in last.items():
        arrays[f"last/{name}"] = observation
    arrays["last_episode_starts"] = model._last_episode_starts
    random_arrays, random_facts = random_state()
    counters = {"num_timesteps": model.num_timesteps, "n_updates": model._n_updates}
    return ResumePoint({**arrays, **random_arrays}, {"model": counters, "random": random_facts})


def restore_model(model: MaskablePPO, point: ResumePoint) -> None:
    """Give a model of the same configuration what `model_state` returned; the random generators too.

    Raises:
        StoreError: The arrays do not fit the model.
    """
    try:
        model.policy.load_state_dict({name: _tensor(array) for name, array in _part(point.arrays, "policy").items()})
        optimizer = model.policy.optimizer
        state: dict[int, dict[str, torch.Tensor]] = {}
        for key, array in _part(point.arrays, "optimizer").items():
            place, _, name = key.partition("/")
            state.setdefault(int(place), {})[name] = _tensor(array)
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        model._last_obs = _part(point.arrays, "last")
        model._last_episode_starts = point.arrays["last_episode_starts"]
        model.num_timesteps = int(point.facts["model"]["num_timesteps"])
        model._n_updates = int(point.facts["model"]["n_updates"])
        set_random_state(point.arrays, point.facts["random"])
    except (KeyError, ValueError, RuntimeError, TypeError) as error:
        raise StoreError(f"{RESUME_FILE} does not fit this training: {' '.join(str(error).split())}") from error


def random_state() -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the states of the generators that stable-baselines3 draws from: NumPy's and torch's global ones."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002
    arrays: dict[str, NDArray[Any]] = {"random/numpy": np.asarray(keys), "random/torch": torch.get_rng_state().numpy()}
    if torch.cuda.is_available():
        for device, state in enumerate(torch.cuda.get_rng_state_all()):
            arrays[f"random/cuda{device}"] = state.numpy()
    facts = {"kind": kind, "position": int(position), "has_gauss": int(has_gauss), "gauss": float(gauss)}
    return arrays, facts


def set_random_state(arrays: Arrays, facts: Mapping[str, Any]) -> None:
    """Put the generators back into the states that `random_state` returned."""
    numbers = (facts["kind"], arrays["random/numpy"], facts["position"], facts["has_gauss"], facts["gauss"])
    np.random.set_state(numbers)  # noqa: NPY002
    torch.set_rng_state(_tensor(arrays["random/torch"]))
    if torch.cuda.is_available():
        for device in range(torch.cuda.device_count()):
            if f"random/cuda{device}" in arrays:
                torch.cuda.set_rng_state(_tensor(arrays[f"random/cuda{device}"]), device)


def _part(arrays: Arrays, part: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of one part, without its prefix."""
    return {name.removeprefix(f"{part}/"): array for name, array in arrays.items() if name.startswith(f"{part}/")}


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.array(array, order="C"))
