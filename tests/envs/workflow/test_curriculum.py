"""Table 12, when the stage moves, and the running success rate."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.envs.workflow.training import STAGES, Curriculum, RunningSuccess, Stage, stage_at
from resilisim.errors import InvalidInputError

OUTCOMES = st.lists(st.booleans(), max_size=130)


def successes(number: int, of: int) -> list[bool]:
    return [True] * number + [False] * (of - number)


def test_stages_are_those_of_table_12() -> None:
    assert list(STAGES) == [
        Stage(0.1, 50, 0.2),
        Stage(0.3, 30, 0.4),
        Stage(0.5, 20, 0.7),
        Stage(0.7, 15, 0.9),
        Stage(0.7, 10, 1.0),
    ]
    assert stage_at(0) == STAGES[0]
    assert stage_at(4) == stage_at(7) == STAGES[4]
    with pytest.raises(InvalidInputError, match=r"stage -1 .*expected 0 to 4"):
        stage_at(-1)


@pytest.mark.parametrize(
    ("outcomes", "stage"),
    [
        (successes(49, of=49), 2),  # too few episodes
        (successes(0, of=49), 2),
        (successes(36, of=50), 3),  # 0.72 > 0.7
        (successes(35, of=50), 2),  # 0.70 is not above 0.7
        (successes(15, of=50), 2),  # 0.30 is not below 0.3
        (successes(14, of=50), 1),
        (successes(0, of=200), 1),  # one call moves by one stage at most
        (successes(0, of=500) + successes(36, of=50), 3),  # only the last 50 count
    ],
)
def test_a_stage_moves_on_the_last_fifty_episodes(outcomes: list[bool], stage: int) -> None:
    assert Curriculum(stage=2).after(outcomes).stage == stage


def test_a_change_empties_the_window_and_no_change_keeps_it() -> None:
    changed = Curriculum().after(successes(50, of=50))
    assert (changed.stage, changed.outcomes, changed.success_rate) == (1, (), None)
    assert changed.after(successes(49, of=49)).stage == 1
    assert changed.after(successes(49, of=49)).after([True]).stage == 2
    kept = Curriculum().after(successes(25, of=50))
    assert (kept.stage, kept.success_rate) == (0, 0.5)


def test_stages_end_at_both_ends() -> None:
    top = Curriculum(stage=4).after(successes(50, of=50))
    assert (top.stage, top.success_rate) == (4, 1.0)
    bottom = Curriculum().after(successes(0, of=50))
    assert (bottom.stage, bottom.success_rate) == (0, 0.0)


def test_thresholds_are_fields() -> None:
    quick = Curriculum(advance_above=0.4, regress_below=0.2, min_episodes=4)
    assert quick.after([True, True, False, False]).stage == 1
    assert quick.after([True, False, False, False]).stage == 0


@given(st.lists(OUTCOMES, max_size=8), st.integers(0, 4))
def test_the_stage_follows_the_definition(calls: list[list[bool]], start: int) -> None:
    curriculum, stage, since_change = Curriculum(stage=start), start, list[bool]()
    for outcomes in calls:
        curriculum = curriculum.after(outcomes)
        since_change += outcomes
        last = since_change[-50:]
        if len(last) == 50:
            moved = stage + 1 if sum(last) > 35 else stage - 1 if sum(last) < 15 else stage
            if 0 <= moved <= 4 and moved != stage:
                stage, since_change = moved, []
        assert curriculum.stage == stage
        assert list(curriculum.outcomes) == since_change[-50:]


@given(st.lists(OUTCOMES, max_size=5))
def test_running_success_is_the_mean_of_the_last_hundred(calls: list[list[bool]]) -> None:
    running, everything = RunningSuccess(), list[bool]()
    assert running.rate == 0.0
    for outcomes in calls:
        running = running.after(outcomes)
        everything += outcomes
        last = everything[-100:]
        assert running.rate == (sum(last) / len(last) if last else 0.0)


@given(OUTCOMES, OUTCOMES)
def test_json_keeps_everything(before: list[bool], after: list[bool]) -> None:
    curriculum = Curriculum(stage=1).after(before)
    read = Curriculum.from_mapping(json.loads(json.dumps(curriculum.to_mapping())))
    assert read == curriculum
    assert read.after(after) == curriculum.after(after)
    running = RunningSuccess().after(before)
    assert RunningSuccess.from_mapping(json.loads(json.dumps(running.to_mapping()))) == running


def test_numpy_outcomes_are_taken() -> None:
    running = RunningSuccess().after(np.array([True, False]))
    assert running.rate == 0.5
    assert json.dumps(running.to_mapping()) == '{"outcomes": [true, false], "num_episodes": 100}'


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stage": 5}, r"^curriculum: stage is 5: expected a whole number, 0 to 4$"),
        ({"stage": True}, r"stage is true"),
        ({"outcomes": [1, 0]}, r"expected true or false"),
        ({"outcomes": [True] * 51}, r"51 outcomes .*at most 50"),
        ({"outcomes": 3}, r"expected true or false"),
        ({"advance_above": 0.2}, r"regress_below is 0.3: expected at most advance_above, which is 0.2"),
        ({"advance_above": float("nan")}, r"advance_above is NaN: expected a number, 0 to 1"),
        ({"min_episodes": 0}, r"min_episodes is 0: expected a whole number, at least 1"),
        ({"stages": 1}, r"unknown field 'stages' in curriculum: did you mean 'stage'\?"),
    ],
)
def test_unusable_state_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Curriculum.from_mapping(Curriculum().to_mapping() | change)


def test_missing_fields_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"running success, field 'num_episodes': is missing"):
        RunningSuccess.from_mapping({"outcomes": []})
    with pytest.raises(InvalidInputError, match=r"running success: expected an object"):
        RunningSuccess.from_mapping([])
