"""What the parts of a training remember, against their definitions, and what they set between rollouts."""

from __future__ import annotations

import itertools
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.envs.workflow.kernels.training_law import MAX_STAGE, STAGES, Stage
from resilisim.errors import InvalidInputError, StoreError
from resilisim.policies.ppo.adjustment import EPISODE_FIGURES
from resilisim.policies.ppo.between_rollouts.convergence import ConvergenceMonitor
from resilisim.policies.ppo.between_rollouts.curriculum import Curriculum, Lesson, lessons_by_optimum
from resilisim.policies.ppo.between_rollouts.learning_rate import ScheduleState, scheduled
from resilisim.policies.ppo.between_rollouts.patterns import PatternLibrary, extract_patterns
from resilisim.policies.ppo.between_rollouts.training_parts import RunningSuccess, TrainingParts
from resilisim.policies.ppo.config import load_config
from resilisim.simulator import EndRules, Law
from resilisim.simulator.exact.optimum import solve
from resilisim.simulator.law import load_law
from resilisim.simulator.problem import build_problem, start_state
from resilisim.tasks import benchmark_tasks
from resilisim.tool_library import default_library

RATE = st.floats(0.0, 1.0)
OUTCOMES = st.lists(st.booleans(), max_size=130)
TOOLS = st.sampled_from(["a", "b", "c", "d"])
EPISODES = st.lists(st.tuples(st.lists(TOOLS, max_size=6), RATE), max_size=12)


def through_json(state):
    """Return what is read from the JSON text of a state, which has to be the same."""
    read = type(state).from_mapping(json.loads(json.dumps(state.to_mapping())))
    assert read == state
    return read


def successes(number, of):
    return [True] * number + [False] * (of - number)


@given(st.lists(OUTCOMES, max_size=5))
def test_running_success_is_the_mean_of_the_last_hundred(calls):
    running, everything = RunningSuccess(), []
    assert running.rate == 0.0
    for outcomes in calls:
        running = through_json(running.after(outcomes))
        everything += outcomes
        last = everything[-100:]
        assert running.rate == (sum(last) / len(last) if last else 0.0)


@pytest.mark.parametrize(
    ("outcomes", "stage"),
    [
        (successes(49, of=49), 2),  # too few episodes
        (successes(36, of=50), 3),  # 0.72 > 0.7
        (successes(35, of=50), 2),  # 0.70 is not above 0.7
        (successes(14, of=50), 1),
        (successes(0, of=200), 1),  # one call moves by one stage at most
        (successes(0, of=500) + successes(36, of=50), 3),  # only the last 50 count
    ],
)
def test_a_stage_moves_on_the_last_fifty_episodes(outcomes, stage):
    assert Curriculum(stage=2).after(outcomes).stage == stage
    rows = [(0.1, 50, 0.2, 20), (0.3, 30, 0.4, 22), (0.5, 20, 0.7, 24), (0.7, 15, 0.9, 26), (0.7, 10, 1.0, 28)]
    assert list(STAGES) == [Stage(*row) for row in rows], "those of Table 12, and steps"


@given(st.lists(OUTCOMES, max_size=8), st.integers(0, 4))
def test_the_stage_follows_the_definition_and_a_change_empties_the_window(calls, stage):
    curriculum, since_change = Curriculum(stage=stage), []
    for outcomes in calls:
        curriculum = through_json(curriculum.after(outcomes))
        since_change += outcomes
        last = since_change[-50:]
        if len(last) == 50:
            moved = stage + 1 if sum(last) > 35 else stage - 1 if sum(last) < 15 else stage
            if 0 <= moved <= 4 and moved != stage:
                stage, since_change = moved, []
        assert curriculum.stage == stage
        assert list(curriculum.outcomes) == since_change[-50:]


@given(st.lists(st.tuples(st.integers(0, 1), RATE, st.integers(0, 4)), min_size=1, max_size=40))
def test_the_adaptive_learning_rate_follows_the_definition(stream):
    state = ScheduleState()
    for iteration, (phase, rate, stage) in enumerate(stream):
        state = through_json(state.after(iteration, phase, rate, stage))
    last = len(stream) - 1
    phase, rate, stage = stream[last]
    began = [n for n in range(1, len(stream)) if (stream[n - 1][0], stream[n][0]) == (0, 1)]
    recently = phase == 1 and bool(began) and last - began[-1] < 10
    same = last
    while same > 0 and (stream[same - 1][0], stream[same - 1][2]) == (phase, stage):
        same -= 1  # in another phase or stage success meant something else
    declining = rate < max(r for _, r, _ in stream[max(same, last - 9) :]) - 0.2
    assert (state.phase_changed_recently, state.declining) == (recently, declining)
    factor = 1.2 if recently else 0.8 if declining else 1.0  # the change of phase counts
    assert state.learning_rate(3e-4) == pytest.approx(3e-4 * 0.95**stage * factor)


@given(st.sampled_from(["linear", "cosine"]), st.floats(0.0, 10.0), st.floats(-0.5, 1.5), st.floats(-0.5, 1.5))
def test_plain_schedules_fall_from_base_to_nothing(kind, base, one, other):
    early, late = scheduled(base, kind, min(one, other)), scheduled(base, kind, max(one, other))
    assert -1e-12 <= late <= early + 1e-12 <= base + 2e-12
    assert (scheduled(base, kind, 0.0), scheduled(base, kind, 1.0)) == (base, pytest.approx(0.0))
    assert scheduled(base, "constant", one) == base
    assert scheduled(2.0, "linear", 0.25) == 1.5
    assert scheduled(2.0, "cosine", 0.25) == pytest.approx(1.0 + math.sqrt(2) / 2)


def library(episodes, max_patterns=4096):
    sequences, scores = [sequence for sequence, _ in episodes], [score for _, score in episodes]
    return PatternLibrary(max_patterns).add(sequences, scores)


@given(EPISODES, st.integers(1, 3))
def test_scores_are_means_over_the_episodes_that_hold_a_pattern(episodes, min_count):
    holding = {}
    for sequence, score in episodes:
        for pattern in extract_patterns(sequence):  # counted once, however often the episode holds it
            holding.setdefault(pattern, []).append(score)
    expected = {pattern: sum(own) / len(own) for pattern, own in sorted(holding.items()) if len(own) >= min_count}
    scores = library(episodes).scores(min_count)
    assert list(scores) == list(expected)
    assert scores == pytest.approx(expected)


@given(EPISODES, EPISODES, st.integers(1, 5))
def test_adding_in_parts_is_adding_at_once_and_the_size_is_capped(first, then, size):
    grown = library(first).add([sequence for sequence, _ in then], [score for _, score in then])
    assert grown == library(first + then)
    assert len(through_json(library(first, size)).patterns) <= size


def test_the_most_frequent_patterns_are_kept_in_a_fixed_order():
    assert extract_patterns([]) == extract_patterns(["a"]) == set()
    assert extract_patterns(["a", "b", "a", "b"]) == {("a", "b"), ("b", "a"), ("a", "b", "a"), ("b", "a", "b")}
    episodes = [(["d", "c"], 0.1), (["d", "c"], 0.1), (["b", "c"], 1.0), (["a", "b"], 0.5), (["c", "d"], 1.0)]
    assert list(library(episodes, 3).scores(1)) == [("a", "b"), ("b", "c"), ("d", "c")]
    assert list(library(episodes, 1).scores(1)) == [("d", "c")]
    assert library(episodes).scores() == {}  # seen once or twice says more about luck than about tools


@given(st.lists(st.tuples(st.integers(0, 1), RATE, RATE, st.none() | st.floats(1.0, 20.0)), max_size=30))
def test_convergence_follows_the_definition(windows):
    monitor = ConvergenceMonitor()
    for window in windows:
        monitor = through_json(monitor.after(*window))
    phase = windows[-1][0] if windows else 0
    run = len(windows)
    while run > 0 and windows[run - 1][0] == phase:
        run -= 1  # a new phase starts from nothing
    latest = windows[run:]
    holds = len(latest) >= 5 and all(window[1 + phase] > (0.8, 0.7)[phase] for window in latest[-5:])
    if phase == 1 and holds:
        before = [steps for *_, steps in latest[-10:-5] if steps is not None]
        now = [steps for *_, steps in latest[-5:] if steps is not None]
        enough = len(latest) >= 10 and before and now
        holds = bool(enough and sum(now) / len(now) < sum(before) / len(before))
    assert monitor.converged == holds


@pytest.mark.parametrize(
    ("phase", "values", "steps", "converged"),
    [
        (0, [0.1, 0.81, 0.9, 0.9, 0.9, 0.9], [5.0] * 6, True),
        (0, [0.9, 0.9, 0.8, 0.9, 0.9], [5.0] * 5, False),  # 0.8 is not above 0.8
        (1, [0.8] * 10, [6.0] * 5 + [5.0] * 5, True),
        (1, [0.8] * 10, [5.0] * 10, False),  # not fewer steps
        (1, [0.8] * 9, [6.0] * 5 + [5.0] * 4, False),  # nothing to compare with yet
        (1, [0.9] * 9 + [0.7], [6.0] * 5 + [5.0] * 5, False),
        (1, [0.8] * 10, [None, 6.0, None, 7.0, 8.0, 5.0, None, 5.0, 5.0, 5.0], True),
    ],
)
def test_when_convergence_is_seen(phase, values, steps, converged):
    monitor = ConvergenceMonitor()
    for value, number in zip(values, steps, strict=True):
        monitor = monitor.after(phase, value if phase == 0 else 1.0, value, number)
    assert monitor.converged == converged


@pytest.mark.parametrize(
    ("state", "change", "message"),
    [
        (Curriculum(), {"stage": 5}, "field 'stage': got 5; expected a whole number, at least 0 and at most 4"),
        (Curriculum(), {"stages": 1}, "unknown field 'stages': did you mean 'stage'"),
        (RunningSuccess(), {"num_episodes": 0}, "field 'num_episodes': got 0"),
        (ScheduleState(), {"phase": 2}, "field 'phase': got 2; expected a whole number, at least 0 and at most 1"),
        (ScheduleState(), {"rates": [1.5]}, "field 'rates', item 1: got 1.5; expected a number, at least 0"),
        (PatternLibrary(), {"patterns": [{"tools": ["a"], "total": 1.0, "count": 1}]}, "of at least 2 items"),
        (PatternLibrary(), {"patterns": [{"tools": ["a", "b"], "total": "x", "count": 1}]}, "field 'total': got .x"),
        (ConvergenceMonitor(), {"correct": [2.0]}, "field 'correct', item 1: got 2.0; expected a number"),
    ],
)
def test_what_no_part_could_have_written_is_refused(state, change, message):
    with pytest.raises(InvalidInputError, match=message):
        type(state).from_mapping(state.to_mapping() | change)


class Switches:
    """Environments that only remember what they are told."""

    def set_running_success(self, rate):
        self.rate = rate

    def set_stage(self, stage, *, max_turns, tasks):
        self.stage, self.max_turns, self.tasks = stage, max_turns, tasks

    def set_patterns(self, patterns):
        self.patterns = patterns


def episodes(count, success, score=1.0):
    values = {"success": success, "full_success": success, "score": score, "coverage": 1.0, "sequence": 1.0}
    values |= {"steps": 5.0, "episode_return": 1.0}
    return {name: np.full(count, values[name]) for name in EPISODE_FIGURES}


def test_parts_set_their_values_between_rollouts():
    config = load_config("paper")
    parts, envs, model = TrainingParts(config), Switches(), SimpleNamespace()
    parts.before_rollout(model, envs, 0.0)
    assert (envs.rate, envs.stage, envs.patterns) == (0.0, 0, {})
    assert (parts.learning_rate, model.ent_coef) == (3e-4, 0.01)
    sequences = [("file_operations_reader", "data_processing_parser")] * 100
    parts.after_rollout(0, episodes(100, 1.0, score=0.75), sequences)
    parts.before_rollout(model, envs, 0.5)
    assert (envs.rate, envs.stage, model.ent_coef) == (1.0, 1, 0.005)
    assert envs.patterns == {("file_operations_reader", "data_processing_parser"): 0.75}
    parts.after_rollout(1, episodes(100, 1.0), sequences)
    parts.before_rollout(model, envs, 0.5)
    # Two stages up; the rate follows the stage in which the rollout was played, and the sequence phase has begun.
    assert (envs.stage, parts.learning_rate) == (2, pytest.approx(3e-4 * 0.95 * 1.2))
    figures = {"running_success": 1.0, "phase": 1.0, "stage": 2.0, "patterns": 1.0, "converged": 0.0}
    assert figures.items() <= parts.figures().items()
    again = TrainingParts(config)
    again.restore(json.loads(json.dumps(parts.to_mapping())))
    assert again.to_mapping() == parts.to_mapping()
    with pytest.raises(StoreError, match="curriculum"):
        again.restore({"success_rate": parts.to_mapping()["success_rate"]})


def test_parts_that_are_off_leave_things_as_they_are():
    config = load_config("quick")
    parts, envs, model = TrainingParts(config), Switches(), SimpleNamespace(ent_coef=config.entropy)
    parts.after_rollout(0, episodes(100, 1.0), [])
    parts.before_rollout(model, envs, 0.5)
    assert envs.stage == MAX_STAGE  # without a curriculum success means the same all the time
    assert not hasattr(envs, "patterns")
    assert (model.ent_coef, parts.learning_rate) == (config.entropy, pytest.approx(config.learning_rate / 2))
    assert list(parts.figures()) == ["running_success", "phase", "learning_rate"]


def test_lessons_by_optimum_are_harder_and_harder_tasks_in_fewer_and_fewer_steps():
    library, tasks = default_library(), benchmark_tasks()[::72]
    required = [task.required_tools for task in tasks]
    lessons = lessons_by_optimum(library, required, Law())
    assert [lesson.max_turns for lesson in lessons] == [14, 13, 12, 11, 10]
    assert [len(lesson.tasks) for lesson in lessons] == [14, 28, 42, 56, 70]
    assert {lesson.row for lesson in lessons} == {MAX_STAGE}  # success is always everything

    def optimum(place, max_turns):
        problem = build_problem(library, required[place], Law(), EndRules(max_turns))
        return solve(problem).value(start_state(problem))

    for easier, harder in itertools.pairwise(lessons):
        assert set(easier.tasks) < set(harder.tasks)
        assert easier.optimum > harder.optimum
        added = set(harder.tasks) - set(easier.tasks)
        assert min(optimum(place, 10) for place in easier.tasks) >= max(optimum(place, 10) for place in added)
    first = lessons[0]
    assert first.optimum == pytest.approx(np.mean([optimum(place, 14) for place in first.tasks]))
    with pytest.raises(InvalidInputError, match="law 'outages': expected a law without parts"):
        lessons_by_optimum(library, required, load_law("outages"))


def test_the_stage_moves_by_the_share_of_its_optimum():
    rule = Curriculum(stage=1, advance_above=0.9, regress_below=0.5, min_episodes=50)
    assert [rule.after(successes(count, of=50), 0.8).stage for count in (19, 20, 36, 37)] == [0, 1, 1, 2]


def test_a_curriculum_by_optimum_says_what_is_played_and_how_long():
    lessons = [Lesson(MAX_STAGE, 0.8, (stage,), 14 - stage) for stage in range(5)]
    parts, envs = TrainingParts(load_config("quick", curriculum="optimum"), lessons), Switches()
    for stage in range(3):
        parts.before_rollout(SimpleNamespace(), envs, 0.0)
        assert (envs.stage, envs.max_turns, envs.tasks) == (MAX_STAGE, 14 - stage, (stage,))
        assert {"stage": stage, "optimum_of_stage": 0.8}.items() <= parts.figures().items()
        parts.after_rollout(stage, episodes(500, 1.0), [])
