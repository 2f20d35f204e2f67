"""What a training is taught and measured by: random libraries that it draws, its lessons, and when it is measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from resilisim.envs.random_libraries import RandomSettings, optimum_bracket, random_settings
from resilisim.envs.settings import JUDGED_REWARDS
from resilisim.envs.workflow.options import WorkflowOptions
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.policies.ppo.config import TrainingConfig
from resilisim.policies.ppo.imitation import Batch, Imitation, Rehearsal, imitation_batches
from resilisim.policies.ppo.network import Network, WorkflowActor
from resilisim.policies.ppo.states.lessons import make_lesson
from resilisim.policies.ppo.validation import Validator
from resilisim.seeding import TRAINING_SALT, hash_words
from resilisim.simulator.law import TASK_PARTS
from resilisim.simulator.problem import build_problem
from resilisim.tasks import Task

# States of the warm start: so many environments, so many steps for each batch, so many of them not optimal.
IMITATION_ENVS = 64
IMITATION_STEPS = 8
IMITATION_NOISE = 0.2
IMITATION_LEARNING_RATE = {"given": 1e-3, "random": 2e-3}  # the latter falls to 0

# Of random libraries: tasks of each, by what they are for, and how many there are in validation.
TASKS_OF_A_LIBRARY = {"training": 64, "imitation": 8, "validation": 3}
VALIDATION_LIBRARIES = 20
# Imitation: gradient steps after each library; every so many lessons so many tasks of the training, under its law;
# sizes of the other libraries, for weights do not depend on them, and large ones take time; parts that are drawn more
# often than others, for they are the hardest.
IMITATION_UPDATES_OF_A_LIBRARY = 8
IMITATION_CHECKPOINT_EVERY = 120  # gradient steps between two points to resume from: a minute or two
HOME_LESSONS, HOME_TASKS = 4, 32
IMITATION_TOOLS = (5, 10, 15, 20, 30, 45, 60, 100, 200, 300, 1000)
HARD_PARTS = ("rate_limit", "outage", "broken", "corrupt", "error_kinds")


def draw_settings(config: TrainingConfig, stream: str, number: int, home: list[Task]) -> RandomSettings:
    """Draw random libraries, turns and laws with tasks; what has to be solved in training is solved."""
    solved = stream != "training" or config.reward in JUDGED_REWARDS
    name = stream if stream == "validation" else f"{stream}/{config.seed}"
    parts, num_tools = None, None
    if stream == "imitation":
        num_tools = IMITATION_TOOLS[number % len(IMITATION_TOOLS)]
        turn, kind = divmod(number, HOME_LESSONS)  # one kind is without parts, one with each, one with the hard ones
        every = {HOME_LESSONS - 2: TASK_PARTS, HOME_LESSONS - 1: HARD_PARTS}.get(kind, ())
        parts = [every[turn % len(every)]] if every else []
    drawn = random_settings(
        name,
        number,
        TASKS_OF_A_LIBRARY[stream],
        num_tools=num_tools,
        parts=parts,
        home=home,
        solved=solved and stream != "validation",
        selected=stream == "training",
    )
    return replace(drawn, options=drawn.options.with_options({"detailed": config.detailed}))


def random_validators(config: TrainingConfig) -> Iterator[Validator]:
    """Yield what measures a network on random libraries that training never sees."""
    for number in range(VALIDATION_LIBRARIES):
        drawn = draw_settings(config, "validation", number, [])
        library, law, rules = drawn.options.resolved_library(), drawn.options.failure_model(), drawn.options.end_rules()
        problems = [build_problem(library, task.required_tools, law, rules) for task in drawn.tasks]
        optima = [optimum_bracket(problem)[1] for problem in problems]
        yield Validator(drawn.tasks, config.validation_episodes, drawn.options, optima, is_computed=False)


def make_imitation(config: TrainingConfig, network: Network) -> Imitation:
    """Return what teaches the network the exact optimum before PPO begins; random libraries are rehearsed."""
    # V* is the value under the plain reward without discounting only.
    is_plain = config.reward in ("full_success", "success") and config.gamma == 1.0 and config.reward_scale == 1.0
    is_random = config.libraries == "random"
    rehearsal = Rehearsal(config.imitation_updates, IMITATION_UPDATES_OF_A_LIBRARY) if is_random else None
    return Imitation(network, 0.5 if is_plain else 0.0, IMITATION_LEARNING_RATE[config.libraries], rehearsal)


def lesson_batches(
    config: TrainingConfig, network: Network, lessons: Iterable[tuple[WorkflowOptions, int]], first_number: int = 0
) -> Iterator[Batch]:
    """Yield the batches of lessons, the first of which has a number: for each its options, and how many batches.

    On given libraries the optimum plays; in random ones states are followed, the network's own mistakes among them.
    """
    for number, (options, num_batches) in enumerate(lessons, first_number):
        if config.libraries == "random":
            words = hash_words("lesson", config.seed, number)
            yield make_lesson(options, np.random.default_rng(words), WorkflowActor(network))
            continue
        yield from imitation_batches(
            WorkflowVectorEnv(IMITATION_ENVS, settings=options, salt=f"{TRAINING_SALT}/imitation"),
            num_batches=num_batches,
            num_steps=IMITATION_STEPS,
            actor_noise=IMITATION_NOISE,
            seed=config.seed,
        )


def evaluation_is_due(before: int, after: int, config: TrainingConfig) -> bool:
    """Return whether an evaluation is due between two numbers of updates of imitation."""
    many, whole = config.imitation_evaluations, config.imitation_updates
    return many > 0 and before * many // whole < after * many // whole
