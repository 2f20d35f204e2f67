"""What was said in episodes: kept as told, packed without loss, small, without keys, whole after merges and kills."""

import base64
import hashlib
import json
import zlib
from importlib import resources
from statistics import mean
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilisim.envs.conversation import ConversationEnv
from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation import evaluate, merge_runs, opened, read_records
from resilisim.evaluation.episode.play import play_episode
from resilisim.evaluation.episode.record import checked_record
from resilisim.evaluation.episode.texts import FORMAT, newly_told, opened_if_whole, prompt_of, replies_of, stored
from resilisim.evaluation.run.rescoring import rescore_run
from resilisim.policies.agent_record import empty_part
from resilisim.policies.registry import make_policy
from resilisim.provenance import encode_json_line
from resilisim.reporting.viewer.packing import TalkRows, talk_of
from resilisim.simulator.scoring import rescore
from resilisim.tasks.benchmark import benchmark_tasks
from tests.chat.loopback import LoopbackServer, completion
from tests.doubles.talkers import direct, react
from tests.evaluation.agent_models import KEY, endpoint, next_reply
from tests.evaluation.synthetic import synthetic_run
from tests.evaluation.toy_policies import toy_tasks

TEXTS = st.text(st.characters(codec=None) | st.sampled_from('\ud800\udfff\x00</"\\\u2028')) | st.just("x" * 70_000)
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "is_estimate": False}


def on_disk(record):
    """Return a record as somebody reads it who did not write it."""
    read = json.loads(encode_json_line(record))
    return checked_record(read, "the line")


@pytest.mark.long
@settings(max_examples=20)
@given(st.lists(TEXTS, min_size=3, max_size=6), st.booleans())
def test_texts_come_out_as_they_went_in(said, is_agent):
    base = next(synthetic_run(("random",), ("baseline",), num_tasks=1, num_seeds=1))
    steps = [{**step, "message": said[number % len(said)]} for number, step in enumerate(base["steps"])]
    replies = [said[-1 - number % len(said)] for number in range(len(steps))]
    record = {**base, "steps": steps, "texts": {"prompt": said[0], "replies": replies}}
    if is_agent:
        reply = {"text": said[1], "tool_calls": [], "thoughts": said[2], "usage": USAGE, "finish_reason": "stop"}
        record["agent"] = {
            **empty_part("react"),
            "calls": [{"role": "agent", "messages": [0, 1, 0], "reply": reply, "turn": 0}],
            "messages": [{"role": "user", "content": said[2]}, {"role": "assistant", "content": said[0]}],
            "structure": {"plan": said},
            "events": [],
        }
    packed = on_disk(stored(record, "all"))
    assert opened(packed) == record
    assert stored(opened(packed), "all") == packed
    assert said[0] not in json.dumps(packed["texts"]) or len(said[0]) < 8


def test_whose_texts_are_kept_and_what_stays_without_them():
    task, env = benchmark_tasks()[3], ConversationEnv()
    for policy in (make_policy("random"), make_policy("exact-optimum"), react()):
        record = play_episode(env, policy, task, "optimal", 4, index=7)
        is_agent, failed = "agent" in record, not record["outcome"]
        for keep, expected in (("all", True), ("failures", failed), ("none", False), (None, is_agent or failed)):
            kept = on_disk(stored(record, keep))
            assert ("texts" in kept) is expected
            assert rescore(kept).to_mapping() == record["score"]
            assert kept["steps"] == record["steps"]
            whole = opened(kept)
            assert (prompt_of(whole) is not None) is expected
            assert ("messages" in whole.get("agent", {})) is (expected and is_agent)
            if expected:
                assert whole == json.loads(json.dumps(record))
            elif is_agent:  # what is counted stays
                assert [call["reply"]["usage"] for call in kept["agent"]["calls"]]
                assert kept["agent"]["components"] == record["agent"]["components"]
                assert "Thought" not in json.dumps(kept["agent"])


def test_an_episode_of_ten_turns_takes_less_than_three_kilobytes():
    env = ConversationEnv()
    sizes = []
    for task in benchmark_tasks()[:30]:
        for agent in (react(), direct()):
            record = play_episode(env, agent, task, "optimal", 0)
            if len(record["steps"]) >= 10:
                sizes.append(len(base64.b64decode(str(stored(record)["texts"])[len(FORMAT) :])))
    assert len(sizes) > 10
    assert mean(sizes) < 3_000


def test_what_was_released_can_always_be_read():
    dictionary = resources.files("resilisim.evaluation.episode").joinpath("texts-1.dictionary").read_bytes()
    # Never changed: records that were packed with it could not be read any more. A better one is number 2.
    assert hashlib.sha256(dictionary).hexdigest() == DICTIONARY
    record = next(synthetic_run(("random",), ("baseline",), num_tasks=1, num_seeds=1))
    agent = {"messages": [{"role": "user", "content": "Do it."}], "calls": [], "structure": {}, "events": []}
    assert opened({**record, "agent": agent}) == {**record, "agent": agent}  # as older versions wrote it


def test_broken_texts_are_told_in_one_line():
    record = play_episode(ConversationEnv(), make_policy("random"), benchmark_tasks()[0], "optimal", 0, index=5)
    packed = stored(record, "all")
    texts = str(packed["texts"])
    steps = [{**step, "message": "another"} for step in record["steps"]]
    broken = [
        {**packed, "texts": texts[:-40]},
        {**packed, "texts": "2:" + texts[2:]},
        {**packed, "texts": FORMAT + "no base64"},
        {**packed, "texts": FORMAT + base64.b64encode(zlib.compress(b"[1]")).decode()},
        {**packed, "steps": steps},
        {**packed, "steps": record["steps"][:-1]},
    ]
    for one in broken:
        with pytest.raises(StoreError, match=r"^the texts of episode 5 are broken: [^\n]*$"):
            opened(one)
        assert opened_if_whole(one)[0] is one
        texts, prompt, replies, calls = json.loads(TalkRows().row(cast("bytes", talk_of(one))))
        assert texts[prompt].startswith("the texts of episode 5 are broken: "), "the page is made all the same"
        assert (replies, calls) == ([""] * len(one["steps"]), [])


def telling_its_key(seen):
    """Follow the plan like `following_answer`, and give away the key in the thought."""
    reply = next_reply([message["content"] for message in seen.body["messages"][1:]])
    return completion(reply.replace("Thought: ", f"Thought: my key is {KEY}, "))


def test_shards_merge_and_are_scored_again_with_their_texts_and_without_keys(tmp_path):
    with LoopbackServer(telling_its_key) as server:
        arguments = (["react", "random"], toy_tasks(2), "optimal", 2)
        for shard in ("1/2", "2/2"):
            folder = tmp_path / shard[0]
            evaluate(*arguments, out=folder, shard=shard, model=endpoint(server), progress=False)
            # A kill in the middle of a line, and the same command again.
            lines = (folder / "episodes.jsonl").read_bytes()
            (folder / "episodes.jsonl").write_bytes(lines[:-400])
            evaluate(*arguments, out=folder, shard=shard, model=endpoint(server), progress=False)
    merge_runs([tmp_path / "1", tmp_path / "2"], tmp_path / "whole")
    assert merge_runs([tmp_path / "1"], tmp_path / "whole").num_duplicates == 4
    rescore_run(tmp_path / "whole", tmp_path / "again")
    for name in ("whole", "again"):
        records = list(map(opened, read_records(tmp_path / name)))
        assert len(records) == 8
        for record in records:
            assert KEY not in json.dumps(record)
            assert ("texts" in record) is ("agent" in record or not record["outcome"])
            if "agent" in record:
                assert "my key is" in json.dumps(record["agent"]["messages"])
                assert str(prompt_of(record)).startswith("# Task")
                (first, *_), *later = newly_told(record)
                assert record["agent"]["messages"][first]["role"] == "system"
                assert not any(later)  # replies of the environment, which stand beside their steps
                assert all("turns left" in str(reply) for reply in replies_of(record)[:-1])


def test_a_folder_keeps_to_what_was_asked_of_it(tmp_path):
    run = ("random", toy_tasks(2), "optimal", 1)
    evaluate(*run, out=tmp_path / "none", record_texts="none", progress=False)
    assert all("texts" not in record for record in read_records(tmp_path / "none"))
    with pytest.raises(StoreError, match='record_texts is "none" there and absent here'):
        evaluate(*run, out=tmp_path / "none", progress=False)
    with pytest.raises(InvalidInputError, match="did you mean 'failures'"):
        evaluate(*run, out=tmp_path / "other", record_texts=cast("Any", "failure"), progress=False)


DICTIONARY = "15405d4751a2879eb78b008df059d23df5398d16073d208c6adfb4b7b93f80de"
