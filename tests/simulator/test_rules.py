"""Each rule of a law's parts by itself, against values worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from resilisim.simulator import (
    FINISH,
    Broken,
    Corrupt,
    Drift,
    Duration,
    EndRules,
    Episode,
    Latency,
    Law,
    Outage,
    Problem,
    RateLimit,
    build_problem,
    execution,
    start_state,
)
from resilisim.simulator.messages import WAIT
from resilisim.simulator.problem import outcome, success_probability
from resilisim.simulator.rulebook.drawn_results import (
    NAMES_AT_ONCE,
    share_of_bits,
    write_first_hidden,
    write_next_down,
)
from resilisim.simulator.rulebook.dynamics import Draw, Dynamics
from resilisim.simulator.rulebook.rules import CORRUPT, DOWN, FAILURE, SLOW, SUCCESS, chance_down, messages_until_free
from resilisim.simulator.state import EpisodeState
from tests.simulator.test_parts import SMALL

A, B, C = (SMALL.index(name) for name in "abc")


def solved(law: Law, *required: str, turns: int = 12) -> tuple[Problem, Dynamics, EpisodeState]:
    """Return a problem without end rules but turns, its parts and its start."""
    problem = build_problem(SMALL, required or ("a",), law, EndRules(turns, 0, 0))
    return problem, problem.dynamics, start_state(problem)


def sent(dynamics: Dynamics, state: EpisodeState, tool: int, draw: Draw) -> EpisodeState:
    """Return the state after a call."""
    return dynamics.after(state, execution(SMALL.names[tool]), tool, draw)


def waited(dynamics: Dynamics, state: EpisodeState, messages: int = 1) -> EpisodeState:
    """Return the state after some messages that wait."""
    for _ in range(messages):
        state = dynamics.after(state, WAIT, -1, False)
    return state


def test_a_rate_limit_counts_calls_that_went_through_in_its_window() -> None:
    problem, dynamics, state = solved(Law(rate_limit=RateLimit(2, 4)))
    chances = []
    for draw in (Draw(SUCCESS), Draw(FAILURE), Draw(SUCCESS), Draw(SUCCESS), Draw(SUCCESS)):
        chance = success_probability(problem, state, A)
        chances.append(chance > 0.0)
        state = sent(dynamics, state, A, draw if chance > 0.0 else Draw(5))
    # Two go through, two of any four messages; a refused one counts for nothing.
    assert chances == [True, True, False, False, True]
    assert success_probability(problem, state, B) > 0.0  # each tool has a limit of its own
    _, dynamics, state = solved(Law(rate_limit=RateLimit(1, 3, "all")))
    state = sent(dynamics, state, A, Draw(SUCCESS))
    for messages in range(4):
        later = waited(dynamics, state, messages)
        assert messages_until_free(dynamics.rules, later.parts, B) == max(2 - messages, 0)
        assert (dynamics.chance_of_success(later, B, None) > 0.0) == (messages >= 2)


def test_what_was_seen_of_a_group_is_forgotten_as_the_chain_does() -> None:
    _, dynamics, state = solved(Law(outage=Outage(0.1, 0.3)))
    group = dynamics.rules.group[A]
    assert chance_down(dynamics.rules, state.parts, group) == 0.25
    for seen, was_down in ((DOWN, 1.0), (SUCCESS, 0.0), (FAILURE, 0.0)):
        after = sent(dynamics, state, A, Draw(seen))
        for messages in range(4):
            expected = 0.25 + 0.6 ** (messages + 1) * (was_down - 0.25)
            assert chance_down(dynamics.rules, waited(dynamics, after, messages).parts, group) == pytest.approx(
                expected
            )
    other = dynamics.rules.group[B]
    assert chance_down(dynamics.rules, sent(dynamics, state, A, Draw(DOWN)).parts, other) == 0.25


@pytest.mark.parametrize(("begins", "ends", "after_up", "after_down"), [(1.0, 0.0, 1, 1), (0.0, 1.0, 0, 0)])
def test_groups_go_down_and_up_as_the_law_says(begins: float, ends: float, after_up: int, after_down: int) -> None:
    _, dynamics, _ = solved(Law(outage=Outage(begins, ends)))
    scratch = np.empty(NAMES_AT_ONCE, dtype=np.int64)
    for hidden, expected in (([0, 0], after_up), ([1, 1], after_down)):
        write_next_down(dynamics.rules, dynamics.numbers.luck, 1, 2, 3, hidden, scratch)
        assert hidden == [expected] * 2
    hidden = [0, 0]
    write_first_hidden(dynamics.rules, dynamics.numbers.luck, 1, 2, hidden, scratch)
    assert hidden == [after_up] * 2


def test_a_broken_tool_never_works_and_failures_tell_as_much_as_they_should() -> None:
    problem, dynamics, state = solved(Law(broken=Broken(0.3, ("a",)), history=1.0))
    assert success_probability(problem, state, A) == pytest.approx(0.7 * 0.6)
    for failures in range(1, 4):
        state = sent(dynamics, state, A, Draw(FAILURE))
        broken = 0.3 / (0.3 + 0.7 * 0.4**failures)
        assert success_probability(problem, state, A) == pytest.approx((1.0 - broken) * 0.6)
    assert success_probability(problem, sent(dynamics, state, A, Draw(SUCCESS)), A) == pytest.approx(0.6)
    results = set()
    for seed in range(30):
        episode = Episode(problem, "broken", seed)
        is_broken = bool(episode.state.hidden[dynamics.rules.at_broken + A])
        events = [episode.apply(execution("a")) for _ in range(8)]
        results.add((is_broken, any(event.success for event in events)))
    assert results == {(True, False), (False, True)}


def test_only_sound_outputs_count_and_a_validator_tells_them_apart() -> None:
    _, dynamics, state = solved(Law(corrupt=Corrupt(0.2)), "a", "b")
    state = sent(dynamics, sent(dynamics, state, A, Draw(SUCCESS)), B, Draw(CORRUPT))
    assert dynamics.chance_done(state) == 0.0
    assert dynamics.chance_done(sent(dynamics, state, B, Draw(SUCCESS))) == 1.0
    assert dynamics.chance_done(sent(dynamics, sent(dynamics, state, B, Draw(SUCCESS)), A, Draw(CORRUPT))) == 0.0
    _, dynamics, state = solved(Law(corrupt=Corrupt(0.2, "validators")), "a", "b")
    state = sent(dynamics, sent(dynamics, state, A, Draw(SUCCESS)), B, Draw(SUCCESS))
    assert dynamics.chance_done(state) == pytest.approx(0.8 * 0.8)
    assert dynamics.chance_done(sent(dynamics, state, C, Draw(SUCCESS, findings=0))) == 1.0
    assert dynamics.chance_done(sent(dynamics, state, C, Draw(SUCCESS, findings=1 << B))) == 0.0
    assert dynamics.chance_done(sent(dynamics, state, C, Draw(FAILURE))) == pytest.approx(0.64)


def test_the_base_drifts_with_every_message() -> None:
    problem, dynamics, state = solved(Law(drift=Drift(-0.15)))
    chances = [success_probability(problem, waited(dynamics, state, messages), A) for messages in range(6)]
    assert chances == pytest.approx([0.6, 0.45, 0.3, 0.15, 0.0, 0.0], abs=1e-12)


LATENCY = Latency((Duration(1, 0.5), Duration(4, 0.3), Duration(9, 0.2)), timeout=4)


def test_a_call_may_take_as_long_as_the_timeout_and_no_longer() -> None:
    problem, dynamics, state = solved(Law(latency=LATENCY))
    assert success_probability(problem, state, A) == pytest.approx(0.8 * 0.6)
    assert dynamics.chances(state, A, 0)[SLOW] == pytest.approx(0.2)
    slow = {event.seconds for event in _first_calls(problem, 60) if event.result == "too_slow"}
    fast = {event.seconds for event in _first_calls(problem, 60) if event.result != "too_slow"}
    assert (slow, fast) == ({4.0}, {1.0, 4.0})


def _first_calls(problem: Problem, number: int) -> list[Any]:
    return [Episode(problem, "calls", seed).apply(execution("a")) for seed in range(number)]


def test_time_runs_out_at_the_budget() -> None:
    problem, dynamics, state = solved(Law(latency=Latency(LATENCY.distribution, timeout=None, budget=9)))
    assert success_probability(problem, state, A) == pytest.approx(0.6)  # nine seconds are in time
    state = sent(dynamics, state, A, Draw(FAILURE, 1000))
    chance = 0.9 * 0.6 * 0.8
    assert success_probability(problem, state, A) == pytest.approx(chance)
    state = sent(dynamics, state, A, Draw(FAILURE, 4000))
    assert success_probability(problem, state, A) == pytest.approx(0.81 * 0.6 * 0.8)  # four are left
    state = sent(dynamics, state, A, Draw(FAILURE, 1000))
    assert success_probability(problem, state, A) == pytest.approx(0.9**3 * 0.6 * 0.5)
    assert not dynamics.is_out_of_time(state)
    done = sent(dynamics, state, A, Draw(SUCCESS, 3000))
    assert dynamics.is_out_of_time(done)
    assert outcome(problem, dynamics.after(done, FINISH, -1, False)) == 1
    assert dynamics.after(done, execution("a"), -1, False).ended_by == "time"
    timed = solved(Law(latency=Latency(LATENCY.distribution, timeout=4, budget=9)))[1]
    assert timed.chances(start_state(problem), A, 0)[SLOW] == pytest.approx(0.2)


def test_shares_of_bits_are_those_of_whole_numbers() -> None:
    largest = (1 << 53) - 1
    for bits in (0, 1, 12345678901, largest // 3, largest):
        for width in (0, 1, 987654321, largest, 1 << 53):
            assert share_of_bits(bits, width) == (bits * width) >> 53
