"""One episode of a run, found and played again."""

import asyncio
import copy
import dataclasses
import gc
import json
import socket
import warnings

import pytest

from resilisim.errors import InvalidInputError
from resilisim.evaluation import evaluate
from resilisim.evaluation.episode.rejudging import compare_records
from resilisim.evaluation.episode.texts import opened, stored
from resilisim.evaluation.run.replay import find_episode, finished, replay_episode
from resilisim.evaluation.run.store import JournalFolder, read_records
from resilisim.tool_library import default_library
from tests.chat.loopback import LoopbackServer, error
from tests.evaluation.agent_models import endpoint, following_answer
from tests.evaluation.toy_policies import toy_tasks

TASKS = {task.instance_id: task for task in toy_tasks(2)}


def find_task(instance_id):
    return TASKS[instance_id]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replay") / "run"
    with LoopbackServer(following_answer) as server:
        policies = ["react", "react[steps=2]", "plan-follower"]
        evaluate(policies, list(TASKS.values()), ["optimal", "baseline"], 2, out=folder, model=endpoint(server))
    return folder


def first_difference(then, now):
    """Return where two records differ, to the last digit."""
    return compare_records(then, now, tolerance=0.0)[1]


def replay(folder, wanted, models=None):
    record = finished(find_episode(folder, wanted))
    assert record is not None
    return record, replay_episode(folder, record, find_task, default_library(), models)


def test_every_episode_comes_to_the_same_end_without_its_model(run):
    for record in read_records(run):
        again = replay_episode(run, record, find_task, default_library())
        assert first_difference(record, again) is None
        assert json.dumps(stored(again)) == json.dumps(record)


def test_an_episode_is_found_by_number_or_by_what_it_is(run):
    for record in read_records(run):
        assert find_episode(run, str(record["index"])) == record
        name = f"{record['instance_id']}:{record['seed']}:{record['policy']}:{record['prompt_type']}"
        assert find_episode(run, name) == record
    task = next(iter(TASKS))
    with pytest.raises(InvalidInputError, match=f"episode '{task}' could be 12 episodes of "):
        find_episode(run, task)
    with pytest.raises(InvalidInputError, match="holds no episode '24': expected a number from 0 to 23"):
        find_episode(run, "24")


def test_models_are_asked_anew_only_when_told_to(run):
    gc.collect()
    # Those of earlier tests stay alive, so that only this one's are told.
    earlier = [thing for thing in gc.get_objects() if isinstance(thing, (asyncio.AbstractEventLoop, socket.socket))]
    with LoopbackServer(following_answer) as server, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)  # of connections that nobody closed
        record, again = replay(run, "0", endpoint(server))
        gc.collect()
        assert [str(warning.message) for warning in told] == []
        assert len(server.requests) == len(record["agent"]["calls"])
    del earlier
    assert [step["message"] for step in again["steps"]] == [step["message"] for step in record["steps"]]


def test_a_record_that_the_agent_no_longer_fits_is_refused(run):
    found = finished(find_episode(run, "0"))
    assert found is not None
    record = opened(found)
    agent = record["agent"]
    agent["messages"][0]["content"] += " "
    with pytest.raises(InvalidInputError, match=r"call 0 of the model \(agent\) is not the recorded one"):
        replay_episode(run, record, find_task, default_library())
    record = opened(found)
    record["agent"]["calls"].pop()
    with pytest.raises(InvalidInputError, match="asks openai:loopback for more than the record holds"):
        replay_episode(run, record, find_task, default_library())
    without = stored(opened(found), "none")
    with pytest.raises(InvalidInputError, match=r"kept no texts of episode 0 .*ask the models anew \(--live\)"):
        replay_episode(run, without, find_task, default_library())


def test_the_first_difference_is_named():
    then = {"a": [1, {"b": 2}], "c": 3}
    assert first_difference(then, copy.deepcopy(then)) is None
    assert first_difference(then, {**then, "a": [1, {"b": 5}]}) == "a[1].b is 2 in the record and 5 now"
    assert first_difference(then, {**then, "a": [1]}) == "a is a list of 2 in the record and of 1 now"
    assert first_difference(then, {"a": then["a"]}) == "c is 3 in the record and None now"


def test_older_records_do_not_say_why_a_message_was_rejected():
    old = {"steps": [{"kind": "rejected", "error": None}]}
    new = {"steps": [{"kind": "rejected", "error": "unknown tool 'x'"}]}
    assert first_difference(old, new) is None
    assert first_difference(new, old) == "steps[0].error is \"unknown tool 'x'\" in the record and None now"
    executed = {"steps": [{"kind": "execute", "error": None}]}
    assert first_difference(executed, {"steps": [{"kind": "execute", "error": "TIMEOUT"}]}) is not None


def test_a_broken_episode_goes_on_from_the_replies_it_has(tmp_path):
    down = error(503)
    with LoopbackServer(lambda seen: down if len(seen.body["messages"]) > 3 else following_answer(seen)) as server:
        task = toy_tasks(2)[1]
        evaluate("react", [task], "optimal", 1, out=tmp_path, model=endpoint(server))
    failure = find_episode(tmp_path, "0")
    assert finished(failure) is None
    with LoopbackServer(following_answer) as server:
        kept = JournalFolder(tmp_path).kept(0)
        again = replay_episode(tmp_path, failure, find_task, default_library(), endpoint(server))
        assert len(server.requests) == len(again["agent"]["calls"])  # another address is another model
    assert again["score"]["level"]
    assert JournalFolder(tmp_path).kept(0) == kept  # what was paid for stays for the run itself


def test_prices_are_no_part_of_what_is_compared(tmp_path):
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({"openai:loopback": {"prompt": 1.0, "completion": 2.0}}))
    with LoopbackServer(following_answer) as server:
        settings = dataclasses.replace(endpoint(server), prices=str(prices))
        evaluate("react", list(TASKS.values()), "optimal", 1, out=tmp_path / "run", model=settings)
    record, again = replay(tmp_path / "run", "0")
    assert record["agent"]["calls"][0]["cost"] > 0
    assert again["agent"]["calls"][0]["cost"] is None
    assert first_difference(record, again) is None
    priced = replay_episode(tmp_path / "run", record, find_task, default_library(), prices=str(prices))
    assert json.dumps(stored(priced)) == json.dumps(record)


def test_an_episode_that_a_too_long_conversation_ended_ends_so_again(tmp_path):
    too_long = error(400, "This model's maximum context length is 100 tokens")
    with LoopbackServer(lambda seen: too_long if len(seen.body["messages"]) > 5 else following_answer(seen)) as server:
        evaluate("react", toy_tasks(2)[1:], "optimal", 1, out=tmp_path, model=endpoint(server))
    record, again = replay(tmp_path, "0")
    assert record["agent"]["ended_by"] == "context_overflow"
    assert first_difference(record, again) is None
