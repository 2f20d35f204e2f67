"""`resilisim train-lm`: fine-tune a small language model on what the exact optimum does."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resilisim.cli import options, output
from resilisim.cli.train import display, import_training
from resilisim.options import option

if TYPE_CHECKING:
    from resilisim.finetuning.config import FinetuningConfig
    from resilisim.finetuning.training import Standing

EXTRA_PACKAGES = ("gguf", "peft", "safetensors", "tensorboard", "tokenizers", "torch", "transformers", "yaml")


@dataclass(frozen=True, slots=True)
class FinetuningOptions:
    """What a fine-tuning is told on the command line; the last four are settings of `FinetuningConfig`."""

    preset: str = option("cpu", "cpu (one thread of a laptop), or gpu.")
    config: str | None = option(None, "YAML file with settings that replace those of the preset.", path="file")
    settings: tuple[str, ...] = option(
        (), "One setting, such as train_tasks=100; repeatable.", flag="--set", metavar="KEY=VALUE"
    )
    stage: str | None = option(
        None,
        "What is learned from: sft, demonstrations of the exact optimum; dpo, preferences by Q*.",
        default_text="sft",
    )
    start: str | None = option(
        None, "Adapter to go on from: the folder of another run, or resilisim.", default_text="a fresh one"
    )
    device: str | None = option(None, "auto, cpu or cuda.", default_text="the preset's")
    seed: int | None = option(
        None, "A different seed trains a different adapter.", least=0, most=2**32 - 1, default_text="0"
    )

    def configuration(self) -> FinetuningConfig:
        """Return the configuration that preset, file, settings and single options make."""
        from resilisim.finetuning.config import load_config

        values = {name: getattr(self, name) for name in ("stage", "start", "device", "seed")}
        return load_config(self.preset, self.config, self.settings, **values)


@options.takes(configured=options.OptionGroup(FinetuningOptions, panel="Configuration"))
def train_lm(
    *,
    out: Annotated[
        Path,
        options.output_option(help="Folder of the run: adapter, log, TensorBoard, data; the same command resumes it."),
    ],
    configured: FinetuningOptions,
    as_json: options.JsonFlag = False,
) -> None:
    """Fine-tune a small language model on what the exact optimum does, and play with it as --model local:DIR.

    The model sees prompts and replies of the terse style, so it is to be played with --prompt-style terse.
    """
    configuration = configured.configuration()
    training = import_training("resilisim.finetuning.training", EXTRA_PACKAGES, "train-lm")
    try:
        with display(progress_line, lambda standing: standing.evaluated_at) as show:
            reached: Standing = training.train(configuration, out, show)
    except KeyboardInterrupt:
        output.note(f"stopped; the same command resumes it from the last point in {out}")
        raise typer.Exit(output.STOPPED_BY_USER) from None
    shares = {"success on validation tasks": reached.success, "share of V* there, luck taken out": reached.share}
    rows = [
        ["steps", f"{reached.step:,}"],
        ["tokens", f"{reached.num_tokens:,}"],
        ["minutes of training", f"{reached.seconds / 60.0:.1f}"],
        ["tokens a second", f"{reached.tokens_per_second:,.0f}"],
        *([name, "-" if value is None else f"{value:.4f}"] for name, value in shares.items()),
    ]
    prompts = " ".join(f"--prompt {prompt}" for prompt in configuration.prompts)
    player = f"--policy direct --model local:{out} --prompt-style terse {prompts}"
    output.answer(
        as_json,
        {**asdict(reached), "directory": str(out)},
        output.table(f"fine-tuning in {out}", ["", "value"], rows),
        notes=[f"next: resilisim evaluate {player} --split test --out RESULTS"],
    )


def progress_line(standing: Standing) -> str:
    """Say how far a fine-tuning is: steps, speed, loss, share of the optimum, time left."""
    parts = [f"step {standing.step:,} of {standing.num_steps:,}", f"{standing.tokens_per_second:,.0f} tokens/s"]
    if standing.loss is not None:
        parts.append(f"loss {standing.loss:.3f}")
    if standing.share is not None:
        parts.append(f"share of V* on validation tasks {standing.share:.3f}")
    if standing.step:
        left = standing.seconds / standing.step * (standing.num_steps - standing.step)
        parts.append(f"{left / 60.0:,.0f} minutes left")
    return ", ".join(parts)
