"""Fine-tuning an adapter: batches of samples in a drawn order, and between two of them everything else.

Samples are conversations (sft), pairs (dpo), or beginnings of episodes, which the model plays before it learns (dagger,
grpo).

On a CPU a run is a function of its configuration: the same seed and number of threads give the same adapter to the bit,
also if it was killed and resumed on the way. What it leaves in its folder: `adapter_model.safetensors` and
`adapter_config.json` (for peft), `adapter.gguf` (for llama.cpp: `--model local:DIR`), `progress.jsonl` (a line for each
evaluation), `tensorboard/`, `manifest.json`, `resume.safetensors`, and `data/`, the conversations or pairs with
their card, if it learns from such (`data-2` those of a second kind, as under another law, and so on).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.tensorboard import SummaryWriter

from resilisim.chat.local import adapter_path, shipped_model_path
from resilisim.chat.local.gguf import fingerprint, model_fingerprint
from resilisim.errors import InvalidInputError, MissingExtraError, StoreError, one_line
from resilisim.finetuning.adapted_model import (
    adapter_arrays,
    add_adapter,
    check_size,
    load_base,
    set_adapter,
    start_from,
    write_adapter,
)
from resilisim.finetuning.adapter_validation import validate, validate_in_process
from resilisim.finetuning.config import FinetuningConfig
from resilisim.finetuning.decoder import Decoder
from resilisim.finetuning.examples import Encoder, Sample, packed
from resilisim.finetuning.lessons import drawn_tasks, lessons
from resilisim.finetuning.memory import SideBySide
from resilisim.finetuning.sampling import Sampler, credits_of
from resilisim.policies.ppo.checkpoint import ResumePoint, TrainingFolder, choose_device, part_of
from resilisim.policies.ppo.network import torch_threads
from resilisim.provenance import describe_os_error
from resilisim.tasks.benchmark import benchmark_of
from resilisim.tool_library import default_library

TENSORBOARD_FOLDER = "tensorboard"
RECORDED_PACKAGES = ("transformers", "peft")  # whose versions its manifest names
_NO_MARGINS = np.zeros(0, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a run is."""

    step: int = 0
    num_steps: int = 0
    num_tokens: int = 0  # of what was read, not only learned; of episodes that were played, all
    num_samples: int = 0  # conversations, pairs or episodes
    seconds: float = 0.0  # of training without evaluations, over all resumed parts
    # Of the latest batch: mean nats of learned tokens (sft, dagger) or pairs (dpo), mean of V* given away (grpo).
    loss: float | None = None
    evaluated_at: int = -1
    success: float | None = None  # on validation tasks, at the latest evaluation
    share: float | None = None  # of V* there, luck removed
    shares: Mapping[str, float] = field(default_factory=dict)  # by prompt type, of its ceiling
    optimum: float | None = None  # V* there

    @property
    def tokens_per_second(self) -> float:
        """Mean speed of training so far; 0 before the first step."""
        return self.num_tokens / self.seconds if self.seconds else 0.0


def train(
    config: FinetuningConfig,
    out: Path | str,
    report: Callable[[Standing], None] | None = None,
    base: Path | None = None,
    prepared: Callable[[int], None] | None = None,
) -> Standing:
    """Fine-tune an adapter, or go on with a run of the same configuration that was stopped in the folder `out`.

    Args:
        config: The settings.
        out: The folder.
        report: Called after each step.
        base: GGUF file of a Llama; the SmolLM2 that ships if omitted.
        prepared: Called before the first step, now and then, with the number of tasks that there are lessons of.

    Raises:
        InvalidInputError: A setting makes no sense, or the start is no adapter of the base.
        MissingExtraError: The base model's package is not installed.
        StoreError: The folder holds something else, or cannot be written.
    """
    path = shipped_model_path() if base is None else base
    start = adapter_path(config.start, path) if config.start else None
    _check(config, start)  # before the folder becomes that of this run
    arguments = {
        "finetuning": config.to_mapping(),
        "base": model_fingerprint(path),
        "start": None if start is None else fingerprint([start]),
        "benchmark": benchmark_of(config.tasks),
        "library": default_library().content_hash,
    }
    device = choose_device(config.device)
    try:
        with (
            torch_threads(config.num_threads),
            TrainingFolder(Path(out), arguments, device, RECORDED_PACKAGES) as folder,
        ):
            return _Run(config, folder, path, start, report or (lambda standing: None)).play(prepared)
    except OSError as error:
        raise StoreError(f"cannot write {out}: {describe_os_error(error)}") from error


def _check(config: FinetuningConfig, start: Path | None) -> None:
    """Refuse what this machine, the start or the tasks do not allow."""
    choose_device(config.device)
    for split in ("train", "validation"):
        drawn_tasks(config, split, 1)
    if start is not None:
        check_size(start, config.rank, config.alpha)


def batch_places(sizes: Sequence[int], config: FinetuningConfig) -> list[NDArray[np.int64]]:
    """Return the places of the samples of every step: each pass in an order of its own, the last batch a short one.

    Args:
        sizes: How many samples each group has; groups stand in one batch, as they share what they begin with.
        config: The settings.
    """
    batches: list[NDArray[np.int64]] = []
    groups = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    for epoch in range(config.epochs):
        batch: list[NDArray[np.int64]] = []
        for group in np.random.default_rng((config.seed, epoch)).permutation(len(groups)):
            batch.append(groups[group])
            if sum(map(len, batch)) >= config.starts_per_step:
                batches.append(np.concatenate(batch))
                batch = []
        if batch:
            batches.append(np.concatenate(batch))
    return batches


def log_probabilities(decoder: Decoder, samples: Sequence[Sample], device: str = "cpu") -> torch.Tensor:
    """Return log p of the learned tokens of each example by their credit, (num_samples, examples of each).

    Only for learned tokens a vocabulary of logits is computed.
    """
    examples = [example for sample in samples for example in sample]
    together = packed(examples, device)
    hidden = decoder.hidden(together.tokens, together.spans)
    logits = decoder.logits(hidden[together.places])
    each = -torch.nn.functional.cross_entropy(logits.float(), together.labels, reduction="none")
    each = each * torch.from_numpy(np.concatenate([example.learned_credit for example in examples])).to(each)
    sums = torch.zeros(len(examples), device=each.device).index_add(0, together.rows, each)
    return sums.reshape(len(samples), -1)


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """What one step learns from."""

    samples: Sequence[Sample]
    num_parts: int  # that the loss is a mean over
    num_tokens: int  # read or played
    num_samples: int
    margins: NDArray[np.float32] = field(default_factory=lambda: _NO_MARGINS)  # of pairs
    told: Mapping[str, float] = field(default_factory=dict)  # of episodes that were played


class _Run:
    """A run from where it stands to its end."""

    def __init__(
        self,
        config: FinetuningConfig,
        folder: TrainingFolder,
        base: Path,
        start: Path | None,
        report: Callable[[Standing], None],
    ) -> None:
        self._config, self._folder, self._base, self._start, self._report = config, folder, base, start, report
        self._at = Standing() if folder.point is None else Standing(**folder.point.facts["run"])
        self._device = choose_device(config.device).type
        self._micro_batch = SideBySide("conversations", config.micro_batch, "micro_batch")
        self._sampler: Sampler | None = None

    def play(self, prepared: Callable[[int], None] | None) -> Standing:
        if self._folder.point is not None and self._at.step == self._at.num_steps:
            return self._at
        self._model = add_adapter(load_base(self._base, self._config.precision), self._config).to(self._device)
        self._decoder = Decoder(self._model)
        directory = self._folder.directory
        encoder = self._encoder = Encoder(self._base, self._config.plan_margin)
        if self._config.stage in ("dagger", "grpo"):
            self._sampler = Sampler(self._model, encoder, self._config, self._device)
            self._openings = self._sampler.openings(drawn_tasks(self._config, "train", self._config.train_tasks))
            sizes = [1] * len(self._openings)
        else:
            groups = [encoder.samples(records) for records in lessons(self._config, directory, prepared)]
            self._samples = [sample for group in groups for sample in group]
            of_pairs = self._config.stage == "dpo"  # a pair shares with nobody but itself what it begins with
            sizes = [1] * len(self._samples) if of_pairs else [len(group) for group in groups if group]
        if not sizes:
            raise InvalidInputError(
                f"stage {self._config.stage!r} found nothing to learn in {self._config.train_tasks} tasks: expected "
                "more tasks, other prompts, or a smaller min_margin"
            )
        batches = batch_places(sizes, self._config)
        self._at = replace(self._at, num_steps=len(batches))
        self._validation = drawn_tasks(self._config, "validation", self._config.validation_tasks)
        self._weights = [weight for weight in self._model.parameters() if weight.requires_grad]
        self._optimizer = torch.optim.AdamW(self._weights, weight_decay=0.0)
        if self._folder.point is not None:
            self._restore(self._folder.point)
        else:
            if self._start is not None:
                start_from(self._model, self._start)
            self._margins = self._starting_margins() if self._config.stage == "dpo" else _NO_MARGINS
            self._write_point()
        purge_step = self._at.step + 1  # what a killed run wrote behind its last point is written again
        with SummaryWriter(str(self._folder.directory / TENSORBOARD_FOLDER), purge_step=purge_step) as log:
            self._log = log
            for places in batches[self._at.step :]:
                self._step(places)
                if self._at.step == len(batches) or self._is_due(self._config.evaluate_every):
                    self._evaluate()
                if self._at.step == len(batches) or self._is_due(self._config.checkpoint_every):
                    self._write_point()
                self._report(self._at)
        return self._at

    def _is_due(self, every: int) -> bool:
        return every > 0 and self._at.step % every == 0

    def _step(self, places: NDArray[np.int64]) -> None:
        began = time.monotonic()
        rate = self._config.learning_rate_at(self._at.step, self._at.num_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        batch = self._batch(places) if self._sampler is None else self._played(self._sampler, places)
        total = self._micro_batch.attempt(lambda size: self._backward(batch, size), len(batch.samples))
        torch.nn.utils.clip_grad_norm_(self._weights, self._config.max_gradient_norm)
        self._optimizer.step()  # leaves weights alone that have no gradient, as where no message of a batch has credit
        self._at = replace(
            self._at,
            step=self._at.step + 1,
            num_tokens=self._at.num_tokens + batch.num_tokens,
            num_samples=self._at.num_samples + batch.num_samples,
            seconds=self._at.seconds + time.monotonic() - began,
            loss=batch.told.get("regret", total),
        )
        metrics = {"loss": total, "learning_rate": rate, "tokens_per_second": self._at.tokens_per_second, **batch.told}
        for name, value in metrics.items():
            self._log.add_scalar(f"train/{name}", value, self._at.step)

    def _backward(self, batch: _Batch, micro_batch: int) -> float:
        """Put the gradient of a batch's loss into the weights, so many samples at a time, and return the loss."""
        self._optimizer.zero_grad()  # an attempt that memory did not hold may have left a part
        losses = []
        for first in range(0, len(batch.samples), micro_batch):
            some = slice(first, first + micro_batch)
            part = self._loss_sum(batch.samples[some], batch.margins[some]) / batch.num_parts
            torch.autograd.backward(part)
            losses.append(part.detach())
        return sum(map(float, losses))  # here at last the host waits for the device

    def _batch(self, places: NDArray[np.int64]) -> _Batch:
        """Return the conversations or pairs at some places."""
        samples = [self._samples[place] for place in places]
        examples = [example for sample in samples for example in sample]
        learned = sum(int(example.is_learned[1:].sum()) for example in examples)
        num_tokens = sum(len(example.tokens) for example in examples)
        if self._config.stage == "dpo":
            return _Batch(samples, len(samples), num_tokens, len(samples), self._margins[places])
        return _Batch(samples, learned, num_tokens, len(samples))

    def _played(self, sampler: Sampler, places: NDArray[np.int64]) -> _Batch:
        """Play the episodes that begin at some places, in groups several times each, and return what they teach.

        Episodes in which no message has a credit are left out; the loss is a mean over all, with a teacher over all
        learned tokens.
        """
        config = self._config
        times = config.group_size if config.stage == "grpo" else 1
        openings = [self._openings[place] for place in places for _ in range(times)]
        played = sampler.play(openings, config.seed, self._at.step)
        num_tokens = sum(len(episode.tokens) for episode in played)
        metrics = {}
        if config.stage == "dagger":
            lessons = [episode.learned(np.asarray(episode.is_lesson, dtype=np.float64)) for episode in played]
            examples = [example for example in lessons if example is not None]
            num_parts = sum(len(example.learned_credit) for example in examples)
            num_messages = sum(len(episode.values) for episode in played)
            metrics["mistakes"] = sum(episode.num_mistakes for episode in played) / num_messages
        else:
            credits = credits_of(played, config.credit, config.group_size)
            credited = [episode.learned(credit) for episode, credit in zip(played, credits, strict=True)]
            examples = [example for example in credited if example is not None]
            num_parts = len(played)
            metrics["regret"] = float(np.mean([episode.regrets.sum() for episode in played]))
            metrics["share"] = 1.0 - metrics["regret"] / float(np.mean([episode.values[0] for episode in played]))
            metrics["success"] = float(np.mean([episode.outcome for episode in played]))
            chances = np.concatenate([episode.log_probabilities[episode.message >= 0] for episode in played])
            metrics["entropy"] = float(-chances.mean())
        return _Batch([(example,) for example in examples], num_parts, num_tokens, len(played), told=metrics)

    def _loss_sum(self, samples: Sequence[Sample], margins: NDArray[np.float32]) -> torch.Tensor:
        """Return the sum of losses of learned tokens or, with margins, of pairs (Rafailov et al., arXiv:2305.18290)."""
        said = self._log_probabilities(samples)
        if self._config.stage != "dpo":
            return -said.sum()
        risen = said[:, 0] - said[:, 1] - torch.from_numpy(margins).to(said)
        return -torch.nn.functional.logsigmoid(self._config.beta * risen).sum()

    def _starting_margins(self) -> NDArray[np.float32]:
        """Return, as the start has it, log p of each pair's better message less that of the worse one."""
        with torch.inference_mode():
            said = torch.cat([self._log_probabilities([sample]) for sample in self._samples])
        margins: NDArray[np.float32] = (said[:, 0] - said[:, 1]).cpu().numpy()
        return margins

    def _log_probabilities(self, samples: Sequence[Sample]) -> torch.Tensor:
        return log_probabilities(self._decoder, samples, self._device)

    def _evaluate(self) -> None:
        directory = self._folder.directory
        write_adapter(directory, self._model, self._base)
        scores: dict[str, Any] = {}
        if self._device == "cuda":
            scores = validate_in_process(self._model, self._encoder, self._validation, self._config, self._device)
        elif self._base_ships:
            scores = validate(directory, self._validation, self._config)
        self._at = replace(self._at, evaluated_at=self._at.step, **scores)
        self._folder.lines.write(asdict(self._at) | {"minutes": self._at.seconds / 60.0})
        shares = {f"share/{prompt}": share for prompt, share in self._at.shares.items()}
        for name, value in {"success": self._at.success, "share": self._at.share, **shares}.items():
            if value is not None:
                self._log.add_scalar(f"validation/{name}", value, self._at.step)

    @property
    def _base_ships(self) -> bool:
        """Whether adapters of the base can be played with: they lie on the model that ships."""
        try:
            return self._base == shipped_model_path()
        except MissingExtraError:  # another base needs no such package
            return False

    def _write_point(self) -> None:
        arrays: dict[str, NDArray[Any]] = {"margins": self._margins}
        for name, array in adapter_arrays(self._model).items():
            arrays[f"adapter/{name}"] = array
        for place, values in self._optimizer.state_dict()["state"].items():
            for name, value in values.items():
                arrays[f"optimizer/{place}/{name}"] = torch.as_tensor(value).detach().cpu().numpy()
        self._folder.write_point(arrays, {"run": asdict(self._at)})
        write_adapter(self._folder.directory, self._model, self._base)  # a run that is stopped can be played with

    def _restore(self, point: ResumePoint) -> None:
        try:
            self._margins = point.arrays["margins"]
            set_adapter(self._model, part_of(point.arrays, "adapter"))
            state: dict[int, dict[str, torch.Tensor]] = {}
            for key, array in part_of(point.arrays, "optimizer").items():
                place, _, name = key.partition("/")
                state.setdefault(int(place), {})[name] = torch.tensor(array)
            groups = self._optimizer.state_dict()["param_groups"]
            self._optimizer.load_state_dict({"state": state, "param_groups": groups})
        except (KeyError, ValueError, RuntimeError, TypeError) as error:
            raise StoreError(f"the point to resume from does not fit this training: {one_line(error)}") from error
