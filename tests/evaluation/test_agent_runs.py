"""Runs of LLM agents: many episodes at once, broken endpoints, kills, limits, models, and what is left on disk."""

import io
import itertools
import json
import math
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from resilisim.chat import TokenUsage
from resilisim.chat.types import LONGEST_REPLY
from resilisim.errors import InfrastructureError, InvalidInputError
from resilisim.evaluation import ModelSettings, RunLimits, evaluate, opened, read_results
from resilisim.evaluation.run.contestants import split_name
from resilisim.evaluation.run.progress import LiveTable
from resilisim.evaluation.run.replay import find_episode
from resilisim.evaluation.run.store import JOURNALS_NAME, read_failures, read_records
from resilisim.evaluation.table.facts import RunCollector
from resilisim.policies.llm.agents.reflexion import Reflexion
from resilisim.reporting import write_report
from tests.chat.loopback import Answer, LoopbackServer, error, json_answer
from tests.doubles.agent_scripts import CALLS, SCRIPTS, write_scripts
from tests.evaluation.agent_models import (
    KEY,
    Doubting,
    FollowingModel,
    calls_by_scope,
    endpoint,
    following,
    following_answer,
    slowly,
)
from tests.evaluation.toy_policies import Reading, toy_tasks
from tests.guards import no_endless_wait
from tests.killing import kill_when

ROOT = Path(__file__).parents[2]
SEEDS = 4
RUN = (toy_tasks(), "optimal", SEEDS)


def records_of(folder):
    """Return the records of a run without the seconds that calls took and the hash of the run."""
    found = []
    for record in sorted(read_records(folder), key=lambda record: record["index"]):
        value = json.loads(json.dumps(record))
        for usage in (*(call["reply"] for call in value["agent"]["calls"]), *value["agent"]["components"].values()):
            usage["latency_seconds"] = 0.0
        found.append(value | {"manifest": ""})
    return found


@pytest.fixture
def prices(tmp_path):
    """A function that writes a file with the price of one model."""

    def write(prompt=2.0, completion=10.0, model="openai:loopback"):
        path = tmp_path / "prices.json"
        path.write_text(json.dumps({model: {"prompt": prompt, "completion": completion}}))
        return str(path)

    return write


def test_episodes_at_once_come_to_the_same_as_one_after_the_other(tmp_path):
    models = {number: FollowingModel() for number in (1, 7, 64)}
    for number, model in models.items():
        folder = tmp_path / str(number)
        evaluate(following(model), *RUN, out=folder, model=ModelSettings(concurrency=number))
        assert model.most_at_once == min(number, 6 * SEEDS)
    first, second, third = (records_of(tmp_path / str(number)) for number in models)
    assert first == second == third
    assert [record["index"] for record in first] == list(range(6 * SEEDS))


def test_an_agent_that_follows_the_plan_scores_as_the_scripted_follower(tmp_path):
    result = evaluate([following(FollowingModel()), Reading], toy_tasks(), "optimal", 20, out=tmp_path)
    agent, scripted = result.row("react", "optimal"), result.row("reading", "optimal")
    assert agent.success == scripted.success  # the same calls meet the same luck
    # Episodes end in another order, so sums of the same numbers may differ in their last digit.
    assert agent.luck_adjusted.value == pytest.approx(scripted.luck_adjusted.value, rel=1e-12)
    assert agent.luck_adjusted.standard_error == pytest.approx(scripted.luck_adjusted.standard_error, rel=1e-9)
    assert all(("agent" in record) == (record["policy"] == "react") for record in read_records(tmp_path))
    collector = RunCollector()
    table = LiveTable(collector)
    for record in result.records():
        collector.add(record)
    broken = {"policy": "react", "prompt_type": "optimal"}  # of a failure only these two are read
    table.fail(broken)
    console = Console(file=io.StringIO(), width=140, no_color=True)
    console.print(table)
    heads, *lines = [line.split() for line in console.file.getvalue().splitlines() if line.strip()]
    rows = {line[0]: line for line in lines}
    assert heads[-4:] == ["calls", "tokens", "dollars", "broken"]
    shown = [f"{100 * share.value:.1f}" for share in (scripted.success, scripted.ceiling, scripted.optimum)]
    assert rows["reading"][1:6] == ["optimal", "120", *shown]
    assert (rows["react"][2], rows["react"][-1], rows["reading"][-1]) == ("120", "1", "0")


def test_episodes_that_an_endpoint_breaks_are_kept_apart_and_go_on_where_they_were(tmp_path):
    def fails(request):
        return len(request.messages) > 3 and int(request.cache_scope[:8], 16) % 3 == 0

    broken, whole, mended = FollowingModel(fails), FollowingModel(), FollowingModel()
    first = evaluate(following(broken), *RUN, out=tmp_path / "a", model=ModelSettings(concurrency=4))
    evaluate(following(whole), *RUN, out=tmp_path / "b")
    failures = list(read_failures(tmp_path / "a"))
    assert first.call.num_failures == len(failures) > 0
    assert first.row("react", "optimal").num_episodes == first.num_episodes == 6 * SEEDS - len(failures)
    assert {failure["reason"] for failure in failures} == {"EndpointError"}
    assert all(failure["calls"] >= 1 for failure in failures)
    kept = {path.stem for path in (tmp_path / "a" / JOURNALS_NAME).iterdir()}
    assert kept == {str(failure["index"]) for failure in failures}

    second = evaluate(following(mended), *RUN, out=tmp_path / "a", model=ModelSettings(concurrency=4))
    assert (second.call.num_failures, second.num_episodes) == (0, 6 * SEEDS)
    assert records_of(tmp_path / "a") == records_of(tmp_path / "b")
    answered = calls_by_scope([*broken.requests, *mended.requests])
    assert set(answered.values()) == {1}  # nothing was asked twice
    assert answered == calls_by_scope(whole.requests)
    assert not (tmp_path / "a" / JOURNALS_NAME).exists()
    assert list(read_failures(tmp_path / "a")) == failures  # the history stays


def test_a_run_stops_when_episode_after_episode_breaks_and_not_when_others_end_between(tmp_path):
    begun = []

    def every_second(request):
        episode = request.cache_scope.partition("#")[0]
        if episode not in begun:
            begun.append(episode)
        return begun.index(episode) % 2 == 1

    settings = ModelSettings(concurrency=1, give_up_after=2)
    result = evaluate(following(FollowingModel(every_second)), *RUN, model=settings)
    assert (result.num_episodes, result.call.num_failures) == (3 * SEEDS, 3 * SEEDS)
    down = FollowingModel(lambda request: True)
    settings = ModelSettings(concurrency=2, give_up_after=5)
    with pytest.raises(InfrastructureError, match="5 episodes in a row broke, the last because http://nowhere"):
        evaluate(following(down), *RUN, out=tmp_path, model=settings)
    assert read_results(tmp_path).num_episodes == 0
    assert len(list(read_failures(tmp_path))) == 5


def test_a_bug_of_an_agent_is_raised_and_names_the_episode():
    class Buggy(FollowingModel):
        async def complete(self, request):
            raise TimeoutError("a bug")  # no end of the run's own time

    with pytest.raises(TimeoutError, match="a bug") as raised:
        evaluate(following(Buggy()), *RUN, limits=RunLimits(seconds=1000.0))
    assert any("policy react, prompt optimal, task " in note for note in raised.value.__notes__)


@pytest.mark.long
def test_an_endpoint_answers_many_episodes_at_once_in_any_process_and_its_key_is_nowhere(tmp_path):
    with LoopbackServer(slowly) as server:
        evaluate("react", *RUN, out=tmp_path / "two", workers=2, model=endpoint(server, concurrency=4))
        assert 1 < server.most_in_flight <= 4  # both together
        asked = len(server.requests)
        result = evaluate("react", *RUN, out=tmp_path / "one", model=endpoint(server))
        assert server.most_in_flight > 4
        assert len(server.requests) == 2 * asked
    assert records_of(tmp_path / "one") == records_of(tmp_path / "two")
    (sums,) = result.agents()
    assert sums.components["agent"]["calls"] == asked
    assert sums.components["agent"]["prompt_tokens"] == 11 * asked
    assert (sums.has_estimates, sums.cost) == (False, None)  # nobody named a price
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert KEY.encode() not in written
    assert b"openai:loopback at http://127.0.0.1" in written


def test_a_refused_key_ends_the_run_at_once_in_one_line(tmp_path):
    with (
        LoopbackServer(lambda seen: error(401, f"wrong key {KEY}")) as server,
        pytest.raises(InvalidInputError, match=r"^[^\n]*refuses the key[^\n]*$") as refusal,
    ):
        evaluate("react", *RUN, out=tmp_path, model=endpoint(server))
    assert KEY not in str(refusal.value)


def test_prices_and_models_by_role_stand_in_the_records(prices):
    with LoopbackServer(following_answer) as server:
        settings = endpoint(server, "openai:other", "agent=openai:loopback", prices=prices())
        result = evaluate("react", toy_tasks(1), "optimal", 1, model=settings)
    (record,) = result.records()
    usage = record["agent"]["components"]["agent"]
    assert usage["cost"] == pytest.approx((11 * 2.0 + 7 * 10.0) / 1e6 * usage["calls"], rel=1e-12)
    assert set(record["agent"]["models"]) == set(result.manifest["arguments"]["models"]) == {"default", "agent"}
    assert {seen.body["model"] for seen in server.requests} == {"loopback"}


def test_what_changes_nothing_is_warned_of(prices):
    with LoopbackServer(following_answer) as server:
        settings = endpoint(server, "openai:loopback", "extractor=openai:x", prices=prices(model="openai:loopbak"))
        unused = "no policy of this run has a component 'extractor', so its model is never asked: there are agent"
        with pytest.warns(UserWarning, match=unused) as warned:
            evaluate("react", toy_tasks(1), "optimal", 1, model=settings)
    unpriced = "no price of 'openai:loopback' is known: did you mean it by 'openai:loopbak'"
    assert any(unpriced in str(warning.message) for warning in warned)


def test_a_common_cache_answers_equal_runs_and_keeps_repeated_episodes_apart(tmp_path):
    with LoopbackServer(following_answer) as server:
        cached = replace(endpoint(server), cache=str(tmp_path / "cache"))
        first = evaluate("react", toy_tasks(2), "optimal", 3, model=cached)
        asked = len(server.requests)
        calls = first.agents()[0].components["agent"]["calls"]
        assert asked == calls  # also of equal requests in different episodes each was asked
        second = evaluate("react", toy_tasks(2), "optimal", 3, model=cached)
        assert len(server.requests) == asked
    assert second.agents()[0].components["agent"]["from_cache"] == calls
    assert second.agents()[0].cost == 0.0


def test_a_limit_of_tokens_counts_what_earlier_calls_used(tmp_path):
    model, settings = FollowingModel(), ModelSettings(concurrency=1)
    first = evaluate(following(model), *RUN, out=tmp_path, limits=RunLimits(tokens=500), model=settings)
    components = [record["agent"]["components"]["agent"] for record in read_records(tmp_path)]
    *others, last = (part["prompt_tokens"] + part["completion_tokens"] for part in components)
    used = sum(others) + last
    assert sum(others) < 500 <= used  # it stops behind the episode that reaches the limit
    assert first.call.stopped_by == f"the limit of 500 tokens ({used:,} used)"
    assert 0 < first.num_episodes < 6 * SEEDS
    asked = len(model.requests)
    again = evaluate(following(model), *RUN, out=tmp_path, limits=RunLimits(tokens=500), model=settings)
    assert (again.num_episodes, len(model.requests)) == (first.num_episodes, asked)


def test_the_longest_reply_reaches_every_agent_that_names_none_itself_and_stands_in_its_name():
    with LoopbackServer(following_answer) as server:
        settings = endpoint(server, max_tokens=64)
        agents = ["react", "direct[max_tokens=32]", "react[steps=9]", "plan-follower"]
        result = evaluate(agents, toy_tasks()[:1], "optimal", 1, model=settings)
        assert {row.policy for row in result.rows} == {
            "react[max_tokens=64]",
            "direct[max_tokens=32]",
            "react[steps=9,max_tokens=64]",
            "plan-follower",
        }
        assert {seen.body["max_tokens"] for seen in server.requests} == {64, 32}
        with pytest.raises(InvalidInputError, match="is a class or a function, expected its own option max_tokens"):
            evaluate(following(FollowingModel()), *RUN, model=ModelSettings(max_tokens=64))
    with pytest.raises(InvalidInputError, match=r"2,000,000 tokens \(--max-tokens\).*--token-budget"):
        ModelSettings(max_tokens=2_000_000)


@pytest.mark.parametrize("count", [2**63, 10**400, -1, "7", None])
def test_whatever_an_endpoint_counts_the_run_can_be_read_and_resumed(tmp_path, count):
    def answer(seen):
        value = json.loads(following_answer(seen).body)
        value["usage"] = {"prompt_tokens": count, "completion_tokens": 7}
        value["choices"][0]["message"]["reasoning_content"] = "so " * 700_000
        return json_answer(value)

    with LoopbackServer(answer) as server:
        arguments = (["react"], toy_tasks()[:1], "optimal")
        evaluate(*arguments, 1, out=tmp_path, model=endpoint(server), limits=RunLimits(episodes=1))
        resumed = evaluate(*arguments, 1, out=tmp_path, model=endpoint(server))
    assert resumed.call.num_already_there == 1
    result = read_results(tmp_path)
    (record,) = [opened(record) for record in read_records(tmp_path)]
    calls = record["agent"]["calls"]
    assert all(call["reply"]["usage"]["is_estimate"] for call in calls)
    assert {len(call["reply"]["thoughts"]) + len(call["reply"]["text"]) for call in calls} == {LONGEST_REPLY}
    assert record["agent"]["counters"]["cut_replies"] == len(calls)
    assert result.agents()[0].components["agent"]["calls"] == len(calls)


def test_a_model_of_the_users_own_that_counts_nonsense_is_read_all_the_same(tmp_path):
    class Counting(FollowingModel):
        async def complete(self, request):
            reply = await super().complete(request)
            return replace(reply, usage=TokenUsage(2**70, math.nan))

    evaluate(following(Counting()), toy_tasks()[:1], "optimal", 1, out=tmp_path)
    assert read_results(tmp_path).agents()[0].components["agent"]["prompt_tokens"] < 10**6


@pytest.mark.long
def test_a_limit_of_dollars_needs_prices_and_stops(tmp_path, prices):
    with LoopbackServer(following_answer) as server:
        with pytest.raises(InvalidInputError, match="needs the prices of all models: no price of 'openai:loopback'"):
            evaluate("react", *RUN, model=endpoint(server), limits=RunLimits(cost=1.0))
        assert not server.requests
        settings = endpoint(server, concurrency=1, prices=prices(1e6, 0.0))  # a dollar a token
        result = evaluate("react", *RUN, model=settings, limits=RunLimits(cost=60.0))
        cost = result.agents()[0].cost
        assert cost is not None
        assert 60.0 <= cost < 60.0 + 11.0 * 11  # at most the episode that passed the limit
        assert result.call.stopped_by == f"the limit of 60 dollars ({cost:.4g} spent)"
        # Nor does a limit help where nobody knows what was spent.
        evaluate("react", *RUN, out=tmp_path / "run", model=endpoint(server), limits=RunLimits(episodes=2))
        with pytest.raises(InvalidInputError, match=r"2 episodes in .*run were played without, so nobody knows"):
            evaluate("react", *RUN, out=tmp_path / "run", model=settings, limits=RunLimits(cost=1.0))
        assert evaluate("react", *RUN, out=tmp_path / "run", model=settings).num_episodes == 6 * SEEDS


@pytest.mark.long
def test_a_limit_of_seconds_does_not_wait_for_answers_and_keeps_replies(tmp_path):
    later = itertools.count()

    def silent_after_some(seen):
        """Answer every first request, and two of the later ones: so four episodes are left with a reply each."""
        first = len(seen.body["messages"]) == 2
        return following_answer(seen) if first or next(later) < 2 else Answer(kind="hang")

    with LoopbackServer(following_answer) as server:  # what is compiled and imported at first takes seconds of its own
        evaluate("react", *RUN, model=endpoint(server, concurrency=4))
    with LoopbackServer(silent_after_some) as server, no_endless_wait():  # nothing but the limit ends the waiting
        settings = endpoint(server, concurrency=4)
        result = evaluate("react", *RUN, out=tmp_path, model=settings, limits=RunLimits(seconds=5.0))
    assert result.call.stopped_by == "the limit of 5 seconds"
    assert result.num_episodes <= 2
    # Replies of the episodes under way are kept, of as many as were played at once.
    assert len(list((tmp_path / JOURNALS_NAME).glob("*.jsonl"))) == 4


def test_each_agent_plays_once_with_each_model(tmp_path):
    with LoopbackServer(following_answer) as server:
        settings = endpoint(server, "openai:small", "openai:big")
        result = evaluate(["react", "plan-follower"], toy_tasks(2), "optimal", 2, out=tmp_path, model=settings)
        assert {seen.body["model"] for seen in server.requests} == {"small", "big"}
    assert [row.policy for row in result.rows] == ["react@openai:small", "react@openai:big", "plan-follower"]
    small, big = (result.row(f"react@openai:{size}", "optimal") for size in ("small", "big"))
    assert small.success == big.success  # both follow, on the same luck
    for record in read_records(tmp_path):
        assert {call["model"] for call in record.get("agent", {}).get("calls", ())} <= {split_name(record["policy"])[1]}
    named = result.manifest["arguments"]["models_of_policies"]
    assert named["react@openai:big"]["default"].startswith("openai:big at http://127.0.0.1")
    found = find_episode(tmp_path, f"{toy_tasks()[0].instance_id}:0:react@openai:big")
    assert found["policy"] == "react@openai:big"
    assert read_results(tmp_path).rows == result.rows


def test_names_hold_policy_and_model():
    assert split_name("react@openai:a@b") == ("react", "openai:a@b")
    assert split_name("react[templates=/x@y]") == ("react[templates=/x@y]", None)
    assert split_name("react[templates=/x@y]@local") == ("react[templates=/x@y]", "local")


def test_who_tries_again_in_fresh_episodes_has_no_ceiling_and_no_luck_adjustment():
    result = evaluate(lambda: Reflexion(models=Doubting(), trials="fresh"), *RUN)
    assert any(record["agent"]["restarts"] for record in result.records())
    (row,) = result.rows
    assert (row.tries_again, row.privileged) == (True, False)
    assert math.isnan(row.optimum.value)
    assert math.isnan(row.luck_adjusted.value)
    assert row.to_mapping()["share_of_ceiling"]["value"] is None
    shown = Console(width=150)
    with shown.capture() as captured:
        shown.print(result.table())
    assert "† tries again in fresh episodes" in captured.get()
    assert write_report(result.directory).stat().st_size > 0
    (shared,) = evaluate(lambda: Reflexion(models=Doubting()), *RUN).rows
    assert not shared.tries_again
    assert shared.optimum.value > 0


KILLED = """
import sys
from types import SimpleNamespace
from resilisim.evaluation import evaluate
from tests.evaluation.agent_models import endpoint
from tests.evaluation.toy_policies import toy_tasks
model = endpoint(SimpleNamespace(base_url=sys.argv[2]), concurrency=4)
evaluate("react", toy_tasks(), "optimal", 4, out=sys.argv[1], model=model, progress=False)
"""


@pytest.mark.long
def test_a_killed_run_goes_on_and_asks_nothing_again_that_was_answered(tmp_path, python):
    def contents(requests):
        return [json.dumps(seen.body, sort_keys=True) for seen in requests]

    with LoopbackServer(slowly) as server:
        command = [*python, "-c", KILLED, str(tmp_path / "run"), server.base_url]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        kill_when(process, lambda: len(server.requests) >= 40)
        before = contents(server.requests)
        subprocess.run(command, cwd=ROOT, check=True)
        after = contents(server.requests[len(before) :])
    assert read_results(tmp_path / "run").num_episodes == 24
    # Each request names its episode by its seed; only those under way at the kill can come twice.
    assert len(set(before) & set(after)) <= 4
    whole = FollowingModel()
    evaluate(following(whole), *RUN, out=tmp_path / "whole")
    assert len(set(before) | set(after)) == len(whole.requests)
    steps = [[step["message"] for step in record["steps"]] for record in records_of(tmp_path / "run")]
    assert steps == [[step["message"] for step in record["steps"]] for record in records_of(tmp_path / "whole")]


@pytest.mark.parametrize(
    ("agent", "role", "script", "behind"),
    [
        ("kpi-chain", "planner", "kpi_planner.jsonl", "extractor"),
        ("plan-and-execute", "planner", "step_planner.jsonl", "executor"),
        ("rp-react", "planner", "question_planner.jsonl", "executor"),
        ("reflexion", "agent", "trial.jsonl", "evaluator"),
    ],
)
def test_a_script_brings_its_agent_to_what_comes_behind(tmp_path, agent, role, script, behind):
    write_scripts(tmp_path)
    garbage = tmp_path / "garbage.jsonl"
    garbage.write_text((json.dumps({"reply": "no form at all"}) + "\n") * CALLS)
    models = (f"scripted:{garbage}", f"{role}=scripted:{tmp_path / script}")
    result = evaluate(f"{agent}[max_llm_calls=4]", 1, "optimal", 1, model=models)
    (sums,) = result.agents()
    assert behind in sums.components
    assert set(SCRIPTS) == {path.name for path in tmp_path.glob("*.jsonl")} - {garbage.name}
