"""Training a policy with maskable PPO: one loop over rollouts, between which everything else happens.

Before each rollout the parts of the configuration set their values; after it they learn from what happened. Between
two rollouts the policy is evaluated on validation tasks, and the best one so far is kept. The point from which a killed
run goes on is written between two rollouts, and between two batches of imitation. On a CPU a run is a function of its
configuration: the same seed and number of threads give the same weights to the bit, also if it was killed and resumed
on the way. Where the limit is time, the number of rollouts depends on the machine, and so does a learning rate that
falls towards the limit.

What a run leaves in its folder: `policy.safetensors` and `policy.json` (the best policy), `progress.jsonl` (a line for
each evaluation), `tensorboard/`, `manifest.json`, and `resume.safetensors`.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.logger import KVWriter, Logger, TensorBoardOutputFormat

from resilisim.envs.random_libraries import RANDOM_LIBRARIES_VERSION
from resilisim.envs.settings import BENCHMARK_LAW
from resilisim.envs.workflow.options import BENCHMARK_TURNS, WorkflowOptions
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.errors import InvalidInputError, MissingExtraError, StoreError, install_line
from resilisim.policies.ppo.adjustment import (
    FULL_SUCCESS_WEIGHTS,
    TWO_PHASE_WEIGHTS,
    AdjustingRolloutBuffer,
    AdjustmentRecorder,
    EpisodeRecorder,
)
from resilisim.policies.ppo.between_rollouts.curriculum import (
    MORE_STEPS,
    PAPER_LESSONS,
    Lesson,
    lessons_by_optimum,
)
from resilisim.policies.ppo.between_rollouts.training_parts import Figures, TrainingParts, mean_of
from resilisim.policies.ppo.checkpoint import (
    SETTINGS_OF_READING,
    LoadedPolicy,
    ResumePoint,
    TrainingFolder,
    choose_device,
    describe_policy,
    load_checkpoint,
    model_state,
    part_of,
    random_state,
    restore_model,
    save_checkpoint,
    set_random_state,
)
from resilisim.policies.ppo.config import TrainingConfig
from resilisim.policies.ppo.imitation import Imitation, ImitationUpdate
from resilisim.policies.ppo.network import Network, WorkflowTransformer, torch_threads
from resilisim.policies.ppo.policy import check_library, reads_laws
from resilisim.policies.ppo.sb3 import WorkflowFeatures, WorkflowPolicy, WorkflowVecEnv
from resilisim.policies.ppo.states.teaching import (
    HOME_LESSONS,
    HOME_TASKS,
    IMITATION_CHECKPOINT_EVERY,
    TASKS_OF_A_LIBRARY,
    draw_settings,
    evaluation_is_due,
    lesson_batches,
    make_imitation,
    random_validators,
)
from resilisim.policies.ppo.validation import Evaluation, Validator
from resilisim.provenance import describe_os_error
from resilisim.seeding import TRAINING_SALT
from resilisim.simulator.law import Law
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_of
from resilisim.tasks.sources import read_tasks, sample_tasks
from resilisim.tasks.split import split_of
from resilisim.tool_library import ToolLibrary, default_library

TENSORBOARD_FOLDER = "tensorboard"
_NEVER = 2**31  # stable-baselines3 logs every so many rollouts of one call, which are one here; the loop logs itself


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """How far a run is, told after each update of imitation, each rollout and each evaluation."""

    steps: int
    minutes: float
    steps_per_second: float  # of the latest rollout with its updates; 0 before the first
    success: float | None  # by the law's standard, of the episodes that finished in the latest rollout; None before
    latest: Evaluation | None
    best: Evaluation | None
    seconds_left: float | None  # until the nearer limit, at this speed; None before the first rollout
    imitated: int = 0  # updates of imitation, while it goes on; 0 before and after it
    agreement: float | None = None  # share of states of the latest in which the policy would do what the optimum does


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """A finished run."""

    directory: Path
    steps: int
    minutes: float  # over all resumed parts
    reason: str  # why it ended
    best: Evaluation  # of the policy that was kept
    last: Evaluation
    was_finished: bool  # before, so that nothing was done


def train(
    config: TrainingConfig,
    out: Path | str,
    report: Callable[[TrainingProgress], None] | None = None,
    library: ToolLibrary | None = None,
) -> TrainingResult:
    """Train a policy, or go on with a training of the same configuration that was stopped in the folder `out`.

    Sets the global random generators of NumPy and torch, which stable-baselines3 draws from, and puts torch's number of
    threads back at the end. `report` is called after each rollout and each evaluation.
    """
    began = time.monotonic()
    device = choose_device(config.device)
    if config.tensorboard and find_spec("tensorboard") is None:
        raise MissingExtraError(f"the log for TensorBoard needs 'tensorboard': {install_line('train')}")
    tools = default_library() if library is None else library
    arguments: dict[str, Any] = {
        "training": config.to_mapping(),
        "benchmark": benchmark_of(config.tasks),
        "library": tools.content_hash,
        "computed_in": "bfloat16" if in_bfloat16(config, device) else "float32",
    }
    law = law_with_parts(config)
    if law is not None:
        if config.network != "transformer":
            raise InvalidInputError(f"network is {config.network!r} under the law {law.name!r}: expected a transformer")
        arguments["law"] = law.to_mapping()
    if config.libraries == "random":
        arguments["random_libraries"] = RANDOM_LIBRARIES_VERSION
    start = load_start(config, tools)
    if start is not None:
        arguments["start"] = start.description.weights_sha256
    directory = Path(out)
    try:
        with torch_threads(config.num_threads), TrainingFolder(directory, arguments, device) as folder:
            if folder.point is not None and folder.point.facts["run"]["reason"] is not None:
                return _result(directory, _Standing.from_mapping(folder.point.facts["run"]), was_finished=True)
            return _Run(config, device, tools, folder, began, report, start).play()
    except OSError as error:
        raise StoreError(f"cannot write {directory}: {describe_os_error(error)}") from error


@dataclass(frozen=True, slots=True)
class _Standing:
    """How far a run is, as the point to resume from keeps it."""

    reason: str | None = None
    update: int = 0
    steps: int = 0
    elapsed: float = 0.0  # seconds of training, over all resumed parts
    warm_start: dict[str, Any] | None = None
    latest: Evaluation | None = None
    best: Evaluation | None = None
    evaluations_since_best: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)  # random required lists that were drawn again, by reason

    @classmethod
    def from_mapping(cls, mapping: dict[str, Any]) -> _Standing:
        """Read what `asdict` gave."""
        read = {name: mapping[name] and Evaluation(**mapping[name]) for name in ("latest", "best")}
        return cls(**{**mapping, **read})


class _Run:
    """A run from where it stands to its end."""

    def __init__(
        self,
        config: TrainingConfig,
        device: torch.device,
        library: ToolLibrary,
        folder: TrainingFolder,
        began: float,
        report: Callable[[TrainingProgress], None] | None,
        start: LoadedPolicy | None,
    ) -> None:
        self._config = config
        self._start = start
        self._library = library
        self._folder = folder
        self._began = began
        self._report = report
        self._device = device
        self._tasks, held_out = training_tasks(config, library)
        law = law_with_parts(config) or BENCHMARK_LAW
        shown = WorkflowOptions(
            library=library, required=config.required, filters=config.filters, law=law, detailed=config.detailed
        )
        self._validators = {"benchmark": [Validator(held_out, config.validation_episodes, shown)]}
        if config.libraries == "random":
            self._validators["random"] = list(random_validators(config))
        self._parts = TrainingParts(config, self._lessons_of_stages())
        self._at = _Standing()  # steps and seconds are those of its beginning
        self._library_number = 0  # of the random libraries
        self._envs, self._model = self._surroundings(0)
        self._recorder = EpisodeRecorder(library.names if self._parts.patterns is not None else None)
        callbacks: list[BaseCallback] = [self._recorder]
        if config.reward_adjustment:
            callbacks.append(AdjustmentRecorder(self._envs))
        self._callback = CallbackList(callbacks)
        self._steps_of_point = 0
        self._speed = 0.0
        self._figures: Figures | None = None  # of the latest rollout

    def play(self) -> TrainingResult:
        """Train until a limit is reached."""
        config = self._config
        if self._folder.point is not None:
            self._restore(self._folder.point)
        else:
            if self._start is not None:
                fresh = config.imitation_updates > 0 and not reads_laws(self._start)
                begin_with(network_of(self._model), self._start.network, keep_others=fresh)
        if config.imitation_updates and self._at.warm_start is None:
            self._imitate()
        self._model.set_logger(self._logger())
        try:
            while True:
                reason = self._reached_limit()
                latest = self._at.latest
                is_due = reason is not None or latest is None or self._steps - latest.steps >= config.evaluate_every
                if is_due:
                    self._evaluate()
                    reason = reason or self._early_reason()
                    self._tell()
                # After each evaluation, too, so that the point knows of the policy that lies in the folder.
                if is_due or self._steps - self._steps_of_point >= config.checkpoint_every:
                    self._write_point(reason)
                if reason is not None:
                    return _result(self._folder.directory, self._standing(reason), was_finished=False)
                self._play_rollout()
                self._tell()
        finally:
            self._model.logger.close()

    def _lessons_of_stages(self) -> tuple[Lesson, ...]:
        if self._config.curriculum != "optimum":
            return PAPER_LESSONS
        law = WorkflowOptions(law=self._config.law).failure_model()
        return lessons_by_optimum(self._library, [task.required_tools for task in self._tasks], law)

    def _surroundings(self, number: int) -> tuple[WorkflowVectorEnv, MaskablePPO]:
        """Return environments of the given library, or of random one `number`, and a fresh model for them."""
        config = self._config
        options, salt = WorkflowOptions(tasks=self._tasks, library=self._library, law=config.law), TRAINING_SALT
        if config.libraries == "random":
            drawn = draw_settings(config, "training", number, self._tasks)
            options, salt = drawn.options, f"{TRAINING_SALT}/{number}"
            refused = dict(Counter(self._at.refused) + Counter(drawn.refused))  # `asdict` cannot copy a Counter
            self._at = replace(self._at, refused=refused)
        envs = make_environments(config, options, salt)
        law_parts = self._start is not None and reads_laws(self._start)
        return envs, make_model(config, envs, self._parts, self._device, law_parts=law_parts)

    def _imitate(self) -> None:
        """Teach the network the exact optimum before PPO begins, or go on with that."""
        network = network_of(self._model)
        imitation = make_imitation(self._config, network)
        if self._folder.point is not None:
            imitation.set_state(part_of(self._folder.point.arrays, "imitation"), self._folder.point.facts["imitation"])
        # Lessons in given libraries do not depend on what the network has learned, and are played again.
        done = imitation.num_batches
        lessons, again = (self._lessons(), done) if self._config.libraries == "given" else (self._lessons(done), 0)
        kept_at = imitation.num_updates
        for batch in itertools.islice(lesson_batches(self._config, network, lessons, done), again, None):
            before = imitation.num_updates
            for update in imitation.learn(batch):
                self._tell_imitated(imitation.num_updates, update)
            is_due = evaluation_is_due(before, imitation.num_updates, self._config)
            if is_due:
                self._evaluate(imitation)
                if imitation.latest is not None:
                    self._tell_imitated(imitation.num_updates, imitation.latest)
            # After each evaluation, too, so that the point knows of the policy that lies in the folder.
            if is_due or imitation.num_updates - kept_at >= IMITATION_CHECKPOINT_EVERY:
                kept_at = imitation.num_updates
                self._write_point(None, imitation)
            if imitation.num_updates == self._config.imitation_updates:
                break
        self._at = replace(self._at, warm_start=_taught(imitation))

    def _lessons(self, first_number: int = 0) -> Iterator[tuple[WorkflowOptions, int]]:
        """Yield what the optimum is imitated in: the tasks of the training, or random libraries that can be solved.

        With each comes how many batches are made of it. Between the random ones are tasks of the training; these
        lessons have one batch each, and begin with that of a number.
        """
        config = self._config
        shown = WorkflowOptions(
            tasks=self._tasks,
            library=self._library,
            required=config.required,
            filters=config.filters,
            law=law_with_parts(config) or BENCHMARK_LAW,
            detailed=config.detailed,
        )
        if config.libraries == "given":
            yield shown, config.imitation_updates
            return
        for number in itertools.count(first_number):  # until there were enough updates: some lessons are empty
            if number % HOME_LESSONS == 0:
                first = number * TASKS_OF_A_LIBRARY["imitation"]
                tasks = [self._tasks[(first + place) % len(self._tasks)] for place in range(HOME_TASKS)]
                yield shown.with_options({"tasks": tasks}), 1
            else:
                yield draw_settings(config, "imitation", number, self._tasks).options, 1

    def _enter(self, number: int) -> None:
        """Go on in the random library `number` with what has been learnt."""
        known, (arrays, facts) = self._model, random_state(self._device)
        self._envs, self._model = self._surroundings(number)
        set_random_state(arrays, facts, self._device)  # a fresh model seeds them anew
        self._library_number = number
        self._model.policy.load_state_dict(known.policy.state_dict())
        self._model.policy.optimizer.load_state_dict(known.policy.optimizer.state_dict())
        self._model.num_timesteps, self._model._n_updates = known.num_timesteps, known._n_updates
        self._model.ent_coef = known.ent_coef
        self._model.set_logger(known.logger)

    @property
    def _steps(self) -> int:
        return self._model.num_timesteps

    @property
    def _elapsed(self) -> float:
        """Seconds of training, over all resumed parts."""
        return self._at.elapsed + time.monotonic() - self._began

    def _share_done(self) -> float:
        """Return the share of the training that is done, by the nearer limit."""
        steps, minutes = self._config.max_steps, self._config.max_minutes
        by_steps = 0.0 if steps is None else self._steps / steps
        by_time = 0.0 if minutes is None else self._elapsed / (60.0 * minutes)
        return min(1.0, max(by_steps, by_time))

    def _reached_limit(self) -> str | None:
        if self._config.max_steps is not None and self._steps >= self._config.max_steps:
            return f"{self._config.max_steps:,} steps are done"
        if self._config.max_minutes is not None and self._elapsed >= 60.0 * self._config.max_minutes:
            return f"{self._config.max_minutes:g} minutes are over"
        return None

    def _early_reason(self) -> str | None:
        target, patience, best = self._config.target_share, self._config.patience, self._at.best
        if target is not None and best is not None and best.share >= target:
            return f"{target:g} of the optimum is reached"
        if patience is not None and self._at.evaluations_since_best >= patience:
            return f"{patience} evaluations in a row were no better"
        return None

    def _play_rollout(self) -> None:
        config, before = self._config, time.monotonic()
        number = self._at.update // config.library_updates
        if config.libraries == "random" and number != self._library_number:
            self._enter(number)
        self._parts.before_rollout(self._model, self._envs, self._share_done())
        size = config.num_envs * config.rollout_steps
        self._model.learn(size, self._callback, log_interval=_NEVER, reset_num_timesteps=False)
        self._figures = self._recorder.figures
        self._parts.after_rollout(self._at.update, self._figures, self._recorder.sequences)
        self._at = replace(self._at, update=self._at.update + 1)
        self._speed = size / max(time.monotonic() - before, 1e-9)
        logger = self._model.logger
        for name, mean in self._means().items():
            if mean is not None:
                logger.record(f"rollout/{name}", mean)
        for name, value in self._parts.figures().items():
            logger.record(f"parts/{name}", value)
        logger.record("time/steps_per_second", self._speed)
        logger.dump(self._steps)

    def _evaluate(self, imitation: Imitation | None = None) -> None:
        """Measure the network on what it does not train on, and keep it if it is the best; with imitation under way."""
        at = self._at
        if at.latest is not None and at.latest.steps == self._steps and imitation is None:
            return
        network, patterns = network_of(self._model), self._patterns()
        successes = {
            name: float(np.mean([validator.success(network, patterns) for validator in group]))
            for name, group in self._validators.items()
        }
        optima = {
            name: float(np.mean([validator.optimum for validator in group])) for name, group in self._validators.items()
        }
        success, optimum = float(np.mean([*successes.values()])), float(np.mean([*optima.values()]))
        shares = {name: successes[name] / optima[name] for name in optima} if len(optima) > 1 else {}
        latest = Evaluation(self._steps, self._elapsed / 60.0, success, optimum, success / optimum, shares)
        is_better = at.best is None or latest.share > at.best.share
        since_best = 0 if is_better else at.evaluations_since_best + 1
        self._at = replace(at, latest=latest, evaluations_since_best=since_best)
        if at.best is None or latest.share >= at.best.share:  # of equals the one that has trained longer
            self._at = replace(self._at, best=latest)
            self._keep_policy(latest, at.warm_start if imitation is None else _taught(imitation))
        measures: dict[str, Any] = {"training": self._means(), "parts": self._parts.figures()}
        if self._config.libraries == "random":
            measures["drawn_again"] = dict(at.refused)
        if imitation is not None:
            measures = {"imitated": imitation.num_updates, **measures}
        self._folder.lines.write({"update": at.update, **asdict(latest), **measures})
        if imitation is not None:  # there is no logger yet
            return
        for name in ("success", "share"):
            self._model.logger.record(f"validation/{name}", getattr(latest, name))
        for name, share in shares.items():
            self._model.logger.record(f"validation/share/{name}", share)
        self._model.logger.dump(self._steps)

    def _means(self) -> dict[str, float | None]:
        """Return the means over the episodes that finished in the latest rollout, None where none did."""
        return {name: mean_of(values) for name, values in (self._figures or {}).items()}

    def _patterns(self) -> dict[tuple[str, ...], float]:
        """Return the mined patterns, which are part of what the policy sees."""
        return {} if self._parts.patterns is None else self._parts.patterns.scores()

    def _keep_policy(self, evaluation: Evaluation, taught: Mapping[str, Any] | None) -> None:
        validation = {
            "tasks": self._config.validation_tasks,
            "episodes": self._config.validation_tasks * self._config.validation_episodes,
            **asdict(evaluation),
        }
        training = {**self._config.to_mapping(), "warm_start": taught}
        if self._parts.patterns is not None:
            training["pattern_scores"] = [[list(names), score] for names, score in self._patterns().items()]
        about = describe_policy(
            network_of(self._model), self._library, training, self._folder.manifest, {"validation": validation}
        )
        save_checkpoint(self._folder.directory, network_of(self._model), about)

    def _write_point(self, reason: str | None, imitation: Imitation | None = None) -> None:
        state = model_state(self._model)
        envs = {f"envs/{name}": array for name, array in self._envs.get_state().items()}
        self._steps_of_point = self._steps
        facts = {**state.facts, "parts": self._parts.to_mapping(), "run": asdict(self._standing(reason))}
        taught: dict[str, NDArray[Any]] = {}
        if imitation is not None:
            arrays, facts["imitation"] = imitation.get_state()
            taught = {f"imitation/{name}": array for name, array in arrays.items()}
        self._folder.write_point({**state.arrays, **envs, **taught}, facts)

    def _standing(self, reason: str | None) -> _Standing:
        return replace(self._at, reason=reason, steps=self._steps, elapsed=self._elapsed)

    def _restore(self, point: ResumePoint) -> None:
        number = max(int(point.facts["run"]["update"]) - 1, 0) // self._config.library_updates
        if self._config.libraries == "random" and number != self._library_number:
            self._library_number = number
            self._envs, self._model = self._surroundings(number)
        restore_model(self._model, point)
        self._envs.set_state(part_of(point.arrays, "envs"))
        self._parts.restore(point.facts["parts"])
        self._at = _Standing.from_mapping(point.facts["run"])
        self._steps_of_point = self._steps

    def _logger(self) -> Logger:
        formats: list[KVWriter] = []
        if self._config.tensorboard:
            formats.append(TensorBoardOutputFormat(str(self._folder.directory / TENSORBOARD_FOLDER)))
        return Logger(folder=None, output_formats=formats)

    def _tell(self) -> None:
        if self._report is None:
            return
        left = None
        if self._speed:
            steps, minutes = self._config.max_steps, self._config.max_minutes
            by_steps = np.inf if steps is None else (steps - self._steps) / self._speed
            by_time = np.inf if minutes is None else 60.0 * minutes - self._elapsed
            left = max(0.0, min(by_steps, by_time))
        success = self._means().get("success")
        self._report(
            TrainingProgress(
                self._steps, self._elapsed / 60.0, self._speed, success, self._at.latest, self._at.best, left
            )
        )

    def _tell_imitated(self, number: int, update: ImitationUpdate) -> None:
        if self._report is not None:
            minutes = self._elapsed / 60.0
            left = 60.0 * minutes / number * (self._config.imitation_updates - number)
            latest, best = self._at.latest, self._at.best
            self._report(TrainingProgress(0, minutes, 0.0, None, latest, best, left, number, update.agreement))


def _taught(imitation: Imitation) -> dict[str, Any]:
    """Return what a policy says of its warm start."""
    agreement = None if imitation.latest is None else imitation.latest.agreement
    return {"kind": "imitation of the exact optimum", "updates": imitation.num_updates, "agreement": agreement}


def _result(directory: Path, at: _Standing, *, was_finished: bool) -> TrainingResult:
    if at.reason is None or at.best is None or at.latest is None:
        raise ValueError("a run that goes on has no result")
    return TrainingResult(directory, at.steps, at.elapsed / 60.0, at.reason, at.best, at.latest, was_finished)


def in_bfloat16(config: TrainingConfig, device: torch.device) -> bool:
    """Return whether a training computes its network in bfloat16 up to the heads."""
    return config.autocast and device.type == "cuda"


def law_with_parts(config: TrainingConfig) -> Law | None:
    """Return the law of a configuration if it has parts, which observations then show."""
    law = WorkflowOptions(law=config.law).failure_model()
    return law if law.has_sections else None


def training_tasks(config: TrainingConfig, library: ToolLibrary) -> tuple[list[Task], list[Task]]:
    """Return the tasks to train on and those to validate on, of the train and the validation split."""
    tasks = read_tasks(config.tasks, library)
    of_split = [task for task in tasks if split_of(task.required_tools) == "train"]
    if not of_split:
        raise InvalidInputError(f"none of the tasks {config.tasks!r} is in the train split: expected at least one")
    held_out = tasks
    if library == default_library():
        held_out = read_tasks(benchmark_of(config.tasks)["version"], library)
    return of_split, sample_tasks(held_out, config.validation_tasks, split="validation")


def make_environments(config: TrainingConfig, options: WorkflowOptions, salt: str = TRAINING_SALT) -> WorkflowVectorEnv:
    """Return the environments of a configuration, with tasks, library, law and turns of the options."""
    if config.curriculum == "optimum":  # the longest of its lessons
        options = options.with_options({"max_turns": BENCHMARK_TURNS + max(MORE_STEPS)})
    return WorkflowVectorEnv(
        config.num_envs,
        settings=options,
        autoreset_mode="SAME_STEP",
        reward=config.reward,
        filters=config.filters,
        required=config.required,
        detailed=config.detailed,
        printed_rules=config.printed_rules,
        salt=salt,
    )


def make_model(
    config: TrainingConfig,
    envs: WorkflowVectorEnv,
    parts: TrainingParts,
    device: torch.device,
    *,
    law_parts: bool = False,
) -> MaskablePPO:
    """Return the model of a configuration, its environments reset; its learning rate is that of the parts.

    With `law_parts` its transformer reads parts of laws even if this law has none.
    """
    options: dict[str, Any] = {"architecture": config.network, "width": config.width}
    if config.network == "transformer":
        options |= {
            "layers": config.layers,
            "heads": config.heads,
            "attention_tokens": config.attention_tokens,
            "tool_embeddings": config.tool_embeddings,
        }
        options |= {name: True for name in SETTINGS_OF_READING if getattr(config, name)}
        if law_parts or envs.core.has_sections or config.libraries == "random":
            options["law_parts"] = True
    options["autocast"] = in_bfloat16(config, device)
    weights = TWO_PHASE_WEIGHTS if config.reward == "two_phase" else FULL_SUCCESS_WEIGHTS
    adjusted = config.reward_adjustment
    model = MaskablePPO(
        WorkflowPolicy,
        WorkflowVecEnv(envs, config.reward_scale),
        learning_rate=lambda _: parts.learning_rate,
        n_steps=config.rollout_steps,
        batch_size=config.batch_size,
        n_epochs=config.epochs,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        clip_range=config.clip_range,
        ent_coef=config.entropy,
        vf_coef=config.value_coefficient,
        max_grad_norm=config.max_gradient_norm,
        rollout_buffer_class=AdjustingRolloutBuffer if adjusted else None,
        rollout_buffer_kwargs={"weights": weights.scaled(config.reward_scale)} if adjusted else None,
        policy_kwargs={"features_extractor_kwargs": options},
        seed=config.seed,
        device=device,
    )
    network = network_of(model)
    if isinstance(network, WorkflowTransformer):
        torch.nn.init.constant_(network.prior, config.initial_prior)
    env: Any = model.env
    # `learn` would do this at its first call; a point to resume from needs it earlier.
    model._last_obs = env.reset()
    model._last_episode_starts = np.ones(config.num_envs, dtype=bool)
    return model


def network_of(model: MaskablePPO) -> Network:
    """Return the network that a model trains."""
    return cast("WorkflowFeatures", model.policy.features_extractor).network


def load_start(config: TrainingConfig, library: ToolLibrary) -> LoadedPolicy | None:
    """Return the policy that the training begins with, or None; another architecture is an InvalidInputError."""
    if not config.start:
        return None
    start = load_checkpoint(config.start)
    network = {"network": start.description.network.kind, **dict.fromkeys(SETTINGS_OF_READING, False)}
    network |= start.description.network.arguments
    for name, expected in network.items():
        # A transformer's weights fit any number of tools, and those for laws are added where it has none.
        if name not in ("num_tools", "law_parts") and getattr(config, name) != expected:
            raise InvalidInputError(
                f"{name} is {getattr(config, name)!r}: expected {expected!r}, as the start {config.start!r:.200} has it"
            )
    check_library(start, library)
    return start


def begin_with(network: Network, start: Network, *, keep_others: bool = False) -> None:
    """Give a network the weights of another.

    Those that the other lacks become 0, so that both play alike, or stay as they are: from 0 they hardly grow at the
    small learning rates that the other weights need.
    """
    known = start.state_dict()
    network.load_state_dict(
        {
            name: known.get(name, own if keep_others else torch.zeros_like(own))
            for name, own in network.state_dict().items()
        }
    )
