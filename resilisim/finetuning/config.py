"""What a fine-tuning is told: one frozen table of settings, from a preset, a YAML file and single values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from resilisim.datasets.conversations import DEMONSTRATOR, OF_THE_OPTIMUM, ConversationSpec
from resilisim.datasets.preferences import PreferenceSpec
from resilisim.datasets.rollout import TRAINING_ENVIRONMENT, Form, RolloutSpec
from resilisim.envs.settings import BENCHMARK_LAW
from resilisim.errors import unknown_name
from resilisim.inputs import validated
from resilisim.policies.ppo.config import merged_settings
from resilisim.seeding import Draws
from resilisim.tasks.benchmark import BENCHMARK_VERSION
from resilisim.tool_library import default_library
from resilisim.workflows.prompts import parse_prompt_choice

_PRESETS = ("cpu", "ship", "gpu")
T = TypeVar("T")
Credit: TypeAlias = Literal["advantage", "success"]
_PRESETS_FOLDER = Path(__file__).parent / "presets"


class Kind(NamedTuple):
    """What the lessons of a data set have in common."""

    law: str
    is_renamed: bool = False  # whether tools bear drawn names
    form: Form = "tags"


class FinetuningConfig(BaseModel):
    """Settings of a fine-tuning; a preset holds a good value for each.

    Attributes:
        stage: What the model learns from: sft, demonstrations of the exact optimum; dpo, pairs of messages of which
        one is
            better by Q*; dagger, episodes of the model's own in which the demonstrator speaks where it errs; grpo,
            episodes of its own (policy gradient).
        start: The adapter that the training goes on from, as `--model local:START` names it; a fresh one if empty.
        seed: Decides a fresh adapter's first weights and the order of the examples.
        device: Where the model is trained; auto takes a CUDA device if there is one.
        num_threads: Threads of torch on the CPU. Part of the settings because sums depend on it in the last bits.
        precision: Numbers of the frozen weights and of the products; the adapter is always kept in float32.
        tasks: Tasks to train on: the train split of a reference that `resilisim.tasks.sources.read_tasks` takes.
        train_tasks: How many of them are drawn; all if there are fewer.
        train_episodes: Episodes of each task and prompt type.
        prompts: Prompt types of the conversations, and, flaws drawn for each task, of validation.
        laws: Names of laws or paths of law files; tasks are dealt out to them in turn. Validation has the first.
        rename_tools: Share of the tasks, exactly, whose tools bear drawn names. Validation has the names as they are.
        random_libraries: Share of the tasks, exactly, that are drawn in libraries of their own, made by rules (sft,
            dpo).
        library_tools: Tools of each of these libraries.
        react: Share of the tasks, exactly, whose conversations are written as the agent react plays them (sft).
            Validation has tags.
        policy: Who plays the conversations (sft): exact-optimum, the demonstrator, or a scripted or trained policy. Of
            whoever plays, only messages that give away no more than `plan_margin` are learned, and searches that no
            sound plan makes needless.
        explore: Share of the demonstrator's steps that are mistakes on purpose; under dagger, share of the model's
            mistakes that are sent as they are. Nothing is learned from these, only from how to go on.
        plan_margin: Most that the demonstrator gives away in a call to do the step that the plan names first, so that
            what it does can be read off the plan. Messages that cost more are not learned, but for searches.
        min_margin: Least difference in Q* between the two messages of a pair.
        beta: How dear it is to leave the start's probabilities for a preference (dpo).
        credit: What a message of the model's own is learned by (grpo): advantage, its exact Q* - V*, in a group against
            what the others said at the same place; success, the outcome of its episode, against those of its group.
        group_size: Episodes of the same task with the same luck that are played in one batch (grpo).
        message_tokens: Longest message of the model (dagger, grpo).
        epochs: Passes over the conversations, pairs or beginnings of episodes.
        rank: Rank of the adapter's matrices, one pair for every linear layer.
        alpha: The adapter's scale is alpha / rank.
        learning_rate: Highest learning rate; it rises to it and falls to 0 in a straight line each.
        warmup: Share of the steps in which it rises.
        batch_size: Conversations, pairs or episodes of one step, at least: those of one task, which begin alike, stand
            in one step.
        micro_batch: How many of them are learned from at once; episodes of a step are all played side by side.
        max_gradient_norm: Longest gradient; longer ones are scaled down.
        checkpoint_every: Steps between two points from which a killed run goes on.
        evaluate_every: Steps between two evaluations on validation tasks; 0 for one at the end only.
        validation_tasks: Number of validation tasks, drawn from the validation split.
        validation_episodes: Episodes of each in one evaluation; every evaluation has the same luck.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    stage: Literal["sft", "dpo", "dagger", "grpo"] = "sft"
    start: str = ""
    seed: int = Field(0, ge=0, lt=2**32)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    num_threads: int = Field(1, ge=1, le=256)
    precision: Literal["float32", "bfloat16"] = "bfloat16"

    tasks: str = Field(BENCHMARK_VERSION, min_length=1)
    train_tasks: int = Field(640, ge=1)
    train_episodes: int = Field(1, ge=1)
    prompts: tuple[str, ...] = Field(("optimal",), min_length=1)
    laws: tuple[str, ...] = Field((BENCHMARK_LAW,), min_length=1)
    rename_tools: float = Field(0.0, ge=0, le=1)
    random_libraries: float = Field(0.0, ge=0, lt=1)
    library_tools: int = Field(60, ge=31, le=300)
    react: float = Field(0.0, ge=0, le=1)
    policy: str = Field(DEMONSTRATOR, min_length=1)
    explore: float = Field(0.1, ge=0, le=1)
    plan_margin: float = Field(0.002, ge=0, le=1)
    min_margin: float = Field(0.01, gt=0, lt=1)
    beta: float = Field(0.1, gt=0, le=100)
    credit: Credit = "advantage"
    group_size: int = Field(1, ge=1)
    message_tokens: int = Field(48, ge=1)
    epochs: int = Field(1, ge=1)

    rank: int = Field(16, ge=1, le=1024)
    alpha: int = Field(32, ge=1)
    learning_rate: float = Field(8e-4, gt=0, le=1)
    warmup: float = Field(0.1, ge=0, le=1)
    batch_size: int = Field(8, ge=1)
    micro_batch: int = Field(1, ge=1)
    max_gradient_norm: float = Field(1.0, gt=0)

    checkpoint_every: int = Field(2, ge=1)
    evaluate_every: int = Field(20, ge=0)
    validation_tasks: int = Field(20, ge=1)
    validation_episodes: int = Field(1, ge=1)

    @field_validator("prompts", "laws", mode="before")
    @classmethod
    def _names_from_text(cls, value: Any) -> Any:
        """Read `optimal,baseline` as a list."""
        return [name.strip() for name in value.split(",")] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        """Refuse groups that no batch is made of, and the mean of a group of one."""
        if self.stage == "grpo":
            if self.batch_size % self.group_size:
                raise ValueError(
                    f"batch_size is {self.batch_size}: expected a multiple of group_size, {self.group_size}"
                )
            if self.credit == "success" and self.group_size == 1:
                raise ValueError("group_size is 1: expected at least 2, as success is compared within a group")
        return self

    @model_validator(mode="after")
    def _check_policy(self) -> Self:
        """Refuse others than the demonstrator where it alone has an answer to every state."""
        if self.policy != DEMONSTRATOR and self.stage != "sft":
            raise ValueError(f"policy is {self.policy!r} in stage {self.stage!r}: expected {DEMONSTRATOR!r}")
        return self

    @model_validator(mode="after")
    def _check_forms(self) -> Self:
        """Refuse forms and libraries where lessons are no conversations that are made before the training."""
        played = ("dagger", "grpo")
        for name, stages in (("react", ("dpo", *played)), ("random_libraries", played)):
            if getattr(self, name) and self.stage in stages:
                raise ValueError(f"{name} is {getattr(self, name)} in stage {self.stage!r}: expected 0")
        return self

    @property
    def prompt_types(self) -> tuple[str, ...]:
        """The prompt types without names of flaws, which not every task can carry."""
        return tuple(dict.fromkeys(parse_prompt_choice(prompt).type for prompt in self.prompts))

    @property
    def starts_per_step(self) -> int:
        """Conversations, pairs or beginnings of episodes of one step."""
        return self.batch_size // (self.group_size if self.stage == "grpo" else 1)

    def episodes(self, kind: Kind) -> RolloutSpec:
        """Return which episodes of a task are played for lessons of a kind: in the terse style, without parameters."""
        return RolloutSpec(**self._episodes(kind))

    def dataset(self, kind: Kind) -> ConversationSpec | PreferenceSpec:
        """Return the conversations or pairs of such episodes that are learned from (sft, dpo)."""
        episodes = self._episodes(kind)
        if self.stage == "dpo":
            return PreferenceSpec(**episodes, explore=self.explore, min_margin=self.min_margin)
        of_the_optimum = {name: getattr(self, name) for name in OF_THE_OPTIMUM} if self.policy == DEMONSTRATOR else {}
        return ConversationSpec(**episodes, policy=self.policy, **of_the_optimum)

    def _episodes(self, kind: Kind) -> dict[str, Any]:
        return {
            "prompts": self.prompts,
            "seeds": self.train_episodes,
            "pass_parameters": False,
            "rename_tools": float(kind.is_renamed),
            "form": kind.form,
            "environment": TRAINING_ENVIRONMENT.with_options(prompt_style="terse", law=kind.law),
        }

    def dealt(self, tasks: Sequence[T]) -> list[tuple[Kind, list[T]]]:
        """Return each kind of lessons with its tasks: laws in turn, the shares as exactly as their number allows."""
        renamed, react = (self._drawn_places(len(tasks), name) for name in ("rename_tools", "react"))
        dealt: dict[Kind, list[T]] = {}
        for place, task in enumerate(tasks):
            law = self.laws[place % len(self.laws)]
            kind = Kind(law, place in renamed, "react" if place in react else "tags")
            dealt.setdefault(kind, []).append(task)
        return list(dealt.items())

    def _drawn_places(self, num_tasks: int, share: str) -> frozenset[int]:
        """Return the places of the tasks that a share concerns, drawn for each share anew."""
        draws = Draws("resilisim/finetuning/lessons", share, self.seed)
        return frozenset(draws.shuffled(range(num_tasks))[: round(getattr(self, share) * num_tasks)])

    def learning_rate_at(self, step: int, num_steps: int) -> float:
        """Return the learning rate of a step, 0 being the first of all."""
        rising = max(1, round(self.warmup * num_steps))
        falling = max(1, num_steps - rising)
        return self.learning_rate * min((step + 1) / rising, (num_steps - step) / falling)

    def to_mapping(self) -> dict[str, Any]:
        """Return the settings as JSON values, in the order of the fields."""
        return self.model_dump(mode="json")


def load_config(
    preset: str = "cpu", file: Path | str | None = None, settings: Iterable[str] = (), **values: Any
) -> FinetuningConfig:
    """Put the settings of a fine-tuning together: a preset, a YAML file, texts `key=value`, and `values` by name."""
    if preset not in _PRESETS:
        raise unknown_name("preset", preset, _PRESETS)
    text = (_PRESETS_FOLDER / f"{preset}.yaml").read_text(encoding="utf-8")
    merged = merged_settings(text, f"preset {preset!r}", file, settings, values)
    config = validated(FinetuningConfig, merged, "fine-tuning configuration", strict=False)
    for law in config.laws:
        config.episodes(Kind(law))  # refuses laws and prompt types that do not exist
    if config.policy != DEMONSTRATOR:
        config.dataset(Kind(config.laws[0])).make(default_library())  # refuses policies that do not exist
    return config
