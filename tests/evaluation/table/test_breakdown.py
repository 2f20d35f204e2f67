"""Where points went: every sum against a naive recount, and the costliest calls whatever the order of arrival."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilisim.envs.conversation import ConversationEnv
from resilisim.evaluation.episode.play import play_episode
from resilisim.evaluation.episode.record import EpisodeRecord, StepRecord
from resilisim.evaluation.table.breakdown import NUM_KEPT, RAN_NO_TOOL, Breakdown
from resilisim.evaluation.table.episodes import sums_of
from resilisim.evaluation.table.facts import RunCollector
from resilisim.evaluation.table.summary import summarise_group
from resilisim.policies.registry import make_policy
from resilisim.tasks.benchmark import benchmark_tasks
from tests.evaluation.synthetic import synthetic_record, synthetic_run

DIMENSIONS = ("policy", "prompt", "flaw", "task_type", "tool")
FLAWED = ("flawed:missing_step", "flawed:tool_misuse:severe", "flawed:tool_misuse:light:category_mismatch")
Name = tuple[str, str, str]


@pytest.fixture(scope="module")
def played() -> list[EpisodeRecord]:
    """Return real episodes of three policies under flawed and other prompts."""
    env = ConversationEnv(search=lambda query, count: [])
    tasks = [task for task in benchmark_tasks()[::500] if len(task.required_tools) >= 4]
    records: list[EpisodeRecord] = []
    for task in tasks:
        for name in ("random", "plan-follower", "repairing-follower"):
            for prompt in ("baseline", "optimal", *FLAWED):
                for seed in range(3):
                    index = len(records)
                    records.append(play_episode(env, make_policy(name), task, prompt, seed, index=index, name=name))
    return records


def breakdown_of(records: Iterable[EpisodeRecord]) -> Breakdown:
    collector = RunCollector()
    for record in records:
        collector.add(record)
    return collector.facts({}).breakdown


def flaw_type(record: EpisodeRecord) -> str:
    return record["flaw"]["type"] if record["flaw"] else ""


KEYS: dict[str, Callable[[EpisodeRecord], Name]] = {
    "policy": lambda record: (record["policy"], "", record["policy"]),
    "prompt": lambda record: (record["policy"], record["prompt_type"], record["prompt_type"]),
    "flaw": lambda record: (record["policy"], record["prompt_type"], flaw_type(record)),
    "task_type": lambda record: (record["policy"], record["prompt_type"], record["task_type"]),
}


def expected_rows(records: Sequence[EpisodeRecord], dimension: str) -> dict[Name, dict[str, Any]]:
    """Recount one dimension, call by call."""
    found: dict[Name, dict[str, Any]] = defaultdict(
        lambda: {"episodes": set(), "calls": 0, "luck": 0.0, "losses": defaultdict(float)}
    )
    for place, record in enumerate(records):
        for step in record["steps"]:
            if dimension == "tool":
                tool = step["tool"] if step["success"] is not None else RAN_NO_TOOL
                name = (record["policy"], record["prompt_type"], tool)
            else:
                name = KEYS[dimension](record)
            row = found[name]
            row["episodes"].add(place)
            row["calls"] += 1
            row["luck"] += step["luck"]
            if step["label"] is not None:
                row["losses"][step["label"]] += step["regret"]
    return found


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_totals_are_those_of_a_recount(played: list[EpisodeRecord], dimension: str) -> None:
    expected = expected_rows(played, dimension)
    rows = breakdown_of(played).totals(dimension)
    assert {(row.policy, row.prompt_type, row.key) for row in rows} == set(expected)
    assert len(rows) == len(expected)
    for row in rows:
        wanted = expected[row.policy, row.prompt_type, row.key]
        assert (row.episodes, row.calls) == (len(wanted["episodes"]), wanted["calls"])
        assert row.luck == pytest.approx(wanted["luck"], abs=1e-9)
        assert row.losses == pytest.approx(dict(wanted["losses"]), abs=1e-9)


def test_flaws_are_summarised_by_policy_type_severity_and_method(played: list[EpisodeRecord]) -> None:
    table = sums_of(played)
    groups: dict[tuple[str, str, str, str], list[EpisodeRecord]] = defaultdict(list)
    for record in played:
        if record["flaw"] is not None:
            flaw = record["flaw"]
            groups[record["policy"], flaw["type"], flaw["severity"], flaw["method"]].append(record)
    assert set(table.flaw_keys()) == set(groups)
    assert {severity for _, _, severity, _ in groups} == {"light", "moderate", "severe"}
    for key, episodes in groups.items():
        summary = summarise_group(table.flawed([key]))
        assert summary.num_episodes == len(episodes)
        assert summary.success.value == pytest.approx(sum(one["outcome"] for one in episodes) / len(episodes))
        assert summary.optimum.value == pytest.approx(sum(one["optimum"] for one in episodes) / len(episodes))
        assert sum(loss.value for loss in summary.losses.values()) == pytest.approx(
            sum(sum(one["losses"].values()) for one in episodes) / len(episodes)
        )


def test_errors_kinds_and_uses_of_tools_are_counted(played: list[EpisodeRecord]) -> None:
    errors, kinds, executions = Counter(), Counter(), Counter()
    for record in played:
        group = (record["policy"], record["prompt_type"])
        for step in record["steps"]:
            kinds[*group, step["kind"]] += 1
            if step["success"] is not None:
                executions[*group, step["tool"]] += 1
                if not step["success"]:
                    errors[*group, step["error"]] += 1
    breakdown = breakdown_of(played)
    assert breakdown.errors == errors
    assert breakdown.kinds == kinds
    assert breakdown.executions == executions
    assert sum(errors.values()) > 0


def test_the_costliest_calls_are_those_of_a_sort(played: list[EpisodeRecord]) -> None:
    calls = [
        (step["regret"], record["index"], step["turn"], record["policy"], record["prompt_type"], step["label"])
        for record in played
        for step in record["steps"]
        if step["label"] not in (None, "information")
    ]
    expected = sorted(calls, key=lambda call: (-round(call[0], 9), call[1], call[2]))[:NUM_KEPT]
    found = breakdown_of(played).costliest
    assert [(c.regret, c.index, c.turn, c.policy, c.prompt_type, c.label) for c in found] == expected
    assert len(found) == NUM_KEPT
    for call in found:
        assert played[call.index]["steps"][call.turn - 1]["message"].startswith(call.message)


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_arrival_changes_no_choice_and_no_count(generator: random.Random) -> None:
    records = list(synthetic_run(num_tasks=6, num_seeds=3))
    shuffled = list(records)
    generator.shuffle(shuffled)
    one, other = breakdown_of(records), breakdown_of(shuffled)
    assert one.costliest == other.costliest
    assert one.errors == other.errors
    assert one.executions == other.executions
    for dimension in DIMENSIONS:
        rows = {(row.policy, row.prompt_type, row.key): row for row in other.totals(dimension)}
        for row in one.totals(dimension):
            again = rows[row.policy, row.prompt_type, row.key]
            assert (row.episodes, row.calls) == (again.episodes, again.calls)
            assert row.losses == pytest.approx(again.losses)


def test_among_equal_costs_the_earlier_episodes_are_kept() -> None:
    def costly(index: int) -> EpisodeRecord:
        record = synthetic_record(index, "random", "baseline", 0, index, 0.0)
        step: StepRecord = {**record["steps"][0], "regret": 0.5 + 1e-12 * (index % 3), "label": "wrong_order"}
        return {**record, "steps": [step]}

    for order in (range(300), reversed(range(300))):
        kept = breakdown_of(costly(index) for index in order).costliest
        assert [call.index for call in kept] == list(range(NUM_KEPT))


def test_groups_say_which_agent_and_model_they_are_of() -> None:
    def of_agent(policy: str, models: dict[str, str]) -> EpisodeRecord:
        record = synthetic_record(0, policy, "baseline", 0, 0, 0.0)
        agent = {"architecture": "plan-execute", "models": models, "restarts": 0, "options": {}}
        return {**record, "agent": agent}

    sums = sums_of(
        [
            of_agent("one", {"planner": "small", "executor": "small"}),
            of_agent("two", {"planner": "small", "executor": "large"}),
            of_agent("asks-nobody", {}),
            synthetic_record(0, "random", "baseline", 0, 0, 0.0),
        ]
    )
    found = {known.policy: (known.architecture, known.model) for known in sums.facts.values()}
    assert found == {
        "one": ("plan-execute", "small"),
        "two": ("plan-execute", "large + small"),
        "asks-nobody": ("plan-execute", None),
        "random": (None, None),
    }
