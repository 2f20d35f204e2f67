"""Every path of CUDA in eight minutes: trainings, fine-tunings, throughput, parity with the CPU, peak memory.

    python -m benchmarks.gpu --out DIR
    python -m benchmarks.gpu --out DIR --only parity --only throughput
    python -m benchmarks.gpu --out DIR --device cpu --smoke

Each part runs in a process of its own, with a limit of time. What it found is written to DIR/results.json as soon as it
is done, and DIR/gpu.md is the page of it. A part that is in the file is not run again; one that failed is, and does not
keep the others from running. The first form needs a CUDA device, the last one runs everything tiny on the CPU.

Fine-tunings are of the language model that ships, with the prompt type optimal, which needs no retrieval model;
`--base` names another GGUF file of a Llama. Peak memory is what torch has allocated, and what it has reserved.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measurement import this_machine
from resilisim.chat.local import shipped_model_path
from resilisim.envs.workflow.options import WorkflowOptions
from resilisim.errors import ResiliSimError
from resilisim.policies.ppo.between_rollouts.training_parts import TrainingParts
from resilisim.policies.ppo.checkpoint import RESUME_FILE, choose_device, read_resume_point
from resilisim.policies.ppo.config import TrainingConfig, load_config
from resilisim.policies.ppo.network import READ, draw
from resilisim.policies.ppo.training import TrainingProgress, make_environments, make_model, network_of, training_tasks
from resilisim.policies.ppo.training import train as train_policy
from resilisim.provenance import encode_json, package_versions
from resilisim.run_folder import write_file_atomically
from resilisim.tool_library import default_library

RESULTS_FILE, PAGE_FILE, RUNS_FOLDER = "results.json", "gpu.md", "runs"
MINUTES = 8.0
TAIL = 2_000  # characters of a failed part's output
MOST_MEMORY = 16 * 2**30  # bytes of a small GPU, in which a training goes on
PACKAGES = ("torch", "stable-baselines3", "sb3-contrib", "numba", "numpy", "gymnasium", "transformers", "peft")
NOT_MEASURED = "not measured"
TINY_NETWORK = ("width=16", "heads=2", "layers=1")
TINY_RUN = (
    *("tasks=40", "num_envs=16", "rollout_steps=4", "batch_size=32", "validation_tasks=4", "validation_episodes=2"),
    *("max_minutes=none", "max_steps=128", "evaluate_every=64", "checkpoint_every=64"),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and how large the parts are.

    Attributes:
        device: cuda or cpu.
        smoke: Whether everything is tiny.
        runs: Folder for the trainings' folders.
        base: GGUF file of the language model; None for the one that ships.
    """

    device: str
    smoke: bool
    runs: Path
    base: Path | None

    def ppo(self, preset: str, *settings: str) -> TrainingConfig:
        """Return the configuration of a training on the device."""
        tiny = (*TINY_RUN, *TINY_NETWORK) if self.smoke else ()
        return load_config(preset, settings=(*settings, *tiny), device=self.device)

    @property
    def torch_device(self) -> torch.device:
        """The device."""
        return choose_device(self.device)

    @property
    def base_path(self) -> Path:
        """The file of the language model."""
        return shipped_model_path() if self.base is None else self.base

    def synchronize(self) -> None:
        """Wait until the device has done what it was told."""
        if self.device == "cuda":
            torch.cuda.synchronize()


# --- policies ---


def parity(setting: Setting) -> dict[str, Any]:
    """Compare logits, values and one whole update of PPO with those of the CPU in float32."""
    config = setting.ppo("quick")
    tasks, _ = training_tasks(config, default_library())
    options = WorkflowOptions(tasks=tasks)

    def model_on(device: torch.device, autocast: bool) -> Any:
        model = make_model(config, make_environments(config, options), TrainingParts(config), device)
        network_of(model).autocast = autocast
        return model

    reference = model_on(torch.device("cpu"), False)
    _, callback = reference._setup_learn(0, None, reset_num_timesteps=False)
    reference.collect_rollouts(reference.env, callback, reference.rollout_buffer, config.rollout_steps)
    before = copy.deepcopy(reference.policy.state_dict())
    first = _weights(reference)
    shown = {name: array.reshape(-1, *array.shape[2:]) for name, array in reference.rollout_buffer.observations.items()}
    found: dict[str, Any] = {"samples": len(shown["tools"])}
    outputs, weights = {}, {}
    for name, device, autocast in (
        ("CPU float32", torch.device("cpu"), False),
        ("float32", setting.torch_device, False),
        ("bfloat16", setting.torch_device, True),
    ):
        model = model_on(device, autocast)
        model.policy.load_state_dict(before)
        network = network_of(model)
        with torch.inference_mode():
            given = {key: torch.as_tensor(array, device=device) for key, array in shown.items() if key in READ}
            outputs[name] = network(**given).cpu().double()
        buffer = copy.deepcopy(reference.rollout_buffer)
        buffer.device = device
        model.rollout_buffer = buffer
        model.set_logger(_no_logger())
        np.random.seed(0)  # noqa: NPY002 - the order of the batches is drawn from it
        model.train()
        weights[name] = _weights(model)
    moved = (weights["CPU float32"] - first).norm()
    legal = torch.from_numpy(reference.rollout_buffer.action_masks.reshape(len(shown["tools"]), -1) != 0)
    for name in ("float32", "bfloat16"):
        apart = (outputs[name] - outputs["CPU float32"]).abs()
        chosen = [outputs[one][:, :-1].masked_fill(~legal, -torch.inf).argmax(-1) for one in (name, "CPU float32")]
        found[name] = {
            "largest difference of logits": float(apart[:, :-1].max()),
            "largest difference of values": float(apart[:, -1].max()),
            "share of states with the same most probable action": float((chosen[0] == chosen[1]).double().mean()),
            "largest difference of weights after an update": float(
                (weights[name] - weights["CPU float32"]).abs().max()
            ),
            "difference of weights as a share of what the update moved": float(
                (weights[name] - weights["CPU float32"]).norm() / moved
            ),
        }
    probabilities = torch.tensor([[0.0, 0.5, 0.5, 0.0]], device=setting.torch_device).expand(10_000, 4)
    found["share of the second of two equal actions"] = float((draw(probabilities) == 2).double().mean())
    return found


def _weights(model: Any) -> torch.Tensor:
    return torch.cat([weight.detach().cpu().double().flatten() for weight in network_of(model).parameters()])


def throughput(setting: Setting) -> dict[str, Any]:
    """Measure environment steps a second, in rollouts, in updates and in both, by environments side by side."""
    sizes: tuple[int, ...] = (16, 32) if setting.smoke else (64, 256, 1024, 4096)
    ways = [(preset, setting.device, autocast, sizes) for preset in ("quick", "gpu") for autocast in (True, False)]
    if setting.device == "cuda":
        ways += [("quick", "cpu", False, sizes[:3]), ("gpu", "cpu", False, sizes[1:2])]  # more would take minutes
    seconds = 0.2 if setting.smoke else 1.0
    rows = []
    for preset, device, autocast, some in ways:
        for size in some:
            rows.append(_throughput(setting, preset, device, autocast, size, seconds))
            print(rows[-1], flush=True)
    return {"rows": rows}


def _throughput(
    setting: Setting, preset: str, device: str, autocast: bool, num_envs: int, seconds: float
) -> dict[str, Any]:
    config = setting.ppo(preset).model_copy(
        update={"num_envs": num_envs, "rollout_steps": 16, "batch_size": min(4096, 16 * num_envs), "num_threads": 4}
    )
    torch.set_num_threads(config.num_threads)
    tasks, _ = training_tasks(config, default_library())
    model = make_model(
        config, make_environments(config, WorkflowOptions(tasks=tasks)), TrainingParts(config), choose_device(device)
    )
    network_of(model).autocast = autocast
    model.set_logger(_no_logger())
    _, callback = model._setup_learn(0, None, reset_num_timesteps=False)
    env: Any = model.env

    def turn() -> tuple[float, float]:
        began = time.perf_counter()
        model.collect_rollouts(env, callback, model.rollout_buffer, config.rollout_steps)
        setting.synchronize()
        between = time.perf_counter()
        model.train()
        setting.synchronize()
        return between - began, time.perf_counter() - between

    turn()  # compiles, and warms the device up
    times = [turn()]
    while sum(map(sum, times)) < seconds:
        times.append(turn())
    rollout, update = np.median(times, axis=0)
    steps = num_envs * config.rollout_steps
    return {
        "network": f"{config.width} wide, {config.layers} layers",
        "device": device,
        "precision": "bfloat16" if autocast else "float32",
        "environments": num_envs,
        "rollouts, steps/s": steps / rollout,
        "updates, steps/s": steps / update,
        "both, steps/s": steps / (rollout + update),
        "turns": len(times),
    }


def train_quick(setting: Setting) -> dict[str, Any]:
    """Train with the preset quick."""
    return _trained(setting, "quick", 0.5)


def train_gpu(setting: Setting) -> dict[str, Any]:
    """Train with the preset gpu."""
    return _trained(setting, "gpu", 1.0)


def _trained(setting: Setting, preset: str, minutes: float) -> dict[str, Any]:
    config = setting.ppo(preset, f"max_minutes={minutes}")
    latest: list[TrainingProgress] = []
    result = train_policy(config, setting.runs / f"train-{preset}", latest.append)
    about = json.loads((result.directory / "policy.json").read_text(encoding="utf-8"))["provenance"]
    return {
        "steps": result.steps,
        "minutes": result.minutes,
        "ended because": result.reason,
        "share of V* on validation tasks": result.best.share,
        "after steps": result.best.steps,
        "steps/s, median rollout": float(np.median([one.steps_per_second for one in latest if one.steps_per_second])),
        "computed": f"{about['arguments']['computed_on']}, {about['arguments']['computed_in']}",
        "evaluations": _evaluations(latest),
    }


def _evaluations(latest: Sequence[TrainingProgress]) -> list[dict[str, Any]]:
    """Return eight evaluations at most, evenly spread; each one stands in the progress of many updates."""
    every = {one.latest.steps: asdict(one.latest) for one in latest if one.latest is not None}
    rows = [{name: value for name, value in row.items() if value != {}} for row in every.values()]
    places = np.linspace(0, len(rows) - 1, min(8, len(rows))).round().astype(int)
    return [rows[place] for place in places]


def resume(setting: Setting) -> dict[str, Any]:
    """Stop a training between two points, resume it, and compare it with one that was never stopped."""
    tiny = Setting(setting.device, True, setting.runs, setting.base)
    config = tiny.ppo("paper", "imitation_updates=2")

    class Stopped(Exception):
        pass

    def stop(progress: TrainingProgress) -> None:
        if progress.steps >= 112:
            raise Stopped

    whole, parts = setting.runs / "whole", setting.runs / "parts"
    train_policy(config, whole)
    with contextlib.suppress(Stopped):
        train_policy(config, parts, stop)
    again = train_policy(config, parts)
    points = [read_resume_point(folder / RESUME_FILE) for folder in (whole, parts)]
    arrays = [point.arrays for point in points if point is not None]
    weights = [
        np.concatenate([array.ravel() for name, array in sorted(one.items()) if name[:7] == "policy/"])
        for one in arrays
    ]
    apart = float(np.abs(weights[0] - weights[1]).max())
    return {
        "steps": again.steps,
        "generator of the device is kept": "random/cuda" in arrays[0],
        "largest difference of weights": apart,
        "equal to the bit": apart == 0.0,
    }


def _no_logger() -> Any:
    from stable_baselines3.common.logger import Logger

    return Logger(None, [])


# --- language models ---


def _finetuning(setting: Setting, name: str, *settings: str) -> dict[str, Any]:
    from resilisim.finetuning.config import load_config as load_finetuning
    from resilisim.finetuning.training import Standing
    from resilisim.finetuning.training import train as finetune

    tiny = (
        "train_tasks=3",
        "batch_size=2",
        "micro_batch=2",
        "validation_tasks=1",
        "rank=2",
        "alpha=4",
        "epochs=1",
        "message_tokens=3",
    )
    plain = ("prompts=optimal", "laws=benchmark", "rename_tools=0", "random_libraries=0", "react=0", "evaluate_every=0")
    sizes = ("batch_size=32", "micro_batch=8")
    chosen = [*plain, *sizes, *settings, *(tiny if setting.smoke else ())]
    if setting.device == "cpu":
        chosen.append("precision=float32")
    config = load_finetuning("gpu", settings=chosen, device=setting.device)
    told: list[Standing] = []
    began = time.monotonic()
    reached = finetune(config, setting.runs / name, told.append, setting.base)
    return {
        "steps": reached.step,
        "samples": reached.num_samples,
        "tokens": reached.num_tokens,
        "seconds of training": reached.seconds,
        "seconds of all": time.monotonic() - began,
        "tokens/s": reached.tokens_per_second,
        "loss, first and last step": [told[0].loss, told[-1].loss] if told else [],
        "success on validation tasks": reached.success,
        "share of V* there": reached.share,
    }


def sft(setting: Setting) -> dict[str, Any]:
    """Fine-tune on 200 demonstrations, and validate on the device."""
    return _finetuning(setting, "sft", "train_tasks=200", "train_episodes=1", "epochs=2", "validation_tasks=50")


def _start(setting: Setting) -> list[str]:
    """Return the setting that goes on from the adapter of the part sft, if it is there."""
    folder = setting.runs / "sft"
    if not (folder / "adapter.gguf").is_file():
        return []
    return [f"start={folder}"]


def dagger(setting: Setting) -> dict[str, Any]:
    """Learn from episodes of its own in which the optimum speaks where the model errs."""
    few = ("stage=dagger", "train_tasks=48", "train_episodes=1", "epochs=1", "batch_size=24", "validation_tasks=20")
    return _finetuning(setting, "dagger", *few, "learning_rate=0.0002", *_start(setting))


def dpo(setting: Setting) -> dict[str, Any]:
    """Learn from preferences by Q*."""
    few = ("stage=dpo", "train_tasks=16", "train_episodes=1", "epochs=1", "batch_size=32", "validation_tasks=10")
    return _finetuning(setting, "dpo", *few, "learning_rate=0.00005", *_start(setting))


def grpo(setting: Setting) -> dict[str, Any]:
    """Learn from episodes of its own by exact advantages."""
    few = ("stage=grpo", "train_tasks=16", "train_episodes=1", "epochs=1", "batch_size=16", "validation_tasks=10")
    return _finetuning(setting, "grpo", *few, "group_size=2", "learning_rate=0.0001", *_start(setting))


def lm_memory(setting: Setting) -> dict[str, Any]:
    """Measure the peak memory of the longest conversations by how many are learned from at once, without and in 16 GB.

    Conversations are of drawn tokens, as long as the longest of the benchmark's.
    """
    from resilisim.finetuning.adapted_model import add_adapter, load_base
    from resilisim.finetuning.config import load_config as load_finetuning

    config = load_finetuning("gpu", device=setting.device)
    model = add_adapter(load_base(setting.base_path, config.precision), config).to(setting.device)
    length, sizes = (64, (1, 2)) if setting.smoke else (2048, (1, 4, 8, 16, 32))
    rows = []
    for size in sizes:
        rows.append(_lm_step(setting, model, length, size))
        print(rows[-1], flush=True)
    found: dict[str, Any] = {"rows": rows}
    if setting.device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(min(1.0, MOST_MEMORY / total))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            row = _lm_step(setting, model, length, sizes[-1])
        found["in 16 GB, 32 at once"] = row | {"warnings": [str(one.message) for one in caught]}
    return found


def _lm_step(setting: Setting, model: Any, length: int, num_samples: int) -> dict[str, Any]:
    from resilisim.finetuning.decoder import Decoder
    from resilisim.finetuning.examples import Example
    from resilisim.finetuning.memory import SideBySide
    from resilisim.finetuning.training import log_probabilities

    draws, vocabulary = np.random.default_rng(0), int(model.config.vocab_size)
    is_learned = np.arange(length) % 8 == 0  # about as many as in demonstrations
    samples = [(Example(draws.integers(0, vocabulary, length), is_learned),) for _ in range(num_samples)]

    decoder = Decoder(model)

    def backward(size: int) -> int:
        model.zero_grad()
        for first in range(0, num_samples, size):
            loss = -log_probabilities(decoder, samples[first : first + size], setting.device).sum()
            torch.autograd.backward(loss)
        return size

    backward(1)
    setting.synchronize()
    if setting.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    size = SideBySide("conversations", num_samples, "micro_batch").attempt(backward, num_samples)
    setting.synchronize()
    seconds = time.perf_counter() - began
    return {
        "tokens of each": length,
        "at once": num_samples,
        "at once in the end": size,
        "tokens/s": num_samples * length / seconds,
        **peak_memory(setting.device),
    }


def lm_parity(setting: Setting) -> dict[str, Any]:
    """Compare log p of learned tokens, and their gradient, with those of the CPU in float32."""
    from resilisim.finetuning.adapted_model import adapter_arrays, add_adapter, load_base, set_adapter
    from resilisim.finetuning.config import Kind
    from resilisim.finetuning.config import load_config as load_finetuning
    from resilisim.finetuning.decoder import Decoder
    from resilisim.finetuning.examples import Encoder
    from resilisim.finetuning.lessons import drawn_tasks
    from resilisim.finetuning.training import log_probabilities

    config = load_finetuning("gpu", settings=["prompts=optimal", "train_episodes=1"])
    base = setting.base_path
    source = config.dataset(Kind(config.laws[0])).make(default_library())
    records = [record for task in drawn_tasks(config, "train", 2) for record in source.records(task)]
    samples = Encoder(base, config.plan_margin).samples(records)
    found: dict[str, Any] = {"tokens": sum(len(example.tokens) for (example,) in samples)}
    means, gradients = {}, {}
    arrays: dict[str, Any] = {}
    loaded = load_base(base, "float32")
    for name, device, precision in (
        ("CPU float32", "cpu", "float32"),
        ("float32", setting.device, "float32"),
        ("bfloat16", setting.device, "bfloat16"),
    ):
        of_precision = config.model_copy(update={"precision": precision})
        model = add_adapter(copy.deepcopy(loaded).to(getattr(torch, precision)), of_precision)
        if not arrays:
            draws = np.random.default_rng(0)
            arrays = {key: draws.normal(0.0, 0.02, array.shape) for key, array in adapter_arrays(model).items()}
        set_adapter(model, {key: array.astype(np.float32) for key, array in arrays.items()})
        model.to(device)
        said = log_probabilities(Decoder(model), samples, device)
        torch.autograd.backward(said.sum())
        means[name] = said.detach().cpu().double().flatten() / torch.tensor(
            [float(example.is_learned.sum()) for (example,) in samples]
        )
        gradients[name] = torch.cat(
            [weight.grad.cpu().double().flatten() for weight in model.parameters() if weight.grad is not None]
        )
    for name in ("float32", "bfloat16"):
        apart = gradients[name] - gradients["CPU float32"]
        found[name] = {
            "largest difference of mean log p, nats": float((means[name] - means["CPU float32"]).abs().max()),
            "difference of gradients as a share": float(apart.norm() / gradients["CPU float32"].norm()),
        }
    return found


# --- what runs them ---


@dataclass(frozen=True, slots=True)
class Part:
    """One of the parts.

    Attributes:
        work: What it does; its docstring says it in a line.
        seconds: Its limit.
    """

    work: Callable[[Setting], dict[str, Any]]
    seconds: float


PARTS: Mapping[str, Part] = {
    "parity": Part(parity, 120),
    "resume": Part(resume, 60),
    "train-quick": Part(train_quick, 100),
    "train-gpu": Part(train_gpu, 130),
    "sft": Part(sft, 120),
    "lm-memory": Part(lm_memory, 75),
    "lm-parity": Part(lm_parity, 75),
    "dagger": Part(dagger, 90),
    "throughput": Part(throughput, 120),
    "dpo": Part(dpo, 90),
    "grpo": Part(grpo, 120),
}


def peak_memory(device: str) -> dict[str, float]:
    """Return the peak memory of this process on a GPU, in GiB; nothing on a CPU."""
    if device != "cuda":
        return {}
    return {
        "peak GiB allocated": torch.cuda.max_memory_allocated() / 2**30,
        "peak GiB reserved": torch.cuda.max_memory_reserved() / 2**30,
    }


def run_part(name: str, setting: Setting, target: Path) -> int:
    """Run one part in this process, and write what it found; a failure tells on standard error and returns 1."""
    began = time.monotonic()
    try:
        found = PARTS[name].work(setting)
    except Exception:
        traceback.print_exc()
        return 1
    told = {"found": found, "seconds": time.monotonic() - began, **peak_memory(setting.device)}
    write_file_atomically(target, encode_json(told, indent=1))
    return 0


def outcome_of(name: str, setting: Setting, limit: float) -> dict[str, Any]:
    """Run one part in a process of its own, and return what it found, or how it failed."""
    target = setting.runs / f"{name}.json"
    target.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu", "--part", name, "--out", str(setting.runs.parent)]
    command += ["--device", setting.device, *(["--smoke"] if setting.smoke else [])]
    command += ["--base", str(setting.base)] if setting.base is not None else []
    log = setting.runs / f"{name}.log"
    began = time.monotonic()
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if code == 0 and target.is_file():
        told: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
        return told
    said = log.read_text(encoding="utf-8", errors="replace")[-TAIL:]
    why = f"was ended after {limit:.0f} s" if code is None else f"ended with {code}"
    return {"failed": why, "output": said, "seconds": time.monotonic() - began}


def machine_facts(device: str) -> dict[str, Any]:
    """Return what was measured on."""
    facts: dict[str, Any] = {"machine": this_machine().to_text(), "device": device}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        facts |= {"gpu": properties.name, "GiB": properties.total_memory / 2**30, "CUDA": torch.version.cuda}
    return facts | {"versions": package_versions(PACKAGES)}


# --- the page ---


def page(results: Mapping[str, Any]) -> str:
    """Return the page of results in Markdown; what is missing is not measured."""
    about, parts = results.get("about", {}), results.get("parts", {})
    lines = ["# On a GPU", "", *_flowing(INTRODUCTION), "", "    python -m benchmarks.gpu --out DIR", ""]
    if about:
        lines += [f"{about.get('gpu', about['device'])}; {', '.join(_machine_lines(about))}.", ""]
    lines += ["| part | seconds | peak memory (GiB) | |", "|---|---|---|---|"]
    for name, part in PARTS.items():
        told = parts.get(name)
        what = str(part.work.__doc__).splitlines()[0].rstrip(".")
        memory = "" if told is None else _number(told.get("peak GiB allocated", ""))
        state = NOT_MEASURED if told is None else f"failed: {told['failed']}" if "failed" in told else ""
        seconds = "" if told is None else f"{told['seconds']:.0f}"
        lines.append(f"| {name}: {what} | {seconds} | {memory} | {state} |")
    for name in PARTS:
        told = parts.get(name, {})
        if "found" in told:
            lines += ["", f"## {name}", "", *_shown(told["found"])]
    return "\n".join(lines) + "\n"


INTRODUCTION = (
    "Every path of CUDA, once: trainings of policies and of the language model, throughput, how far numbers lie from "
    "those of the CPU in float32, and peak memory. Each row of the table is one part of the command, in a process of "
    "its own."
)


def _flowing(text: str, width: int = 120) -> list[str]:
    lines = [""]
    for word in text.split():
        lines[-1] = f"{lines[-1]} {word}".strip() if len(lines[-1]) + len(word) < width else lines[-1]
        if not lines[-1].endswith(word):
            lines.append(word)
    return lines


def _machine_lines(about: Mapping[str, Any]) -> Iterator[str]:
    yield str(about["machine"]).splitlines()[0].split(", Linux")[0]
    yield from (f"{name} {number}" for name, number in about["versions"].items())


def _shown(found: Mapping[str, Any]) -> list[str]:
    """Return figures as tables: one of single values, and one of each list of rows."""
    lines: list[str] = []
    plain = {name: value for name, value in found.items() if not isinstance(value, Mapping | list)}
    groups = {name: value for name, value in found.items() if isinstance(value, Mapping)}
    if plain:
        lines += ["| | |", "|---|---|", *(f"| {name} | {_number(value)} |" for name, value in plain.items()), ""]
    for name, group in groups.items():
        lines += [f"| {name} | |", "|---|---|", *(f"| {key} | {_number(value)} |" for key, value in group.items()), ""]
    for name, rows in found.items():
        if isinstance(rows, list) and rows and isinstance(rows[0], Mapping):
            columns = list(rows[0])
            lines += [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
            lines += [f"| {' | '.join(_number(row.get(column, '')) for column in columns)} |" for row in rows] + [""]
        elif isinstance(rows, list):
            lines += [f"{name}: {', '.join(_number(row) for row in rows)}", ""]
    return lines[:-1] if lines and not lines[-1] else lines


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "; ".join(map(str, value)) if isinstance(value, list) else str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 0.1 else f"{value:.3f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing; return 1 if a part failed, 2 where there is no device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for results, page and the trainings' folders")
    parser.add_argument("--only", action="append", choices=list(PARTS), help="a part to run; again for more")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu goes with --smoke")
    parser.add_argument("--smoke", action="store_true", help="everything tiny, to see that it runs")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="limit of all parts together")
    parser.add_argument("--base", type=Path, help="GGUF file of a Llama; the model that ships if left out")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)  # this process is that of a part
    given = parser.parse_args(arguments)
    if given.device == "cpu" and not given.smoke:
        parser.error("--device cpu measures nothing of a GPU: expected --smoke with it")
    try:
        choose_device(given.device)
    except ResiliSimError as error:
        print(f"{error}; --device cpu --smoke runs everything tiny without one", file=sys.stderr)
        return 2
    setting = Setting(given.device, given.smoke, given.out.resolve() / RUNS_FOLDER, given.base)
    setting.runs.mkdir(parents=True, exist_ok=True)
    if given.part:
        return run_part(given.part, setting, setting.runs / f"{given.part}.json")
    return run_all(setting, given.out, given.only or list(PARTS), given.minutes)


def run_all(setting: Setting, out: Path, names: Sequence[str], minutes: float) -> int:
    """Run those of some parts that are missing, one after the other, until the minutes are over."""
    file = out / RESULTS_FILE
    results: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"parts": {}}
    results["about"] = {**machine_facts(setting.device), "smoke": setting.smoke}
    began = time.monotonic()
    for name in names:
        if "found" in results["parts"].get(name, {}):
            print(f"{name}: is there", flush=True)
            continue
        left = 60.0 * minutes - (time.monotonic() - began)
        if left < 10.0:
            print(f"{name}: no time is left", flush=True)
            continue
        told = outcome_of(name, setting, min(PARTS[name].seconds, left))
        results["parts"][name] = told
        write_file_atomically(file, encode_json(results, indent=1) + b"\n")
        write_file_atomically(out / PAGE_FILE, page(results).encode())
        print(f"{name}: {told.get('failed', 'done')}, {told['seconds']:.0f} s", flush=True)
        if "failed" in told:
            print(told["output"], flush=True)
    return int(any("found" not in results["parts"].get(name, {}) for name in names))


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    raise SystemExit(main())
