"""What a training run is told: one frozen table of settings, from a preset, a YAML file and single values.

Later sources win: preset, then file, then single settings. Whatever is wrong is refused in one line that gives the
value, what was expected, and the nearest valid name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from resilisim.envs.settings import BENCHMARK_LAW, JUDGED_REWARDS, TRAINING_LAW, Reward
from resilisim.errors import InvalidInputError, unknown_name
from resilisim.inputs import read_text, validated
from resilisim.tasks.benchmark import BENCHMARK_VERSION
from resilisim.yaml_text import read_yaml

Filter = Literal["semantic", "dependency", "constraint"]

PRESETS = ("quick", "full", "paper", "generalist", "gpu")
_PRESETS_FOLDER = Path(__file__).parent / "presets"
NO_VALUE = ("none", "null", "")  # what a command line can say for "no value"


class TrainingConfig(BaseModel):
    """Settings of a training run; a preset holds a good value for each.

    Attributes:
        start: The policy whose weights the training begins with, as `policy:START` names it; a fresh network if empty.
            Its architecture has to be that of the settings. What it does not read of laws begins without weight.
        seed: Decides a fresh network's first weights, the sampled actions, the batches, and the luck of the episodes.
        device: Where the network is trained; auto takes a CUDA device if there is one. Environments run on the CPU.
        num_threads: Threads of torch on the CPU. Part of the settings because sums depend on it in the last bits.
        law: Success law in training (SPEC section 5): benchmark, training, or a law's name or file. Validation is under
            the law of training if it has parts, else under the benchmark law.
        reward: The plain reward full_success (or success), value or advantage by the exact optimum, or the paper's two
            phases.
        reward_scale: Factor on every reward before PPO sees it; the two-phase reward is in the hundreds.
        printed_rules: The paper's rules to the letter where they can run at all.
        filters: Filters of the action mask.
        required: Whether observations show which tools are required, and in which order.
        tasks: Tasks to train on: the train split of a reference that `resilisim.tasks.sources.read_tasks` takes.
        libraries: Train on the given library alone, or on random libraries, turns and laws
            (`envs.random_libraries`), among which the given tasks come up, too; the law has to be the
            benchmark's then. Validation is on held-out ones beside the validation tasks.
        library_updates: Updates on each random library and law before the next.
        num_envs: Environments stepped side by side.
        rollout_steps: Steps of each environment between two updates.
        batch_size: Samples of one gradient step.
        epochs: Passes over a rollout's samples.
        gamma: Discount factor; 0 with the reward advantage, which is exact: nothing later needs to be estimated.
        gae_lambda: Lambda of generalised advantage estimation.
        clip_range: Clipping of the probability ratio.
        entropy: Coefficient of the entropy that is added to the objective.
        value_coefficient: Coefficient of the value loss.
        max_gradient_norm: Longest gradient; longer ones are scaled down (D.5: 0.5).
        learning_rate: Learning rate at the start.
        learning_rate_schedule: constant; linear or cosine, down to 0 at the limit of steps or minutes;
            adaptive (D.5.1).
        adaptive_entropy: Lower the entropy's coefficient by half in the sequence phase (D.5.1).
        network: A transformer over tool tokens, or a multi-layer perceptron over the concatenated observation.
        width: Width of tokens, or of hidden layers.
        layers: Number of layers.
        heads: Attention heads; divides the width.
        attention_tokens: Tools that take part in the attention, the most relevant ones; None for all.
        tool_embeddings: Give every tool a learned vector; the weights then fit this library only.
        initial_prior: Transformer: by how much more likely (as a logit) it takes, before it learns anything, tools that
            the list is waiting for; 0 for no preference.
        by_state: Transformer: it reads what decides what comes after alone, and not how it came to that.
        relations: Transformer: attention is biased by what tools are to each other.
        detailed: Transformer: it is shown of each tool what its success serves, and the constants of the law.
        autocast: Compute the network in bfloat16 on CUDA, up to the heads; validation plays in float32, as users do.
        curriculum: Stages of the training: none; paper, those of Table 12 (D.4.2), which ask for more and more of a
            task; optimum, harder and harder tasks with fewer and fewer steps, moved by success as a share of their V*,
            under a law without parts.
        reward_adjustment: Adjust an episode's rewards when it ends (D.5.1).
        patterns: Mine patterns of tools from successful episodes (D.5.2).
        monitors: Watch convergence by phase (D.5.1) and log it.
        imitation_updates: Gradient steps of imitating the exact optimum before the first rollout; 0 for none.
        imitation_evaluations: Evaluations on the way through them, as evenly as can be; the best policy is kept.
        max_steps: Environment steps after which training ends, rounded up to whole rollouts; 0 for imitation alone,
            None for no limit.
        max_minutes: Minutes of training, over all resumed parts, after which it ends; None for no limit.
        evaluate_every: Environment steps between two evaluations on validation tasks.
        validation_tasks: Number of validation tasks, drawn from the validation split.
        validation_episodes: Episodes of each in one evaluation; every evaluation has the same luck.
        patience: Evaluations without a better result after which training ends; None to ignore.
        target_share: Share of the optimum (validation success / mean V*) at which training ends; None to ignore.
        checkpoint_every: Environment steps between two points from which a killed run goes on.
        tensorboard: Whether to write logs for TensorBoard.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    start: str = ""
    seed: int = Field(0, ge=0, lt=2**32)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    num_threads: int = Field(2, ge=1, le=256)

    law: str = Field("benchmark", min_length=1)
    reward: Literal["full_success", "two_phase", Reward] = "full_success"
    reward_scale: float = Field(1.0, gt=0)
    printed_rules: bool = False
    filters: tuple[Filter, ...] = ()
    required: Literal["shown", "hidden"] = "shown"
    tasks: str = Field(BENCHMARK_VERSION, min_length=1)
    libraries: Literal["given", "random"] = "given"
    library_updates: int = Field(4, ge=1)

    num_envs: int = Field(512, ge=1, le=2**20)
    rollout_steps: int = Field(16, ge=2, le=2**20)
    batch_size: int = Field(2048, ge=2)
    epochs: int = Field(3, ge=1)
    gamma: float = Field(1.0, ge=0, le=1)
    gae_lambda: float = Field(0.95, ge=0, le=1)
    clip_range: float = Field(0.2, gt=0, le=1)
    entropy: float = Field(0.01, ge=0)
    value_coefficient: float = Field(0.5, ge=0)
    max_gradient_norm: float = Field(0.5, gt=0)
    learning_rate: float = Field(1e-3, gt=0, le=1)
    learning_rate_schedule: Literal["constant", "linear", "cosine", "adaptive"] = "linear"
    adaptive_entropy: bool = False

    network: Literal["transformer", "mlp"] = "transformer"
    width: int = Field(32, ge=1, le=4096)
    layers: int = Field(2, ge=1, le=64)
    heads: int = Field(4, ge=1, le=64)
    attention_tokens: int | None = Field(12, ge=1)
    tool_embeddings: bool = False
    by_state: bool = False
    relations: bool = False
    detailed: bool = False
    initial_prior: float = 3.0
    autocast: bool = True

    curriculum: Literal["none", "paper", "optimum"] = "none"
    reward_adjustment: bool = False
    patterns: bool = False
    monitors: bool = False
    imitation_updates: int = Field(0, ge=0)
    imitation_evaluations: int = Field(0, ge=0)

    max_steps: int | None = Field(None, ge=0, le=10**15)
    max_minutes: float | None = Field(None, gt=0, le=10**9)
    evaluate_every: int = Field(200_000, ge=1)
    validation_tasks: int = Field(150, ge=1)
    validation_episodes: int = Field(20, ge=1)
    patience: int | None = Field(None, ge=1)
    target_share: float | None = Field(None, gt=0, le=1)
    checkpoint_every: int = Field(200_000, ge=1)
    tensorboard: bool = True

    @field_validator("*", mode="before")
    @classmethod
    def _as_typed(cls, value: Any, info: ValidationInfo) -> Any:
        """Read `none` as no value, and take no truth value for a number (pydantic would read it as 1 or 0)."""
        kinds = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and kinds is not bool:
            return str(value).lower()
        if isinstance(value, str) and value.strip().lower() in NO_VALUE and type(None) in get_args(kinds):
            return None
        return value

    @field_validator("law")
    @classmethod
    def _known_law(cls, value: str) -> str:
        """Refuse a law that does not exist; its content is read where the training begins."""
        from resilisim.envs.workflow.options import WorkflowOptions  # with its compiler

        if value not in (BENCHMARK_LAW, TRAINING_LAW):
            WorkflowOptions(law=value)
        return value

    @field_validator("filters", mode="before")
    @classmethod
    def _filters_from_text(cls, value: Any) -> Any:
        """Read `semantic,dependency` as a list, and `none` as an empty one; no filter counts twice."""
        if value is None:
            return ()
        if isinstance(value, str):
            value = [] if value.strip().lower() in NO_VALUE else [name.strip() for name in value.split(",")]
        if isinstance(value, list | tuple):
            return tuple(name for name in get_args(Filter) if name in value) + tuple(
                name for name in value if name not in get_args(Filter)
            )
        return value

    @model_validator(mode="after")
    def _consistent(self) -> TrainingConfig:
        """Refuse settings that cannot go together."""
        if self.network == "transformer" and self.width % self.heads:
            raise ValueError(f"heads is {self.heads}: expected a divisor of width, which is {self.width}")
        if self.batch_size > self.num_envs * self.rollout_steps:
            samples = self.num_envs * self.rollout_steps
            raise ValueError(
                f"batch_size is {self.batch_size}: expected at most num_envs x rollout_steps, which is {samples}"
            )
        if self.reward in JUDGED_REWARDS and self.law == "training":
            raise ValueError(f"reward is {self.reward!r}: expected the benchmark law with it, the one that is solved")
        if self.curriculum != "none" and self.reward in JUDGED_REWARDS:
            raise ValueError(f"curriculum is {self.curriculum!r}: expected none with the reward {self.reward!r}")
        if self.curriculum == "optimum" and self.law == TRAINING_LAW:
            raise ValueError("curriculum is 'optimum' under the training law: expected a law that is solved")
        if self.libraries == "random":
            self._check_random_libraries()
        if self.max_steps is None and self.max_minutes is None:
            raise ValueError("neither max_steps nor max_minutes is set: expected at least one, or training never ends")
        if self.max_steps == 0 and not self.imitation_updates:
            raise ValueError("max_steps is 0 without imitation_updates: expected at least 1, or nothing is learned")
        return self

    def _check_random_libraries(self) -> None:
        """Refuse what belongs to one library, or to one law."""
        fixed: dict[str, Any] = {"network": "transformer", "law": BENCHMARK_LAW, "required": "shown", "filters": ()}
        fixed |= dict.fromkeys(("tool_embeddings", "patterns", "reward_adjustment"), False) | {"curriculum": "none"}
        for name, expected in fixed.items():
            value = getattr(self, name)
            if value != expected:
                raise ValueError(f"{name} is {value!r} with random libraries: expected {expected!r}")

    def to_mapping(self) -> dict[str, Any]:
        """Return the settings as JSON values, in the order of the fields."""
        return self.model_dump(mode="json")


def preset_text(name: str) -> str:
    """Return the YAML text of a preset."""
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return (_PRESETS_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def load_config(
    preset: str = "quick",
    file: Path | str | None = None,
    settings: Iterable[str] = (),
    **values: Any,
) -> TrainingConfig:
    """Put the settings of a run together: a preset, a YAML file with some of them, and single ones.

    These are texts `key=value`, as a command line has them (lists with commas, `none` for no value), and `values` by
    name, where None leaves one as it is. What is unreadable, unknown, wrong or contradictory is an InvalidInputError.
    """
    return make_config(merged_settings(preset_text(preset), f"preset {preset!r}", file, settings, values))


def merged_settings(
    preset: str, where: str, file: Path | str | None, settings: Iterable[str], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings of a preset's YAML text, with those of a file, texts and values in their place."""
    merged = _read_yaml(preset, where)
    if file is not None:
        text = read_text(Path(file), "configuration", "a YAML file")
        merged |= _read_yaml(text, f"configuration {str(file)!r}")
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator:
            raise InvalidInputError(
                f"setting {setting!r} has no value: expected key=value, such as learning_rate=0.001"
            )
        merged[key.strip().replace("-", "_")] = value.strip()
    return merged | {key: value for key, value in values.items() if value is not None}


def make_config(settings: Mapping[str, Any]) -> TrainingConfig:
    """Check settings; those left out have the defaults of `TrainingConfig`."""
    return validated(TrainingConfig, dict(settings), "training configuration", strict=False)


def _read_yaml(text: str, where: str) -> dict[str, Any]:
    value = read_yaml(text, where)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInputError(f"{where} holds a {type(value).__name__}: expected lines of `setting: value`")
    return value
