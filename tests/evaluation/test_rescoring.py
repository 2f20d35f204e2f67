"""Saved episodes scored again from their records: nothing changes, and whoever changed a record is found."""

import copy
import json
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.envs.conversation import ConversationEnv
from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation import evaluate
from resilisim.evaluation.episode.play import play_episode
from resilisim.evaluation.episode.rejudging import compare_records, message_reader, rejudged
from resilisim.evaluation.run.rescoring import (
    NUM_SHOWN,
    SOURCE_KEY,
    RescoreSummary,
    rescore_run,
)
from resilisim.evaluation.run.store import EPISODES_NAME, read_manifest, read_records
from resilisim.policies.llm.agents.reflexion import Reflexion
from resilisim.policies.registry import make_policy
from resilisim.provenance import encode_json_line
from resilisim.simulator.exact import optimum as exact_optimum
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import ToolLibrary, default_library
from tests.evaluation.agent_models import Doubting
from tests.evaluation.toy_policies import FILTER, PARSER, READER, TRANSFORMER, Scripted, call, toy_tasks

LIBRARY = default_library()
LAWS = (
    {},
    {"max_turns": 4, "loop_length": 2, "parameters": "strict"},
    {"base": 0.5, "failed": 0.9, "history": 1.0, "max_consecutive_failures": 2, "parameters": "ignore"},
    {"max_consecutive_failures": 0, "loop_length": 0, "max_turns": 6},
)
LONG_TASKS = [task for task in benchmark_tasks()[::600] if len(task.required_tools) > 2]


@cache
def environment(law, protocol="text"):
    return ConversationEnv(search=lambda query, count: [], protocol=protocol, **LAWS[law])


def native(called, **arguments):
    function = {"name": called, "arguments": json.dumps(arguments)}
    return json.dumps({"content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]})


SAID = {
    "text": (
        "<tool_search>read a file</tool_search>",
        "Hm. <tool_search> Read a FILE </tool_search>",
        f"<tool_info>{READER}</tool_info>",
        "<tool_info>nothing_known</tool_info>",
        "I wait.",
        "I  wait.",
        "\ud800 half",
        call(READER, {"source": 7}),
        call(READER, {"source": "a.csv"}),
        *map(call, (READER, PARSER, FILTER, TRANSFORMER, "file_operations_writer", "utility_logger", "no_such_tool")),
    ),
    "native": (
        native("tool_search", query="read a file"),
        native("tool_info", name=READER),
        native("tool_call", name=READER),
        native("tool_call", name=PARSER, parameters={"nonsense": 1}),
        native("tool_call", name=PARSER),
        native("no_function"),
        json.dumps({"content": "hm"}),
        "plain words",
    ),
}


@pytest.mark.parametrize("protocol", ["text", "native"])
@given(data=st.data(), task=st.integers(0, 2), law=st.integers(0, len(LAWS) - 1), seed=st.integers(0, 50))
def test_whatever_is_said_is_judged_in_the_same_way_from_the_record(protocol, data, task, law, seed):
    messages = data.draw(st.lists(st.sampled_from(SAID[protocol]), max_size=12))
    end = data.draw(st.sampled_from(["<finish/>", None]))
    prompt = data.draw(st.sampled_from(["baseline", "optimal"]))
    env = environment(law, protocol)
    record = play_episode(env, Scripted([*messages, end]), toy_tasks(3)[task], prompt, seed)
    read = message_reader(LIBRARY, {"protocol": protocol, **LAWS[law]})
    assert rejudged(json.loads(encode_json_line(record)), LIBRARY, read) == record


@cache
def episode():
    """Return an episode with searches, failures and successes."""
    messages = [SAID["text"][0], *map(call, (READER, READER, PARSER)), "<finish/>"]
    return play_episode(environment(0), Scripted(messages), toy_tasks(3)[1], "optimal", 4)


def changed(place, value):
    record = copy.deepcopy(episode())
    part = record
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = value
    return record


def test_nothing_is_searched_and_the_record_that_is_handed_in_stays_as_it_is(monkeypatch):
    record = copy.deepcopy(episode())
    monkeypatch.setattr(ConversationEnv, "__init__", None)
    exact_optimum._solved.clear()  # nothing remembered of the episode's own run
    assert rejudged(record, LIBRARY) == record == episode()


@pytest.mark.parametrize(
    ("place", "value", "verdict"),
    [
        (("steps", 1, "value"), 0.5, "differing"),
        (("steps", 1, "regret"), 0.25, "differing"),
        (("steps", 1, "luck"), 0.0, "differing"),
        (("steps", 2, "action_value"), None, "differing"),
        (("steps", 2, "success_probability"), 0.81, "differing"),
        (("steps", 2, "attempt"), 7, "differing"),
        (("outcome",), 1, "differing"),
        (("ended_by",), "turns", "differing"),
        (("score", "level"), "full_success", "differing"),
        (("score", "coverage"), 1.0, "differing"),
        (("required_outputs",), [READER], "differing"),
        (("optimum",), 0.1, "differing"),
        (("optimum_gap",), 0.1, "differing"),
        (("regret",), 0.0, "differing"),
        (("luck",), 0.3, "differing"),
        (("luck",), episode()["luck"] + 1e-11, "agreeing"),
        # What a loss is called is compared apart from its numbers.
        (("steps", 0, "label"), "information", "other_labels"),
        (("losses", "wasted_turn"), 0.5, "other_labels"),
        (("losses", "unneeded_tool"), 1e-12, "agreeing"),
    ],
)
def test_what_does_not_follow_is_found(place, value, verdict):
    record = changed(place, value)
    again = rejudged(record, LIBRARY)
    assert {**again, "losses": {}} == {**episode(), "losses": {}}
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    found, difference = compare_records(record, again)
    assert found == verdict
    if verdict == "agreeing":
        assert difference is None
    else:
        shown = f"a list of {len(value)}" if isinstance(value, list) else repr(value)
        assert str(difference).startswith(f"{where} is {shown} in the record and ")


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (("steps", 1, "success"), not episode()["steps"][1]["success"], "the record denies it"),
        (("steps", 1, "success"), None, "message 2 executes a tool, but its success is None"),
        (("steps", 0, "success"), True, "message 1 executes nothing, but its success is True"),
        (("steps", 1, "tool"), "file_operation_reader", "file_operations_reader"),
        (("steps", 1, "kind"), "magic", "unknown kind 'magic'"),
        (("steps", 1, "kind"), "finish", "but its success is"),
        (("steps",), episode()["steps"][:-1], "does not end with its last message, number 4"),
        (("steps",), episode()["steps"] * 2, "message 1 comes after the end"),
        (("seed",), 5, "the draw of message"),
        (("salt",), "another", "the draw of message"),
        (("law", "bases"), 0.8, "field .bases.: got 0.8; expected an object"),
        (("law", "base"), 1.5, "expected above 0 and at most 1"),
        (("required_tools",), [READER, "no_such_tool"], "no_such_tool"),
        (("flaw",), {"plan": [READER], "edits": [{"what": "replaced"}]}, "cannot be undone"),
    ],
)
def test_what_cannot_have_happened_is_refused(place, value, reason):
    with pytest.raises(InvalidInputError, match=reason):
        rejudged(changed(place, value), LIBRARY)


def test_best_messages_are_written_down_where_they_are_asked_for():
    best = play_episode(environment(0), make_policy("exact-optimum"), LONG_TASKS[0], "optimal", 3)
    steps = rejudged(best, LIBRARY, best=True)["steps"]
    assert [step["best"] for step in steps] == [
        step["kind"] if step["tool"] is None else f"call {step['tool']}" for step in steps
    ]
    again = rejudged(episode(), LIBRARY, best=True)
    for step in again["steps"]:
        assert step["regret"] == 0.0 or step["best"] != f"call {step['tool']}"
    assert compare_records(episode(), again) == compare_records(again, episode()) == ("agreeing", None)
    assert rejudged(again, LIBRARY) == again
    with pytest.raises(InvalidInputError, match="expected --out"):
        rescore_run("nowhere", best=True)


POLICIES = ["random", "repairing-follower", "exact-optimum"]
RUN = (POLICIES, LONG_TASKS, ["optimal", "flawed:missing_step", "flawed:parameter_error:severe"], 4)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the folder of a small run."""
    folder = tmp_path_factory.mktemp("run") / "run"
    evaluate(*RUN, out=folder, parameters="strict", errors="transient", progress=False)
    return folder


def copy_of(run, target, change=None):
    """Copy a run's folder; `change` is called with the number and the record of each line."""
    target.mkdir()
    (target / "manifest.json").write_bytes((run / "manifest.json").read_bytes())
    with (target / EPISODES_NAME).open("wb") as stream:
        for number, record in enumerate(read_records(run)):
            content = record
            if change is not None:
                change(number, content)
            stream.write(encode_json_line(content))
    return target


def test_a_run_agrees_with_itself_whatever_the_number_of_workers(run):
    total = sum(1 for _ in read_records(run))
    assert any("obeyed_flaw" in record["losses"] for record in read_records(run))
    counted = []
    summary = rescore_run(run, progress=counted.append)
    assert summary == RescoreSummary(total, total, 0, 0, 0, (), None)
    assert summary.agrees
    assert sum(counted) == total > 100
    assert rescore_run(run, workers=2) == summary


def test_changed_episodes_are_counted_and_named(run, tmp_path):
    def change(number, record):
        if number == 3:
            record["outcome"] = 1 - record["outcome"]
        elif number == 5:
            record["losses"]["wrong_order"] = 0.125
        elif number == 13:
            record["seed"] += 1
        elif number == 9:
            record["law"]["base"] = 0.9
        elif number == 10:
            record["manifest"] = "0" * 64
        elif number >= 20:
            record["luck"] += 1e-6

    folder = copy_of(run, tmp_path / "changed", change)
    indices = [record["index"] for record in read_records(folder)]
    summary = rescore_run(folder)
    assert not summary.agrees
    assert (summary.num_differing, summary.num_other_labels, summary.num_impossible) == (len(indices) - 19, 1, 3)
    assert (summary.num_agreeing, len(summary.differences)) == (15, NUM_SHOWN)
    outcome, label, law, manifest, seed = summary.differences[:5]
    assert outcome.startswith(f"episode {indices[3]}: outcome is ")
    assert label.startswith(f"episode {indices[5]}: losses.wrong_order is 0.125")
    assert "the draw of message" in seed
    assert law == f"episode {indices[9]}: base is 0.9 in the record and 0.8 in the manifest"
    assert manifest.endswith("it belongs to another run than manifest.json describes")


def test_a_new_folder_holds_what_is_computed_now_and_says_what_it_was_made_from(run, tmp_path):
    def with_old_labels(number, record):
        for step in record["steps"]:
            step["label"] = "suboptimal_choice" if step["label"] else None
        record["losses"] = {"suboptimal_choice": record["regret"]} if record["losses"] else {}

    old = copy_of(run, tmp_path / "old", with_old_labels)
    summary = rescore_run(old, tmp_path / "new")
    assert summary.num_other_labels > 0
    assert summary.num_differing == summary.num_impossible == 0
    assert summary.directory == tmp_path / "new"
    manifest, source = read_manifest(tmp_path / "new"), read_manifest(run)
    assert manifest["arguments"].pop(SOURCE_KEY) == {name: source[name] for name in ("hash", "created", "versions")}
    assert manifest["arguments"] == source["arguments"]
    for record, again in zip(read_records(run), read_records(tmp_path / "new"), strict=True):
        assert again == {**record, "manifest": manifest["hash"]}
    assert rescore_run(tmp_path / "new").agrees
    assert rescore_run(old, tmp_path / "new") == summary  # done already, so nothing is written twice
    with pytest.raises(StoreError, match="holds results of another run"):
        evaluate(*RUN, out=tmp_path / "new", parameters="strict", progress=False)


def test_what_cannot_be_scored_again_is_refused(run, tmp_path):
    def impossible(number, record):
        if number == 4:
            record["steps"].pop()

    with pytest.raises(InvalidInputError, match="cannot be scored again, so the new folder ends before it: "):
        rescore_run(copy_of(run, tmp_path / "impossible", impossible), tmp_path / "new")
    with pytest.raises(StoreError, match="is the folder to read"):
        rescore_run(run, run)
    with pytest.raises(StoreError, match="not a folder of results"):
        rescore_run(tmp_path)
    content = json.loads(LIBRARY.to_json())
    content["tools"][0]["success_probability"] = 0.5
    with pytest.raises(InvalidInputError, match="made with another tool library"):
        rescore_run(run, library=ToolLibrary.from_json(json.dumps(content)))
    episodes = copy_of(run, tmp_path / "broken") / EPISODES_NAME
    episodes.write_bytes(episodes.read_bytes()[:-20])
    assert rescore_run(tmp_path / "broken").num_episodes == sum(1 for _ in read_records(run)) - 1
    for line, expected in ((b"{}\n", "line 1 of .* is not an episode"), (b"{\n", "line 1 of .* is not JSON")):
        episodes.write_bytes(line)
        with pytest.raises(StoreError, match=expected):
            rescore_run(tmp_path / "broken")


def test_of_an_agent_that_began_anew_the_last_trial_is_scored(tmp_path):
    evaluate(lambda: Reflexion(models=Doubting(), trials="fresh"), toy_tasks(), "optimal", 3, out=tmp_path / "run")
    records = list(read_records(tmp_path / "run"))
    assert any(record["agent"]["restarts"] for record in records)
    assert rescore_run(tmp_path / "run") == RescoreSummary(len(records), len(records), 0, 0, 0, (), None)
