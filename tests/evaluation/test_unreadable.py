"""What is written has passed the reader: nothing that a run leaves can stop a report, an export or a resume."""

import json
import math

import pytest

from resilisim import evaluate, inject
from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation import opened, read_records
from resilisim.evaluation.episode import texts
from resilisim.evaluation.run.store import RunStore, check_episode, check_failure, read_failures
from resilisim.policies.agent_record import empty_part
from resilisim.policies.function_agent import FunctionAgent
from resilisim.run_folder import JsonLinesWriter, read_json_lines, run_manifest


class Strange(FunctionAgent):
    """An agent whose part of the record is strange."""

    def __init__(self, **part):
        super().__init__(lambda session: None)
        self.name = "strange"
        self._part = part

    async def play_session(self, session, *, identity="", journal=None):
        session.send(None)
        return {**empty_part("strange"), **self._part}


CALL = {"role": "agent", "model": "m", "messages": [], "reply": {"usage": {}}, "turn": 0, "cost": None}
STRANGE = {
    "tokens of 2^63": {"counters": {"calls": 2**63}},
    "tokens of 10^400": {"counters": {"calls": 10**400}},
    "tokens of 10^5000": {"counters": {"calls": 10**5000}},
    "negative beyond 64 bits": {"counters": {"calls": -(2**64)}},
    "NaN": {"options": {"temperature": math.nan}},
    "infinite cost": {"components": {"agent": {"cost": math.inf}}},
    "too dear": {"components": {"agent": {"cost": 1e12}}},
    "an object": {"options": {"model": object()}},
    "bytes": {"answer": b"text"},
    "a number for a text": {"architecture": 5},
    "a list for an object": {"options": [1]},
    "calls that are none": {"calls": [{**CALL, "turn": "first"}]},
}


def strange_agent(part):
    def make():
        return Strange(**part)

    return make


@pytest.mark.parametrize("part", STRANGE.values(), ids=STRANGE)
def test_an_episode_that_nothing_could_read_is_a_failure_and_the_run_goes_on(part, tmp_path):
    evaluate([strange_agent(part), "plan-follower"], tasks=1, seeds=2, out=tmp_path)
    assert [record["policy"] for record in read_records(tmp_path)] == ["plan-follower"] * 2
    failures = list(read_failures(tmp_path))
    assert [failure["policy"] for failure in failures] == ["strange"] * 2
    assert all("nothing could read" in failure["error"] for failure in failures)
    again = evaluate([strange_agent(part), "plan-follower"], tasks=1, seeds=2, out=tmp_path)
    assert len(list(again.records())) == 2


def test_texts_that_are_too_long_to_be_read_are_left_out_and_told(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "MOST_BYTES", 20_000)
    part = {"messages": [{"role": "user", "content": "x" * 1_000}] * 40}
    with pytest.warns(UserWarning, match=r"texts of episode 0 take .* not kept"):
        evaluate(strange_agent(part), tasks=1, out=tmp_path)
    (record,) = read_records(tmp_path)
    assert "texts" not in record
    assert opened(record)["agent"]["architecture"] == "strange"


def test_usage_that_no_call_has_is_refused_where_it_is_told():
    def agent(session):
        for wrong in ({"prompt_tokens": 2**63}, {"prompt_tokens": 10**400}, {"cost": 1e9}, {"seconds": 1e9}):
            with pytest.raises(InvalidInputError):
                session.note_usage(**wrong)
        session.note_usage(10**12, 10**12, cost=5.0, model="m")

    result = evaluate(agents=agent, tasks=1)
    (record,) = result.records()
    assert record["agent"]["components"]["agent"]["prompt_tokens"] == 10**12


@pytest.mark.parametrize("wrong", [{"name": 5}, {"salt": 5}, {"name": ["x"]}])
def test_inject_leaves_nothing_that_cannot_be_read(wrong, tmp_path):
    def charge(amount: int) -> int:
        return amount

    with (
        pytest.raises((InvalidInputError, StoreError, TypeError)),
        inject([charge], law="none", required=["charge"], record=tmp_path, **wrong) as tools,
    ):
        tools["charge"](1)
    assert list(read_records(tmp_path) if (tmp_path / "manifest.json").exists() else ()) == []


def test_lines_without_a_form_in_json_are_refused_before_they_are_written(tmp_path):
    loop = []
    loop.append(loop)
    deep = 0
    for _ in range(100_000):
        deep = [deep]
    with JsonLinesWriter(tmp_path / "lines.jsonl") as writer:
        for value in (math.nan, {"x": object()}, {1: b""}, loop, deep, 10**5000):
            with pytest.raises(StoreError, match="nothing could read again"):
                writer.write(value)
        writer.write({"ok": 1})
    assert list(read_json_lines(tmp_path / "lines.jsonl")) == [{"ok": 1}]
    for value in (math.nan, object(), loop, deep, 10**5000):
        with pytest.raises(StoreError, match="the arguments of a run cannot be written"):
            run_manifest({"x": value})


def test_the_folder_refuses_what_its_readers_would_refuse(tmp_path):
    result = evaluate("plan-follower", tasks=1, out=tmp_path / "run")
    (record,) = read_records(tmp_path / "run")
    line = (tmp_path / "run" / "episodes.jsonl").read_bytes()
    check_episode(line)
    with RunStore(tmp_path / "other", result.manifest["arguments"], 5) as store:
        for wrong in ({**record, "steps": []}, {**record, "index": 2**70}, {**record, "policy": 5}, {"schema": "x"}):
            with pytest.raises(StoreError, match="nothing could read it again"):
                store.append_encoded(json.dumps(wrong).encode() + b"\n", 0)
        for wrong in ({}, {"schema": "resilisim-failure-1"}):
            with pytest.raises(StoreError, match="nothing could read it again"):
                store.append_failure(json.dumps(wrong).encode() + b"\n")
    assert (tmp_path / "other" / "episodes.jsonl").read_bytes() == b""
    with pytest.raises(StoreError):
        check_failure(b"[]\n")
