"""Laws with parts in worlds: the chance of completing a reference solution, luck and regret along it, refusals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from resilisim import evaluate
from resilisim.envs import ConversationEnv, EnvironmentSettings
from resilisim.errors import InvalidInputError
from resilisim.evaluation.episode.attribution import identity_error
from resilisim.evaluation.episode.play import play_episode
from resilisim.evaluation.run.rescoring import rescore_run
from resilisim.simulator import (
    Broken,
    Corrupt,
    Drift,
    Duration,
    EndRules,
    ErrorKinds,
    Goal,
    Latency,
    Law,
    Outage,
    Problem,
    RateLimit,
    build_problem,
    execution,
    start_state,
)
from resilisim.simulator.exact import solve
from resilisim.simulator.exact.values import Values
from resilisim.simulator.messages import WAIT
from resilisim.simulator.problem import branches
from resilisim.simulator.rulebook.rules import FAILURE, RESULTS
from resilisim.simulator.state import has_succeeded
from resilisim.workflows import Step
from tests.worlds.notebook import LIBRARY, NAME, Notebook

TASK = Notebook().tasks()[0]
EVERYTHING = Law(
    "everything",
    base=0.7,
    history=0.9,
    rate_limit=RateLimit(2, 4, "all"),
    outage=Outage(0.2, 0.5, "all"),
    broken=Broken(0.1),
    drift=Drift(-0.01),
)


def solved(law: Law, calls: list[str], turns: int, **rules: Any) -> tuple[Problem, Values]:
    """Return a program to be completed without an end for failures in a row, and its values."""
    given = EndRules(max_turns=turns, **{"max_consecutive_failures": 0, **rules})
    goal = Goal(tuple(dict.fromkeys(calls)), program=tuple(calls))
    problem = build_problem(LIBRARY, goal, law, given, arguments_matter=True)
    return problem, solve(problem)


def chance(law: Law, calls: list[str], turns: int, **rules: Any) -> float:
    problem, solution = solved(law, calls, turns, **rules)
    return solution.value(start_state(problem))


def sure(**parts: Any) -> Law:
    """Return a law under which nothing but the parts makes calls fail."""
    return Law(**{"base": 1.0, "not_executed": 1.0, "failed": 1.0, "history": 1.0, **parts})


def _binomial_tail(successes: int, tries: int, p: float) -> float:
    return sum(math.comb(tries, k) * p**k * (1 - p) ** (tries - k) for k in range(successes, tries + 1))


@pytest.mark.parametrize(("begins", "ends", "turns"), [(0.1, 0.3, 1), (0.1, 0.3, 5), (0.6, 0.2, 4), (0.0, 0.5, 3)])
def test_one_call_meets_an_outage_only_if_it_lasts_all_turns(begins: float, ends: float, turns: int) -> None:
    law = sure(outage=Outage(begins, ends, "all"))
    down = begins / (begins + ends) * (1 - ends) ** (turns - 1)
    assert chance(law, ["notebook_reader"], turns) == pytest.approx(1 - down, abs=1e-12)


@pytest.mark.parametrize(("window", "turns", "calls"), [(3, 7, 3), (3, 6, 3), (2, 9, 2), (5, 11, 1), (1, 4, 3)])
def test_under_a_rate_limit_every_window_has_one_try(window: int, turns: int, calls: int) -> None:
    law = sure(base=0.7, rate_limit=RateLimit(1, window, "tool"))
    tries = (turns - 1) // window + 1
    assert chance(law, ["notebook_reader"] * calls, turns) == pytest.approx(
        _binomial_tail(calls, tries, 0.7), abs=1e-12
    )


def test_broken_tools_slow_calls_and_drift_have_their_closed_forms() -> None:
    read = ["notebook_reader"]
    broken = sure(base=0.6, broken=Broken(0.2))
    assert chance(broken, read * 2, 5) == pytest.approx(0.8 * _binomial_tail(2, 5, 0.6), abs=1e-12)
    drifting = sure(base=0.6, drift=Drift(-0.1))
    assert chance(drifting, read, 3) == pytest.approx(1 - 0.4 * 0.5 * 0.6, abs=1e-12)
    durations = (Duration(1, 0.75), Duration(9, 0.25))
    slow = sure(latency=Latency(durations, timeout=2))
    assert chance(slow, read, 3) == pytest.approx(1 - 0.25**3, abs=1e-12)
    hurried = sure(latency=Latency(durations, timeout=2, budget=4))  # 2 + 2, or 1 + 2 and at most 1 more
    assert chance(hurried, read, 3) == pytest.approx(1 - 0.25**2, abs=1e-12)
    kinds = sure(base=0.6, error_kinds=ErrorKinds(input=0.0))
    assert chance(kinds, read * 2, 5) == pytest.approx(_binomial_tail(2, 5, 0.6), abs=1e-12)


def test_waiting_pays_where_the_next_call_could_be_the_last_one() -> None:
    """After one failure the group was seen down, or the tool failed in a row; the row of two ends the episode."""
    law = sure(outage=Outage(0.1, 0.3, "all"))
    problem, solution = solved(law, ["notebook_reader"], 10, max_consecutive_failures=2)
    start = start_state(problem)
    up, down = (after for _, after in branches(problem, start, execution("notebook_reader")))
    if has_succeeded(start, execution("notebook_reader"), down):
        up, down = down, up
    assert [solution.best_action(state).kind for state in (start, down, up)] == ["execute", "wait", "finish"]
    # Down now; up when it matters, on the last turn but none: waiting is for the nine turns that are left.
    share = 0.1 / 0.4
    up_later = 1 - (share + (1 - share) * 0.6**9)
    assert solution.value(down) == pytest.approx(up_later, abs=1e-12)
    assert solution.value(start) == pytest.approx(1 - share + share * up_later, abs=1e-12)


def _best(problem: Problem, tools: list[str], state: Any, done: int) -> float:
    """Return the value of a state by everything that can happen, nothing remembered and nothing left out."""
    if state.ended_by is not None:
        return 0.0
    if done == len(tools):
        return 1.0
    if state.turns_used == problem.rules.max_turns:
        return 0.0
    return max(
        sum(
            chance * _best(problem, tools, after, done + has_succeeded(state, message, after))
            for chance, after in branches(problem, state, message)
        )
        for message in (execution(tools[done], {"n": done}), WAIT)
    )


HURRIED = Law(
    base=0.7, broken=Broken(0.1), drift=Drift(0.02), latency=Latency((Duration(1, 0.5), Duration(3, 0.5)), budget=7)
)


@pytest.mark.parametrize(("law", "turns"), [(EVERYTHING, 6), (HURRIED, 5)])
def test_the_chance_is_that_of_everything_that_can_happen(law: Law, turns: int) -> None:
    tools = ["notebook_reader", "arithmetic_calculator", "notebook_reader"]
    problem, solution = solved(law, tools, turns, max_consecutive_failures=3)
    start = start_state(problem)
    assert solution.value(start) == pytest.approx(_best(problem, tools, start, 0), abs=1e-12)


class _Wanderer:
    """Reads pages, one of which is not there, waits where it may, and guesses."""

    def reset(self, observation: str, info: Any) -> None:
        self.number = 0

    def act(self, observation: str, info: Any) -> str:
        self.number += 1
        if self.number == 3:
            return "<wait/>"
        pages = {1: 77, 2: 1, 4: 1, 5: 2, 6: 88, 7: 2}
        read = f'<tool_call>notebook_reader {{"page": {pages.get(self.number)}}}</tool_call>'
        return read if self.number in pages else "<finish>0</finish>"


def test_luck_has_mean_zero_also_where_the_tools_themselves_refuse() -> None:
    settings = EnvironmentSettings(law=EVERYTHING, max_consecutive_failures=0).in_world(NAME)
    env, luck, results = ConversationEnv(settings), [], set()
    for seed in range(80):
        record = play_episode(env, _Wanderer(), TASK, "baseline", seed)
        assert identity_error(record) < 1e-12
        assert record["optimum_knowledge"] == "observing"
        luck.append(record["luck"])
        results |= {(step["result"], step.get("real", False)) for step in record["steps"] if "result" in step}
    mean = sum(luck) / len(luck)
    spread = math.sqrt(sum((one - mean) ** 2 for one in luck) / len(luck))
    assert spread > 0.05
    assert abs(mean) < 3.3 * spread / math.sqrt(len(luck))
    assert {("success", False), ("failure", False), (RESULTS[FAILURE], True), ("outage", False)} <= results


def test_the_reference_waits_reaches_its_ceiling_and_is_scored_again_to_the_same(tmp_path: Path) -> None:
    settings = EnvironmentSettings(law=EVERYTHING).in_world(NAME)
    result = evaluate(["reference", _Wanderer], f"{NAME}:4", "baseline", 8, out=tmp_path / "run", environment=settings)
    row = result.row("reference", "baseline")
    assert 0.2 < row.optimum.value < 0.9
    assert row.luck_adjusted.value == pytest.approx(row.optimum.value, abs=1e-9)
    records = list(result.records())
    oracle = [record for record in records if record["policy"] == "reference"]
    assert all(record["regret"] == pytest.approx(0.0, abs=1e-12) for record in oracle)
    assert any(step["kind"] == "wait" for record in oracle for step in record["steps"])
    hopeful = [step for record in oracle for step in record["steps"] if step["value"] > 0.0]
    assert not any(step.get("result") == "rate_limited" for step in hopeful)
    assert any(step.get("real", False) for record in records for step in record["steps"])
    summary = rescore_run(tmp_path / "run")
    assert (summary.num_agreeing, summary.num_episodes) == (64, 64), summary.differences


def test_a_tool_that_refuses_is_known_to_work_and_has_used_its_call_and_its_time() -> None:
    durations = (Duration(1, 0.5), Duration(2, 0.5))
    law = sure(base=0.7, broken=Broken(0.5), latency=Latency(durations, budget=30), rate_limit=RateLimit(1, 3))
    env = ConversationEnv(EnvironmentSettings(law=law).in_world(NAME))
    seen = set()
    for seed in range(12):
        env.reset(seed=seed, options={"task": TASK})
        first = env.step('<tool_call>notebook_reader {"page": 77}</tool_call>')[4]
        assert first["state"].parts[env.problem(TASK).dynamics.rules.at_time] == 1000 * first["seconds"] > 0
        again = [env.step('<tool_call>notebook_reader {"page": 1}</tool_call>')[4] for _ in range(3)]
        assert [info["result"] for info in again[:2]] == ["rate_limited"] * 2
        chance = again[2]["execution"]["success_probability"]
        refused = first["execution"].get("real", False)
        # A failure of luck is evidence of a broken tool: 0.15 of 0.65 are not.
        assert chance == pytest.approx(0.7 if refused else 0.7 * 0.15 / 0.65, abs=1e-9)
        seen.add(refused)
    assert seen == {True, False}


def test_calls_with_other_parameters_are_no_loop_and_equal_ones_are() -> None:
    settings = EnvironmentSettings(law=sure(rate_limit=RateLimit(60, 60))).in_world(NAME)
    for pages, ended in ((range(1, 8), None), ([2] * 4, "loop")):
        env = ConversationEnv(settings)
        env.reset(seed=0, options={"task": TASK})
        for page in pages:
            info = env.step(f'<tool_call>notebook_reader {{"page": {page}}}</tool_call>')[4]
        assert info["state"].ended_by == ended


def test_a_call_that_should_have_waited_says_so() -> None:
    class Hammers:
        def reset(self, observation: str, info: Any) -> None: ...

        def act(self, observation: str, info: Any) -> str:
            return '<tool_call>notebook_reader {"page": 1}</tool_call>'

    settings = EnvironmentSettings(law=sure(outage=Outage(0.3, 0.2, "all")), max_consecutive_failures=2).in_world(NAME)
    losses: dict[str, float] = {}
    for seed in range(6):
        losses |= play_episode(ConversationEnv(settings), Hammers(), TASK, "baseline", seed)["losses"]
    assert losses["did_not_wait"] > 0.0


@pytest.mark.parametrize(
    ("law", "told"),
    [
        (Law("wrong", corrupt=Corrupt(0.1)), "law 'wrong' is for no world: corrupt"),
        (Law("wrong", equivalents={"notebook_reader": ("arithmetic_calculator",)}), "equivalents: in a world"),
        (Law("wrong", error_kinds=ErrorKinds()), "error_kinds.input is 1: expected 0"),
    ],
)
def test_parts_that_mean_nothing_where_calls_do_real_work_are_refused(law: Law, told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        EnvironmentSettings(law=law).in_world(NAME)
    with pytest.raises(InvalidInputError, match=told):
        build_problem(LIBRARY, ["notebook_reader"], law, arguments_matter=True)


def test_what_plans_cost_in_worlds_is_worked_out_under_laws_without_parts_only() -> None:
    from resilisim.workflows.plan_value import program_costs

    with pytest.raises(InvalidInputError, match=r"law 'everything' has parts \(rate_limit, outage, broken, drift\)"):
        program_costs(LIBRARY, [Step("notebook_reader", {"page": 1})], [], EVERYTHING)
