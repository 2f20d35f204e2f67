"""Runs of LLM agents: many episodes at once, broken endpoints, kills, and what is left on disk."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from resilisim.chat import ChatMessage, ChatModelSettings, ChatReply, ChatRequest, RetryPolicy
from resilisim.errors import InfrastructureError, InvalidInputError
from resilisim.evaluation import evaluate, read_results
from resilisim.evaluation.run.contestants import ModelSettings
from resilisim.evaluation.run.store import JOURNALS_NAME, read_failures, read_records
from resilisim.policies.llm import AgentOptions, AgentRun, LlmPolicy
from resilisim.policies.llm.agents.reflexion import Reflexion
from tests.chat.loopback import Answer, LoopbackServer, Seen, error
from tests.evaluation.agent_models import FollowingModel, calls_by_scope, following, following_answer
from tests.evaluation.toy_policies import Reading, toy_tasks

ROOT = Path(__file__).parents[2]
KEY = "sk-a-secret-that-must-not-be-seen-0123456789"
SEEDS = 4


def at_once(concurrency: int, **more: Any) -> ModelSettings:
    return ModelSettings(concurrency=concurrency, **more)


def without_latency(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record without the seconds that calls took and the hash of the run."""
    text = json.dumps(record)
    value: dict[str, Any] = json.loads(text)
    for call in value["agent"]["calls"]:
        call["reply"]["latency_seconds"] = 0.0
    for usage in value["agent"]["components"].values():
        usage["latency_seconds"] = 0.0
    return value | {"manifest": ""}


def records_of(folder: Path) -> list[dict[str, Any]]:
    records = sorted(read_records(folder), key=lambda record: record["index"])
    return [without_latency(dict(record)) for record in records]


def test_episodes_at_once_come_to_the_same_as_one_after_the_other(tmp_path: Path) -> None:
    models = {number: FollowingModel() for number in (1, 7, 64)}
    for number, model in models.items():
        folder = tmp_path / str(number)
        evaluate(following(model), toy_tasks(), "optimal", SEEDS, out=folder, model=at_once(number))
        assert model.most_at_once == min(number, 6 * SEEDS)
    first, second, third = (records_of(tmp_path / str(number)) for number in models)
    assert first == second == third
    assert len(first) == 6 * SEEDS
    assert [record["index"] for record in first] == list(range(6 * SEEDS))


def test_an_agent_that_follows_the_plan_scores_as_the_scripted_follower(tmp_path: Path) -> None:
    result = evaluate([following(FollowingModel()), Reading], toy_tasks(), "optimal", 20, out=tmp_path)
    agent, scripted = result.row("react", "optimal"), result.row("reading", "optimal")
    assert agent.success == scripted.success  # the same calls meet the same luck
    # Episodes end in another order, so sums of the same numbers may differ in their last digit.
    assert agent.luck_adjusted.value == pytest.approx(scripted.luck_adjusted.value, rel=1e-12)
    assert agent.luck_adjusted.standard_error == pytest.approx(scripted.luck_adjusted.standard_error, rel=1e-9)
    records = list(read_records(tmp_path))
    assert all(("agent" in record) == (record["policy"] == "react") for record in records)


def test_episodes_that_an_endpoint_breaks_are_kept_apart_and_go_on_where_they_were(tmp_path: Path) -> None:
    def fails(request: ChatRequest) -> bool:
        return len(request.messages) > 3 and int(request.cache_scope[:8], 16) % 3 == 0

    broken = FollowingModel(fails)
    arguments = (toy_tasks(), "optimal", SEEDS)
    first = evaluate(following(broken), *arguments, out=tmp_path / "a", model=at_once(4))
    whole = FollowingModel()
    evaluate(following(whole), *arguments, out=tmp_path / "b")
    failures = list(read_failures(tmp_path / "a"))
    assert first.call.num_failures == len(failures) > 0
    assert first.num_episodes == 6 * SEEDS - len(failures)
    assert first.row("react", "optimal").num_episodes == first.num_episodes
    assert {failure["reason"] for failure in failures} == {"EndpointError"}
    assert all(failure["calls"] >= 1 for failure in failures)
    kept = {path.stem for path in (tmp_path / "a" / JOURNALS_NAME).iterdir()}
    assert kept == {str(failure["index"]) for failure in failures}

    mended = FollowingModel()
    second = evaluate(following(mended), *arguments, out=tmp_path / "a", model=at_once(4))
    assert second.call.num_failures == 0
    assert second.num_episodes == 6 * SEEDS
    assert records_of(tmp_path / "a") == records_of(tmp_path / "b")
    answered = calls_by_scope([*broken.requests, *mended.requests])
    assert set(answered.values()) == {1}  # nothing was asked twice
    assert answered == calls_by_scope(whole.requests)
    assert not (tmp_path / "a" / JOURNALS_NAME).exists()
    assert list(read_failures(tmp_path / "a")) == failures  # the history stays


def test_a_run_stops_when_episode_after_episode_breaks(tmp_path: Path) -> None:
    down = FollowingModel(lambda request: True)
    with pytest.raises(InfrastructureError, match="5 episodes in a row broke, the last because http://nowhere"):
        evaluate(following(down), toy_tasks(), "optimal", SEEDS, out=tmp_path, model=at_once(2, give_up_after=5))
    assert read_results(tmp_path).num_episodes == 0
    assert len(list(read_failures(tmp_path))) == 5


def test_a_bug_of_an_agent_is_raised_and_names_the_episode(tmp_path: Path) -> None:
    class Buggy(FollowingModel):
        async def complete(self, request: ChatRequest) -> Any:
            raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError) as raised:
        evaluate(following(Buggy()), toy_tasks(), "optimal", SEEDS, out=tmp_path, model=at_once(8))
    assert any("policy react, prompt optimal, task " in note for note in raised.value.__notes__)


def slowly(seen: Seen) -> Answer:
    time.sleep(0.02)
    return following_answer(seen)


def endpoint(server: LoopbackServer, concurrency: int = 8, retries: int = 0) -> ModelSettings:
    chat = ChatModelSettings(
        base_url=server.base_url,
        api_key=KEY,
        max_concurrency=concurrency,
        retry=RetryPolicy(retries=retries, first_wait=0.01),
    )
    return ModelSettings(models=("openai:loopback",), chat=chat, concurrency=concurrency)


def test_an_endpoint_answers_many_episodes_and_its_key_is_nowhere(tmp_path: Path) -> None:
    with LoopbackServer(slowly) as server:
        result = evaluate("react", toy_tasks(), "optimal", SEEDS, out=tmp_path, model=endpoint(server))
        assert server.most_in_flight > 1
    assert result.num_episodes == 6 * SEEDS
    (sums,) = result.agents()
    assert sums.components["agent"]["calls"] == len(server.requests)
    assert sums.components["agent"]["prompt_tokens"] == 11 * len(server.requests)
    assert not sums.has_estimates
    assert sums.cost is None  # nobody named a price
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert KEY.encode() not in written
    assert b"openai:loopback at http://127.0.0.1" in written


def test_a_refused_key_ends_the_run_at_once_in_one_line(tmp_path: Path) -> None:
    with (
        LoopbackServer(lambda seen: error(401, f"wrong key {KEY}")) as server,
        pytest.raises(InvalidInputError, match="refuses the key") as refusal,
    ):
        evaluate("react", toy_tasks(), "optimal", SEEDS, out=tmp_path, model=endpoint(server))
    assert KEY not in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_two_processes_share_what_may_be_asked(tmp_path: Path) -> None:
    with LoopbackServer(slowly) as server:
        arguments = ("react", toy_tasks(), "optimal", SEEDS)
        evaluate(*arguments, out=tmp_path / "two", workers=2, model=endpoint(server, 4))
        assert 1 < server.most_in_flight <= 4
        evaluate(*arguments, out=tmp_path / "one", model=endpoint(server))
    assert records_of(tmp_path / "two") == records_of(tmp_path / "one")


def test_prices_and_models_by_role_stand_in_the_records(tmp_path: Path) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({"openai:loopback": {"prompt": 2.0, "completion": 10.0}}))
    with LoopbackServer(following_answer) as server:
        chat = endpoint(server).chat
        models = ("openai:other", "agent=openai:loopback")
        settings = ModelSettings(models=models, chat=chat, prices=str(prices))
        result = evaluate("react", toy_tasks(1), "optimal", 1, out=tmp_path / "run", model=settings)
    (record,) = result.records()
    usage = record["agent"]["components"]["agent"]
    assert usage["cost"] == pytest.approx((11 * 2.0 + 7 * 10.0) / 1e6 * usage["calls"], rel=1e-12)
    assert set(record["agent"]["models"]) == {"default", "agent"}
    assert {seen.body["model"] for seen in server.requests} == {"loopback"}
    assert set(result.manifest["arguments"]["models"]) == {"default", "agent"}


def test_a_common_cache_answers_equal_runs_and_keeps_repeated_episodes_apart(tmp_path: Path) -> None:
    with LoopbackServer(following_answer) as server:
        settings = endpoint(server)
        cached = ModelSettings(models=settings.models, chat=settings.chat, cache=str(tmp_path / "cache"))
        first = evaluate("react", toy_tasks(2), "optimal", 3, out=tmp_path / "a", model=cached)
        asked = len(server.requests)
        calls = first.agents()[0].components["agent"]["calls"]
        assert asked == calls  # also of equal requests in different episodes each was asked
        second = evaluate("react", toy_tasks(2), "optimal", 3, out=tmp_path / "b", model=cached)
        assert len(server.requests) == asked
    assert second.agents()[0].components["agent"]["from_cache"] == calls
    assert second.agents()[0].cost == 0.0


def test_a_model_without_a_price_is_warned_of(tmp_path: Path) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({"openai:loopbak": {"prompt": 2.0, "completion": 10.0}}))
    with LoopbackServer(following_answer) as server:
        settings = ModelSettings(models=("openai:loopback",), chat=endpoint(server).chat, prices=str(prices))
        with pytest.warns(
            UserWarning, match="no price of 'openai:loopback' is known: did you mean it by 'openai:loopbak'"
        ):
            evaluate("react", toy_tasks(1), "optimal", 1, model=settings)


class Plain(LlmPolicy[AgentOptions]):
    """The least that is an agent."""

    async def play(self, run: AgentRun) -> str | None:
        await run.ask("agent", [ChatMessage("system", "Go."), ChatMessage("user", run.task)])
        return "done"


def test_the_least_that_is_an_agent_is_one(tmp_path: Path) -> None:
    result = evaluate(lambda: Plain(FollowingModel()), toy_tasks(1), "optimal", 1, out=tmp_path)
    assert result.agents()[0].policy == "Plain"
    assert result.agents()[0].components["agent"]["calls"] == 1
    assert "Plain" in str(result.table())


def test_a_policy_without_a_model_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="'react' needs a language model: name one, such as --model openai"):
        evaluate("react", 1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_who_tries_again_in_fresh_episodes_has_no_ceiling_and_no_luck_adjustment(tmp_path: Path) -> None:
    class Doubting(FollowingModel):
        """Follows the plan; its evaluator refuses the first trial of every other episode."""

        async def complete(self, request: ChatRequest) -> ChatReply:
            if request.role == "agent":
                return await super().complete(request)
            is_odd = int(request.cache_scope[:4], 16) % 2
            refuses = request.role == "evaluator" and is_odd and int(request.cache_scope.rpartition("#")[2]) < 12
            return ChatReply(json.dumps({"success": not refuses, "reason": "as seen"}))

    def made(**options: object) -> Callable[[], Reflexion]:
        return lambda: Reflexion(models=Doubting(), **options)

    result = evaluate(made(trials="fresh"), toy_tasks(), "optimal", SEEDS, out=tmp_path / "fresh")
    (row,) = result.rows
    assert row.tries_again
    assert not row.privileged
    assert math.isnan(row.optimum.value)
    assert math.isnan(row.luck_adjusted.value)
    assert row.to_mapping()["share_of_ceiling"]["value"] is None
    shown = Console(width=150)
    with shown.capture() as captured:
        shown.print(result.table())
    assert "† tries again in fresh episodes" in captured.get()
    assert result.write_report().stat().st_size > 0
    shared = evaluate(made(), toy_tasks(), "optimal", SEEDS, out=tmp_path / "shared")
    assert not shared.rows[0].tries_again
    assert shared.rows[0].optimum.value > 0


KILLED = """
import sys
from resilisim.chat import ChatModelSettings
from resilisim.evaluation import evaluate
from resilisim.evaluation.run.contestants import ModelSettings
from tests.evaluation.toy_policies import toy_tasks
chat = ChatModelSettings(base_url=sys.argv[2], api_key="k" * 20)
model = ModelSettings(models=("openai:loopback",), chat=chat, concurrency=4)
evaluate("react", toy_tasks(), "optimal", 4, out=sys.argv[1], model=model, progress=False)
"""


def test_a_killed_run_goes_on_and_asks_nothing_again_that_was_answered(tmp_path: Path) -> None:
    def contents(seen: Seen) -> str:
        return json.dumps(seen.body, sort_keys=True)

    with LoopbackServer(slowly) as server:
        command = [sys.executable, "-c", KILLED, str(tmp_path / "run"), server.base_url]
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
        while len(server.requests) < 40:
            assert process.poll() is None, "the run ended before it could be killed"
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        time.sleep(0.1)
        before = [contents(seen) for seen in server.requests]
        subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
        after = [contents(seen) for seen in server.requests[len(before) :]]
    assert read_results(tmp_path / "run").num_episodes == 24
    # Each request names its episode by its seed; only those under way at the kill can come twice.
    assert len(set(before) & set(after)) <= 4
    whole = FollowingModel()
    evaluate(following(whole), toy_tasks(), "optimal", SEEDS, out=tmp_path / "whole")
    assert len(set(before) | set(after)) == len(whole.requests)
    steps = [[step["message"] for step in record["steps"]] for record in records_of(tmp_path / "run")]
    assert steps == [[step["message"] for step in record["steps"]] for record in records_of(tmp_path / "whole")]
