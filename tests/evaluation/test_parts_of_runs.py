"""Runs in parts: shards, limits, several models; and the table of what they have come to so far."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from resilisim.chat import ChatModelSettings, RetryPolicy
from resilisim.errors import InvalidInputError
from resilisim.evaluation import RunLimits, evaluate, read_results
from resilisim.evaluation.run.contestants import ModelSettings, model_of, policy_of
from resilisim.evaluation.run.plan import Plan, Shard
from resilisim.evaluation.run.progress import LiveTable
from resilisim.evaluation.run.replay import find_episode
from resilisim.evaluation.run.store import read_records
from resilisim.evaluation.table.facts import RunCollector
from tests.chat.loopback import Answer, LoopbackServer, Seen
from tests.evaluation.agent_models import FollowingModel, following, following_answer
from tests.evaluation.toy_policies import Quitter, Reading, toy_tasks
from tests.guards import no_endless_wait

POLICIES = [Reading, Quitter]


def indices(folder: Path) -> list[int]:
    return [record["index"] for record in read_records(folder)]


def endpoint(server: LoopbackServer, *models: str, **more: Any) -> ModelSettings:
    chat = ChatModelSettings(base_url=server.base_url, api_key="k" * 20, retry=RetryPolicy(retries=0, first_wait=0.01))
    return ModelSettings(models=models or ("openai:loopback",), chat=chat, **more)


@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_shards_are_whole_tasks_and_together_the_run(count: int) -> None:
    plans = [Plan(toy_tasks(), 2, 3, (0, 1), Shard(number, count)) for number in range(1, count + 1)]
    plan, parts = plans[0], [list(plan.pending(lambda index: False)) for plan in plans]
    assert [plan.part_size for plan in plans] == [len(part) for part in parts]
    assert sorted(index for part in parts for index in part) == list(range(len(plan)))
    tasks = [{plan.episode(index).task.instance_id for index in part} for part in parts]
    assert sum(len(part) for part in tasks) == 6


def test_a_shard_plays_its_part_and_another_fills_the_folder(tmp_path: Path) -> None:
    first = evaluate(POLICIES, toy_tasks(), "optimal", 3, out=tmp_path, shard="2/4")
    assert (first.num_episodes, first.num_planned) == (2 * 2 * 3, 36)
    assert first.call.stopped_by is None
    whole = evaluate(POLICIES, toy_tasks(), "optimal", 3, out=tmp_path)
    assert sorted(indices(tmp_path)) == list(range(36))
    alone = evaluate(POLICIES, toy_tasks(), "optimal", 3)
    assert whole.row("reading", "optimal").success == alone.row("reading", "optimal").success


@pytest.mark.parametrize(
    ("shard", "words"),
    [
        ("0/3", "expected a number from 1 to 3"),
        ("4/3", "expected a number from 1 to 3"),
        ("1", "expected i/n, such as '1/4'"),
        ("a/b", "expected i/n"),
        (3, "expected i/n"),
        ("7/9", "expected at most 6 parts"),
        ("0/0", "expected a number from 1 to 1"),
    ],
)
def test_a_wrong_shard_is_refused(shard: Any, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        evaluate(Quitter, toy_tasks(), shard=shard)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_limit_of_episodes_stops_and_the_same_call_goes_on(tmp_path: Path, workers: int) -> None:
    policies = [f"tests.evaluation.toy_policies:{name}" for name in ("Reading", "Quitter")]
    arguments = (policies, toy_tasks(), "optimal", 3)
    first = evaluate(*arguments, out=tmp_path, limits=RunLimits(episodes=5), workers=workers)
    assert (first.num_episodes, first.call.stopped_by) == (5, "the limit of 5 episodes")
    last = evaluate(*arguments, out=tmp_path, limits=RunLimits(episodes=36), workers=workers)
    assert (last.num_episodes, last.call.stopped_by) == (36, None)
    assert sorted(indices(tmp_path)) == list(range(36))


def test_a_limit_of_tokens_counts_what_earlier_calls_used(tmp_path: Path) -> None:
    model = FollowingModel()
    arguments = (following(model), toy_tasks(), "optimal", 2)
    first = evaluate(*arguments, out=tmp_path, limits=RunLimits(tokens=500), model=ModelSettings(concurrency=1))
    used = sum(
        part["prompt_tokens"] + part["completion_tokens"]
        for record in read_records(tmp_path)
        for part in record["agent"]["components"].values()
    )
    assert first.call.stopped_by == f"the limit of 500 tokens ({used:,} used)"
    assert 0 < first.num_episodes < 12
    asked = len(model.requests)
    again = evaluate(*arguments, out=tmp_path, limits=RunLimits(tokens=500), model=ModelSettings(concurrency=1))
    assert (again.num_episodes, len(model.requests)) == (first.num_episodes, asked)


def test_a_limit_of_dollars_needs_prices_and_stops(tmp_path: Path) -> None:
    with LoopbackServer(following_answer) as server:
        with pytest.raises(InvalidInputError, match="needs the prices of all models: no price of 'openai:loopback'"):
            evaluate("react", toy_tasks(), model=endpoint(server), limits=RunLimits(cost=1.0))
        assert not server.requests
        prices = tmp_path / "prices.json"
        prices.write_text(json.dumps({"openai:loopback": {"prompt": 1e6, "completion": 0.0}}))  # a dollar a token
        settings = endpoint(server, concurrency=1, prices=str(prices))
        limits = RunLimits(cost=60.0)
        result = evaluate("react", toy_tasks(), "optimal", 2, out=tmp_path / "run", model=settings, limits=limits)
    cost = result.agents()[0].cost
    assert cost is not None
    assert 60.0 <= cost < 60.0 + 11.0 * 11  # at most the episode that passed the limit
    assert result.call.stopped_by == f"the limit of 60 dollars ({cost:.4g} spent)"


def test_a_limit_of_dollars_is_refused_where_nobody_knows_what_was_spent(tmp_path: Path) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({"openai:loopback": {"prompt": 1.0, "completion": 0.0}}))
    with LoopbackServer(following_answer) as server:
        arguments: dict[str, Any] = {"policies": "react", "tasks": toy_tasks(), "out": tmp_path / "run"}
        evaluate(**arguments, model=endpoint(server), limits=RunLimits(episodes=2))
        priced = endpoint(server, prices=str(prices))
        with pytest.raises(InvalidInputError, match=r"2 episodes in .*run were played without, so nobody knows"):
            evaluate(**arguments, model=priced, limits=RunLimits(cost=1.0))
        assert evaluate(**arguments, model=priced).num_episodes == 6


def test_a_wrong_address_of_a_cluster_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="address 'here' of a Ray cluster"):
        evaluate("random", toy_tasks(1), out=tmp_path / "run", ray="here")
    assert not (tmp_path / "run").exists()


def test_a_limit_of_seconds_does_not_wait_for_answers_and_keeps_replies(tmp_path: Path) -> None:
    numbers = itertools.count()

    def silent_after_some(seen: Seen) -> Answer:
        return following_answer(seen) if next(numbers) < 6 else Answer(kind="hang")

    with LoopbackServer(silent_after_some) as server, no_endless_wait():  # nothing but the limit ends the waiting
        settings = endpoint(server, concurrency=4)
        result = evaluate(
            "react", toy_tasks(), "optimal", 2, out=tmp_path, model=settings, limits=RunLimits(seconds=2.0)
        )
    assert result.call.stopped_by == "the limit of 2 seconds"
    assert result.num_episodes < 12
    assert list((tmp_path / "unfinished").glob("*.jsonl"))  # replies of episodes under way are kept


@pytest.mark.parametrize("limits", [{"episodes": 0}, {"tokens": 1.5}, {"cost": float("nan")}, {"seconds": -1.0}])
def test_a_limit_that_is_none_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=f"limit of {next(iter(limits))} is .*: expected a"):
        RunLimits(**limits)


def test_each_agent_plays_once_with_each_model(tmp_path: Path) -> None:
    with LoopbackServer(following_answer) as server:
        models = ("openai:small", "openai:big", "agent=openai:small")
        result = evaluate(
            ["react", "plan-follower"], toy_tasks(2), "optimal", 2, out=tmp_path, model=endpoint(server, *models[:2])
        )
        names = [row.policy for row in result.rows]
        assert names == ["react@openai:small", "react@openai:big", "plan-follower"]
        assert {seen.body["model"] for seen in server.requests} == {"small", "big"}
        small = result.row("react@openai:small", "optimal")
        assert small.success == result.row("react@openai:big", "optimal").success  # both follow, on the same luck
    records = list(read_records(tmp_path))
    for record in records:
        assert {call["model"] for call in record.get("agent", {}).get("calls", ())} <= {model_of(record["policy"])}
    named = result.manifest["arguments"]["models_of_policies"]
    assert named["react@openai:big"]["default"].startswith("openai:big at http://127.0.0.1")
    found = find_episode(tmp_path, f"{toy_tasks()[0].instance_id}:0:react@openai:big")
    assert found["policy"] == "react@openai:big"
    assert read_results(tmp_path).rows == result.rows


def test_a_model_that_is_named_twice_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="model 'openai:a' is given twice"):
        evaluate("react", toy_tasks(1), model=["openai:a", "openai:a"])


@pytest.mark.parametrize(
    ("name", "policy", "model"),
    [
        ("react@openai:a@b", "react", "openai:a@b"),
        ("react", "react", None),
        ("react[templates=/x@y]", "react[templates=/x@y]", None),
        ("react[templates=/x@y]@local", "react[templates=/x@y]", "local"),
    ],
)
def test_names_hold_policy_and_model(name: str, policy: str, model: str | None) -> None:
    assert (policy_of(name), model_of(name)) == (policy, model)


def test_the_live_table_shows_what_there_is_so_far(tmp_path: Path) -> None:
    result = evaluate([Reading, following(FollowingModel())], toy_tasks(), "optimal", 4, out=tmp_path)
    collector = RunCollector()
    table = LiveTable(collector)
    for record in result.records():
        collector.add(record)
    table.fail({"policy": "react", "prompt_type": "optimal"})  # type of a failure: only these two are read
    out = io.StringIO()
    console = Console(file=out, width=140, no_color=True)
    console.print(table)
    text = out.getvalue()
    row = result.row("reading", "optimal")
    (line,) = (line for line in text.splitlines() if line.strip().startswith("reading"))
    assert line.split()[:5] == [
        "reading",
        "optimal",
        "24",
        f"{100 * row.success.value:.1f}",
        f"{100 * row.optimum.value:.1f}",
    ]
    (agent,) = (line for line in text.splitlines() if line.strip().startswith("react"))
    assert agent.split()[-1] == "1"
    assert "tokens" in text
    assert "broken" in text
