"""The exact optimum: reference values, and the tests that SPEC section 7 names."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilisim.errors import ExactLimitError, InvalidInputError
from resilisim.seeding import Draws
from resilisim.simulator import FINISH, EndRules, Episode, Law, Message, Outage, Problem, build_problem, execution
from resilisim.simulator.exact import bound, plan_following, search, solve, stage
from resilisim.simulator.exact import references as exact_references
from resilisim.simulator.exact.arena import build_arena
from resilisim.simulator.exact.optimum import SearchedOptimum, solve_afresh, start_optimum
from resilisim.simulator.exact.plan_following import plan_following_with_search
from resilisim.simulator.exact.reachable import bracketing_states, solve_reachable
from resilisim.simulator.exact.references import clairvoyant, luck_table, solve_all, solved_references
from resilisim.simulator.exact.stage import neutral_tools, told_apart
from resilisim.simulator.exact.values import Values
from resilisim.simulator.law import load_law
from resilisim.simulator.messages import STOP
from resilisim.simulator.problem import next_state, outcome, start_state, success_probability
from resilisim.simulator.state import ENDED_BY
from resilisim.simulator.tool_status import success_thresholds
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.tool_library.generator import random_library
from tests.simulator.brute_force import small_library

LIBRARY = default_library()
OFF = EndRules(max_consecutive_failures=0)
NETWORK = [
    "network_fetcher",
    "data_processing_parser",
    "network_validator",
    "data_processing_transformer",
    "network_poster",
]

# SPEC section 7: required list, V* with the rule of consecutive failures off and on, plan following off and on.
REFERENCE_VALUES = [
    (["file_operations_reader"], 0.999669, 0.996096, 0.999669, 0.996096),
    (
        ["file_operations_reader", "data_processing_parser", "data_processing_filter"],
        0.987349,
        0.979358,
        0.987349,
        0.979358,
    ),
    (
        ["file_operations_reader", "data_processing_transformer", "file_operations_writer"],
        0.929769,
        0.923321,
        0.752965,
        0.685497,
    ),
    (NETWORK, 0.842159, 0.840886, 0.747604, 0.734005),
]


def test_with_room_for_few_states_a_search_refuses_and_goes_on_refusing() -> None:
    library = random_library(Draws("few states"), 40, lambda _: None)
    problem = build_problem(library, library.names[-9:], rules=EndRules(16))
    with pytest.raises(ExactLimitError, match="more than"):
        solve_afresh(problem, 500, may_bound=False)
    few = search.Search(problem, 500)
    for _ in range(2):
        with pytest.raises(ExactLimitError):
            few.value(start_state(problem))
        assert few.num_states <= 500
    small = build_problem(library, library.names[-3:], rules=EndRules(12))
    assert solve(small, 50_000) is solve(small, 50_000)
    assert solve(small) is not solve(small, 50_000), "who asks for more room is not given what was solved with less"
    exact = solve_afresh(problem).value(start_state(problem))
    assert few.bound(start_state(problem)) >= exact
    bounded = solve_afresh(problem, 500)
    assert bounded.value(start_state(problem)) <= exact <= bounded.bound(start_state(problem))
    assert 0.0 < bounded.start_gap < 0.5


def assert_enclosed(problem: Problem, bounded: Values, exact: Values, draws: Draws) -> None:
    """Play an episode, half of the time as is thought to be best, and compare the values of every state on the way."""
    episode = Episode(problem, "brackets", 0)
    while episode.ended_by is None:
        value = exact.value(episode.state)
        assert bounded.value(episode.state) <= value + 1e-12
        assert value <= bounded.bound(episode.state) + 1e-12
        message = bounded.best_action(episode.state)
        assert bounded.action_value(episode.state, message) <= value + 1e-12
        episode.apply(message if draws.uniform() < 0.5 else execution(draws.choice(problem.library.names)))


def test_a_list_with_room_for_few_states_is_enclosed_in_every_state() -> None:
    num_open = 0
    for seed in range(12):
        draws = Draws("tests/brackets of lists", seed)
        library = random_library(
            draws, 24, draws.choice((lambda _: None, lambda uniform: round(0.6 + 0.39 * uniform, 3)))
        )
        required = sorted(draws.shuffled(library.names)[: draws.between(4, 6)], key=library.index)
        rules = EndRules(len(required) + draws.between(3, 5), draws.choice((0, 3, 5)), draws.choice((0, 3, 4)))
        problem = build_problem(library, required, rules=rules)
        exact, bounded = search.Search(problem), solve_afresh(problem, draws.choice((1, 20)))
        num_open += bounded.start_gap > 0.0
        assert_enclosed(problem, bounded, SearchedOptimum(problem, 0.0, exact.breakers, exact), draws)
    assert num_open > 2


def test_a_search_that_has_no_room_for_a_later_state_goes_on_between_bounds() -> None:
    library = random_library(Draws("few states"), 40, lambda _: None)
    problem = build_problem(library, library.names[-9:], rules=EndRules(16))
    exact, full = search.Search(problem), search.Search(problem)
    start, start_value = start_state(problem), full.value(start_state(problem))
    found, refusing = (
        SearchedOptimum(problem, 0.0, full.breakers, full, may_bound, start_value) for may_bound in (True, False)
    )
    full._memos, full._most_bytes, full._is_capped = search.Search(problem)._memos, 0, True
    after = next_state(problem, start, execution(library.names[-1]), success=False)
    with pytest.raises(ExactLimitError):
        refusing.value(after)
    assert found.gap == 0.0
    assert found.value(after) <= exact.value(after) <= found.bound(after)
    assert found.value(start) == start_value == exact.value(start), "what the start is worth is known"


@pytest.mark.long  # code is compiled for it
def test_more_tools_are_told_apart_than_a_small_record_has_room_for() -> None:
    helpers = {f"helper_{number}": [] for number in range(stage.SIZES[0])}
    library = small_library({**helpers, "goal": [*helpers][:3], "last": list(helpers)})
    problem = build_problem(library, ["goal", "last"], Law(not_executed=0.98, failed=0.99), EndRules(4))
    found, exact = solve_reachable(problem), search.Search(problem)
    assert found.states.stage.rules.place.shape == (stage.SIZES[1] + 1,)
    assert found.gap == 0.0
    assert found.value(start_state(problem)) == pytest.approx(exact.value(start_state(problem)), abs=1e-12)


@pytest.mark.parametrize(("required", "optimum_off", "optimum_on", "plan_off", "plan_on"), REFERENCE_VALUES)
def test_reference_values(required, optimum_off, optimum_on, plan_off, plan_on):
    off, on = build_problem(LIBRARY, required, rules=OFF), build_problem(LIBRARY, required)
    assert start_optimum(off) == pytest.approx(optimum_off, abs=1e-6)
    assert start_optimum(on) == pytest.approx(optimum_on, abs=1e-6)
    assert plan_following(off) == pytest.approx(plan_off, abs=1e-6)
    assert plan_following(on) == pytest.approx(plan_on, abs=1e-6)


def test_one_tool_is_a_geometric_series():
    problem = build_problem(LIBRARY, ["file_operations_reader"], rules=OFF)
    miss = math.prod(1 - 0.8 * 0.9**failures for failures in range(10))
    assert start_optimum(problem) == pytest.approx(1 - miss, abs=1e-14)
    with_rule = math.prod(1 - 0.8 * 0.9**failures for failures in range(5))
    assert plan_following(build_problem(LIBRARY, ["file_operations_reader"])) == pytest.approx(1 - with_rule, abs=1e-14)


def test_searching_costs_one_turn_a_tool():
    problem = build_problem(LIBRARY, NETWORK)
    fewer = build_problem(LIBRARY, NETWORK, rules=EndRules(max_turns=5))
    assert plan_following_with_search(problem) == pytest.approx(plan_following(fewer), abs=1e-15)
    six = [*NETWORK, "utility_logger"]
    assert plan_following_with_search(build_problem(LIBRARY, six)) == 0.0


CHATTER = (
    Message("search", query="a"),
    Message("info", tool="utility_cache"),
    Message("format_error", text="?"),
    Message("rejected", tool="nope"),
)
messages = st.one_of(
    st.sampled_from(NETWORK).map(execution),
    st.sampled_from(LIBRARY.names).map(execution),
    st.sampled_from([*CHATTER, FINISH, STOP]),
)
required_lists = st.lists(st.sampled_from(LIBRARY.names), min_size=1, max_size=4, unique=True)


@given(st.data())
def test_values_along_random_episodes(data):
    required = data.draw(st.just(NETWORK) | required_lists)
    rules = EndRules(max_consecutive_failures=data.draw(st.sampled_from([0, 3, 5])))
    problem = build_problem(LIBRARY, required, rules=rules)
    optimum = solve(problem)
    episode = Episode(problem, "task", data.draw(st.integers(0, 2**32)))
    sent = st.sampled_from(required).map(execution) | messages
    total_regret = total_luck = 0.0
    start_value = optimum.value(episode.state)
    while episode.ended_by is None:
        state, message = episode.state, data.draw(sent)
        value, action_value = optimum.value(state), optimum.action_value(state, message)
        event = episode.apply(message)
        after = optimum.value(episode.state)
        if event.executed:
            chance = success_probability(problem, state, LIBRARY.index(event.tool))
            other = optimum.value(next_state(problem, state, message, success=not event.success))
            won, lost = (after, other) if event.success else (other, after)
            assert action_value == pytest.approx(chance * won + (1 - chance) * lost, abs=1e-12)
            assert event.success_probability == chance
        else:
            assert after == action_value  # no draw, no luck: exactly
        assert 0.0 <= action_value <= value + 1e-12
        total_regret += value - action_value
        total_luck += after - action_value
    reached = outcome(problem, episode.state)
    assert optimum.value(episode.state) == reached
    assert 1 - reached == pytest.approx((1 - start_value) + total_regret - total_luck, abs=1e-9)


def test_best_choices_are_all_messages_of_the_highest_worth():
    problem = build_problem(small_library({"a": [], "b": [], "goal": ["a", "b"]}), ["goal"])
    optimum, start = solve(problem), start_state(problem)
    choices = optimum.best_choices(start)
    assert (choices.tools, choices.outside, choices.waits, choices.finishes) == ((0, 1), (), False, False)
    assert choices.value == pytest.approx(optimum.value(start), abs=1e-12)
    assert optimum.best_action(start) == execution("a")
    done = next_state(problem, start, execution("goal"), success=True)
    assert optimum.best_choices(done).finishes


def test_value_at_the_end_is_the_outcome_for_every_end():
    always = build_problem(small_library({"a": [], "b": ["a"]}, {"a": 1.0, "b": 1e-300}), ["a"])
    optimum = solve(always)
    a, b, chatter = execution("a"), execution("b"), CHATTER[0]
    distinct = [Message("search", query=str(number)) for number in range(10)]
    stories = {
        ("completion", 1): [a, FINISH],
        ("completion", 0): [FINISH],
        ("turns", 0): [a, *distinct[:9], chatter],
        ("consecutive_failures", 0): [a, b, b, b, b, b],
        ("loop", 0): [a, chatter, chatter, chatter, chatter],
        ("stopped", 1): [a, STOP],
        ("stopped", 0): [STOP],
    }
    for (ended_by, expected), story in stories.items():
        episode = Episode(always, "task", 0)
        for message in story:
            assert episode.ended_by is None
            episode.apply(message)
        assert (episode.ended_by, optimum.value(episode.state)) == (ended_by, expected)
    # A budget of time is a part of laws; an agent that breaks sends no message; only the training law knows a deadlock.
    assert {ended_by for ended_by, _ in stories} == set(ENDED_BY) - {None, "time", "agent_error", "deadlock"}


def test_clairvoyance_is_worth_at_least_the_optimum_and_finds_what_one_tool_needs():
    result = bound(NETWORK, clairvoyant_seeds=150)
    assert result["clairvoyant"] >= result["optimum"] - 3 * result["clairvoyant_se"]
    # One tool, the row rule off: some sequence succeeds iff some attempt would, failures counted in.
    problem = build_problem(
        LIBRARY, ["file_operations_reader"], rules=EndRules(max_turns=2, max_consecutive_failures=0)
    )
    mean, _ = clairvoyant(problem, range(400), "s", "t")
    direct = 0
    for seed in range(400):
        episode = Episode(problem, "t", seed, salt="s")
        direct += episode.apply(execution("file_operations_reader")).success or bool(
            episode.apply(execution("file_operations_reader")).success
        )
    assert mean == direct / 400


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3, unique=True))
def test_clairvoyant_search_equals_trying_every_sequence(seed, required):
    library = small_library({"a": [], "b": ["a"], "c": ["b"]}, {"a": 0.6, "c": 0.7})
    problem = build_problem(library, required, rules=EndRules(max_turns=5, max_consecutive_failures=3, loop_length=0))

    def some_sequence_succeeds(prefix):
        episode = Episode(problem, "t", seed, salt="s")
        for name in prefix:
            episode.apply(execution(name))
        if episode.ended_by is None:
            if outcome(problem, next_state(problem, episode.state, FINISH)):
                return True
            if len(prefix) < 5:
                return any(some_sequence_succeeds([*prefix, name]) for name in library.names)
        return False

    assert clairvoyant(problem, [seed], "s", "t")[0] == float(some_sequence_succeeds([]))


@pytest.mark.parametrize("row", [2, 3, 5])
def test_outside_tools_that_can_break_no_row_are_left_out_of_the_clairvoyant_search(row, monkeypatch):
    names = [f"tool_{number}" for number in range(60)]
    bases = {name: 0.3 + 0.01 * place for place, name in enumerate(names)}
    library = small_library({name: names[:1] if place == 1 else [] for place, name in enumerate(names)}, bases)
    problem = build_problem(library, names[:4], rules=EndRules(max_turns=12, max_consecutive_failures=row))
    counted = []

    def track(numbers):
        for number in numbers:
            counted.append(number)
            yield number

    found = clairvoyant(problem, range(150), "s", "t", track)
    assert counted == list(range(150))
    every = luck_table(problem, "s", [0], "t")[0, 4:]
    outside = np.array(problem.base_index[4:])
    thresholds = success_thresholds(problem.tables.probability)
    assert 0 < len(exact_references._can_break(problem, thresholds, every, outside)) < 30
    monkeypatch.setattr(
        exact_references, "_can_break", lambda problem, thresholds, luck, base_index: np.arange(len(luck))
    )
    assert clairvoyant(problem, range(150), "s", "t") == found
    assert 0.0 < found[0] < 1.0


def test_what_the_search_under_parts_states_encloses_the_optimum_where_tools_differ():
    # One most reliable tool that must not be called too often breaks rows: neither surely there nor left out.
    num_open = 0
    for seed in (2, 7, 10, 13, 25, 33):
        draws = Draws("tests/brackets", seed)
        library = random_library(draws, 16, lambda uniform: round(0.3 + 0.69 * uniform, 3))
        required = sorted(draws.shuffled(library.names)[: draws.between(1, 3)], key=library.index)
        turns, row, loop = draws.between(len(required) + 3, 9), draws.choice((2, 3, 5)), draws.choice((0, 2, 3, 4))
        problem = build_problem(library, required, rules=EndRules(turns, row, loop))
        start, exact = start_state(problem), start_optimum(problem)
        found = solve_reachable(problem)
        low, high = found.value(start), found.value(start) + found.start_gap
        num_open += found.start_gap > 1e-12
        assert low - 1e-12 <= exact <= high + 1e-12
        assert found.start_gap == 0.0 or found.action_value(start, found.best_action(start)) <= high + 1e-12
    assert num_open < 6  # those outside that are worth calling are told apart where that has room


def test_any_group_breaks_rows_of_failures_under_outages():
    # A row is broken in a group that is up; some groups have no tool without dependencies, some only one.
    tools = [
        {"name": name, "description": name, "dependencies": needs, "metadata": {"category": category}}
        for name, needs, category in (
            ("a", [], "left"),
            ("b", ["a"], "left"),
            ("c", [], "right"),
            ("d", [], "right"),
            ("e", [], "up"),
            ("f", ["e"], "down"),
        )
    ]
    library = ToolLibrary.from_json(json.dumps({"tools": tools}), source="six tools")
    law = Law(outage=Outage(0.1, 0.3, "category"))
    for required in (["a"], ["b"], ["f"], ["d", "b"]):
        problem = build_problem(library, required, law, EndRules(7, 3))
        enumerated, start, told = solve_reachable(problem), start_state(problem), told_apart(problem)
        assert enumerated.states.stage.tools == tuple(range(6))
        assert enumerated.gap == 0.0
        neutral = neutral_tools(problem, told, informed=False)
        wide, narrow = (states.values(start) for states in bracketing_states(problem, told, *neutral, informed=False))
        assert wide[0] - 1e-12 <= enumerated.value(start) <= wide[1] + 1e-12
        assert narrow == pytest.approx((enumerated.value(start),) * 2, abs=1e-12)


def test_short_lists_are_exact_under_the_shipped_outages():
    for required in ("data_processing_filter", "integration_scheduler"):
        found = solve_reachable(build_problem(LIBRARY, [required], load_law("outages")))
        assert found.start_gap < 1e-9


def test_all_thirty_tools_in_one_list():
    assert start_optimum(build_problem(LIBRARY, LIBRARY.names)) == 0.0
    certain = Law(base=1.0, not_executed=1.0, failed=1.0, history=1.0)
    assert start_optimum(build_problem(LIBRARY, LIBRARY.names[::-1], certain, EndRules(max_turns=30))) == 1.0


def test_what_is_too_large_is_refused_in_one_line():
    unequal = {f"h{n}": 0.5 + 0.01 * n for n in range(14)}
    wide = small_library({**{name: [] for name in unequal}, "a": list(unequal)}, unequal)
    too_many_states = r"^the exact optimum of 1 required tools with 15 in .* needs more than .* states: use fewer .*$"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "MAX_MEMO_BYTES", 1_000_000)
        with pytest.raises(ExactLimitError, match=too_many_states):
            solve(build_problem(wide, ["a"], rules=EndRules(max_turns=40)), may_bound=False)
    lone = small_library({"a": [], "b": [], "c": []})
    with pytest.raises(ExactLimitError, match=r"^the exact optimum of 1 required tools with 9000 turns is too l.*$"):
        solve(build_problem(lone, ["a"], rules=EndRules(max_turns=9000)))


def test_the_largest_lists_of_the_default_library_fit():
    depended_on = {name for tool in LIBRARY for name in tool.dependencies}
    last = [tool.name for tool in LIBRARY if tool.dependencies and tool.name not in depended_on]
    sizes = [
        math.prod(build_arena(build_problem(LIBRARY, chosen)).table_shape)
        for number in range(1, 6)
        for chosen in itertools.combinations(last, number)
    ]
    assert max(sizes) < 25_000_000


def test_unknown_and_repeated_tools_are_refused():
    with pytest.raises(InvalidInputError, match="did you mean 'file_operations_reader'"):
        bound(["file_operation_reader"])
    with pytest.raises(InvalidInputError, match="twice"):
        bound(["utility_cache", "utility_cache"])
    with pytest.raises(InvalidInputError, match="empty"):
        bound([])


def test_many_problems_are_solved_once_each():
    problems = [build_problem(LIBRARY, required) for required, *_ in REFERENCE_VALUES] * 3
    solved = solve_all(problems)
    assert len(solved) == len(REFERENCE_VALUES)
    assert all(result == solved_references(problem) for problem, result in solved.items())
