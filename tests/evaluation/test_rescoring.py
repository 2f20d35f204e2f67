"""Saved episodes scored again from their records: nothing changes, and whoever changed a record is found."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilisim.envs.conversation import ConversationEnv
from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation import evaluate
from resilisim.evaluation.episode.play import play_episode
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.run.rescoring import (
    NUM_SHOWN,
    SOURCE_KEY,
    RescoreSummary,
    first_disagreement,
    first_other_label,
    message_reader,
    reattribute,
    rescore_run,
)
from resilisim.evaluation.run.store import EPISODES_NAME, read_manifest, read_records
from resilisim.policies.llm.agents.reflexion import Reflexion
from resilisim.policies.registry import make_policy
from resilisim.provenance import encode_json_line
from resilisim.seeding import EVALUATION_SALT
from resilisim.simulator.exact import optimum as exact_optimum
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import ToolLibrary, default_library
from tests.evaluation.toy_policies import Scripted, toy_tasks

READER, PARSER, FILTER = "file_operations_reader", "data_processing_parser", "data_processing_filter"
LAWS: tuple[dict[str, Any], ...] = (
    {},
    {"max_turns": 4, "loop_length": 2},
    {"base": 0.5, "failed": 0.9, "history": 1.0, "max_consecutive_failures": 2},
    {"max_consecutive_failures": 0, "loop_length": 0, "max_turns": 6},
)


@cache
def environment(place: int, parameters: str = "lenient", protocol: str = "text") -> ConversationEnv:
    return ConversationEnv(search=lambda query, count: [], parameters=parameters, protocol=protocol, **LAWS[place])


def play(env: ConversationEnv, messages: list[str | None], task: Task, prompt: str, seed: int) -> EpisodeRecord:
    return play_episode(env, Scripted(messages), task, prompt, seed, salt=EVALUATION_SALT)


def native(called: str, **arguments: Any) -> str:
    function = {"name": called, "arguments": json.dumps(arguments)}
    return json.dumps({"content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]})


TEXTS = (
    "<tool_search>read a file</tool_search>",
    "Hm. <tool_search> Read a FILE </tool_search>",
    f"<tool_info>{READER}</tool_info>",
    "<tool_info>nothing_known</tool_info>",
    "I wait.",
    "I  wait.",
    "<tool_call>no_such_tool</tool_call>",
    f'<tool_call>{READER} {{"source": 7}}</tool_call>',
    f'<tool_call>{READER} {{"source": "a.csv"}}</tool_call>',
    *(f"<tool_call>{tool}</tool_call>" for tool in (READER, PARSER, FILTER, "data_processing_transformer")),
    "<tool_call>file_operations_writer</tool_call>",
    "<tool_call>utility_logger</tool_call>",
    "\ud800 half",
)
NATIVE = (
    native("tool_search", query="read a file"),
    native("tool_info", name=READER),
    native("tool_call", name=READER),
    native("tool_call", name=PARSER, parameters={"nonsense": 1}),
    native("tool_call", name=PARSER),
    native("no_function"),
    json.dumps({"content": "hm"}),
    "plain words",
)


@settings(max_examples=150, deadline=None)
@given(
    messages=st.lists(st.sampled_from(TEXTS), max_size=12),
    end=st.sampled_from(["<finish/>", None]),
    task=st.integers(0, 2),
    law=st.integers(0, len(LAWS) - 1),
    parameters=st.sampled_from(["lenient", "strict", "ignore"]),
    prompt=st.sampled_from(["baseline", "optimal"]),
    seed=st.integers(0, 50),
)
def test_whatever_is_said_is_judged_in_the_same_way_from_the_record(
    messages: list[str | None], end: str | None, task: int, law: int, parameters: Any, prompt: str, seed: int
) -> None:
    env = environment(law, parameters)
    record = play(env, [*messages, end], toy_tasks(3)[task], prompt, seed)
    saved = json.loads(encode_json_line(record))
    assert reattribute(saved, env.library, message_reader(env.library, {"parameters": parameters})) == record


@settings(max_examples=40, deadline=None)
@given(messages=st.lists(st.sampled_from(NATIVE), max_size=12), law=st.integers(0, 3), seed=st.integers(0, 50))
def test_so_are_native_calls(messages: list[str | None], law: int, seed: int) -> None:
    env = environment(law, protocol="native")
    record = play(env, messages, toy_tasks(3)[1], "optimal", seed)
    assert reattribute(record, env.library, message_reader(env.library, {"protocol": "native"})) == record


@pytest.mark.parametrize("policy", ["random", "plan-follower", "repairing-follower", "exact-optimum"])
def test_policies_under_flawed_and_other_prompts_are_judged_in_the_same_way(policy: str) -> None:
    env = ConversationEnv(parameters="strict")
    player, read = make_policy(policy), message_reader(env.library, {"parameters": "strict"})
    labels = set()
    for prompt in ("baseline", "flawed:parameter_error", "flawed:missing_step:severe", "flawed:redundant_operation"):
        for task in [task for task in benchmark_tasks()[::900] if len(task.required_tools) > 2]:
            for seed in range(4):
                record = play_episode(env, player, task, prompt, seed, salt=EVALUATION_SALT)
                assert reattribute(record, env.library, read) == record
                labels |= set(record["losses"])
    assert ("obeyed_flaw" in labels) == (policy in ("plan-follower", "repairing-follower"))


def test_nothing_is_searched_and_the_record_that_is_handed_in_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    record = play(environment(0), [*TEXTS[:6], None], toy_tasks(3)[1], "optimal", 1)
    before = copy.deepcopy(record)
    monkeypatch.setattr(ConversationEnv, "__init__", None)
    exact_optimum._solved.clear()  # nothing remembered of the episode's own run
    assert reattribute(record, default_library()) == record == before


def episode() -> EpisodeRecord:
    """Return an episode with searches, failures and successes."""
    messages = [TEXTS[0], *(f"<tool_call>{tool}</tool_call>" for tool in (READER, READER, PARSER)), "<finish/>"]
    return play(environment(0), messages, toy_tasks(3)[1], "optimal", 4)


def changed(place: tuple[Any, ...], value: Any) -> EpisodeRecord:
    record: Any = copy.deepcopy(episode())
    part = record
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = value
    return record


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("steps", 1, "value"), 0.5),
        (("steps", 1, "regret"), 0.25),
        (("steps", 1, "luck"), 0.0),
        (("steps", 2, "action_value"), None),
        (("steps", 2, "success_probability"), 0.81),
        (("steps", 2, "attempt"), 7),
        (("outcome",), 1),
        (("ended_by",), "turns"),
        (("score", "level"), "full_success"),
        (("score", "coverage"), 1.0),
        (("required_outputs",), [READER]),
        (("optimum",), 0.1),
        (("optimum_gap",), 0.1),
        (("regret",), 0.0),
        (("luck",), 0.3),
    ],
)
def test_a_number_that_does_not_follow_is_found(place: tuple[Any, ...], value: Any) -> None:
    record = changed(place, value)
    again = reattribute(record, default_library())
    assert again == episode()
    difference = first_disagreement(record, again)
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    assert difference is not None
    assert difference.startswith((f"{where} is {value!r}", f"{place[0]} is "))
    assert first_disagreement(again, episode()) is None


def test_labels_are_compared_apart_from_numbers() -> None:
    record = changed(("steps", 0, "label"), "information")
    again = reattribute(record, default_library())
    assert first_disagreement(record, again) is None
    assert first_other_label(record, again) == (
        "steps[0].label is 'information' in the record and 'wasted_turn' computed again"
    )
    sums = changed(("losses", "wasted_turn"), 0.5)
    assert "losses.wasted_turn is 0.5" in str(first_other_label(sums, reattribute(sums, default_library())))
    assert first_other_label(episode(), reattribute(episode(), default_library())) is None


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
        (("seed",), 5, "luck"),
        (("salt",), "another", "luck"),
        (("law", "bases"), 0.8, "not known"),
        (("law", "base"), 1.5, "expected a probability"),
        (("required_tools",), [READER, "no_such_tool"], "no_such_tool"),
        (("flaw",), {"plan": [READER], "edits": [{"what": "replaced"}]}, "cannot be undone"),
    ],
)
def test_what_cannot_have_happened_is_refused(place: tuple[Any, ...], value: Any, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        reattribute(changed(place, value), default_library())


def test_without_a_salt_outcomes_are_taken_as_they_stand() -> None:
    record = play_episode(environment(0), make_policy("plan-follower"), toy_tasks(3)[1], "optimal", 3)
    assert record["salt"] == ""
    assert reattribute(record, default_library()) == record


POLICIES = ["random", "repairing-follower"]
PROMPTS = ["optimal", "flawed:missing_step"]


def run_tasks() -> list[Task]:
    return [task for task in benchmark_tasks()[::600] if len(task.required_tools) > 2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small run."""
    folder = tmp_path_factory.mktemp("run") / "run"
    evaluate(POLICIES, run_tasks(), PROMPTS, 6, out=folder, progress=False)
    return folder


def copy_of(run: Path, target: Path, change: Callable[[int, dict[str, Any]], None] | None = None) -> Path:
    """Copy a run's folder; `change` is called with the number and the record of each line."""
    target.mkdir()
    (target / "manifest.json").write_bytes((run / "manifest.json").read_bytes())
    with (target / EPISODES_NAME).open("wb") as stream:
        for number, record in enumerate(read_records(run)):
            content: Any = record
            if change is not None:
                change(number, content)
            stream.write(encode_json_line(content))
    return target


def test_a_run_agrees_with_itself_whatever_the_number_of_workers(run: Path) -> None:
    total = sum(1 for _ in read_records(run))
    counted: list[int] = []
    summary = rescore_run(run, progress=counted.append)
    assert summary == RescoreSummary(total, total, 0, 0, 0, (), None)
    assert summary.agrees
    assert sum(counted) == total > 100
    assert rescore_run(run, workers=2) == summary


def test_changed_episodes_are_counted_and_named(run: Path, tmp_path: Path) -> None:
    def change(number: int, record: dict[str, Any]) -> None:
        if number == 3:
            record["outcome"] = 1 - record["outcome"]
        elif number == 5:
            record["losses"]["wrong_order"] = 0.125
        elif number == 8:
            record["seed"] += 1
        elif number == 9:
            record["law"]["base"] = 0.9
        elif number == 10:
            record["manifest"] = "0" * 64
        elif number >= 20:
            record["luck"] += 1e-6

    folder = copy_of(run, tmp_path / "changed", change)
    records = list(read_records(folder))
    summary = rescore_run(folder)
    assert not summary.agrees
    assert (summary.num_differing, summary.num_other_labels, summary.num_impossible) == (len(records) - 19, 1, 3)
    assert summary.num_agreeing == 15
    assert len(summary.differences) == NUM_SHOWN
    assert summary.differences[0].startswith(f"episode {records[3]['index']}: outcome is ")
    assert summary.differences[1].startswith(f"episode {records[5]['index']}: losses.wrong_order is 0.125")
    assert "luck" in summary.differences[2]
    assert summary.differences[3] == f"episode {records[9]['index']}: base is 0.9 in the record and 0.8 in the manifest"
    assert summary.differences[4].endswith("it belongs to another run than manifest.json describes")
    tiny = copy_of(run, tmp_path / "tiny", lambda number, record: record.update(luck=record["luck"] + 1e-11))
    assert rescore_run(tiny).agrees


def test_a_new_folder_holds_what_is_computed_now_and_says_what_it_was_made_from(run: Path, tmp_path: Path) -> None:
    def with_old_labels(number: int, record: dict[str, Any]) -> None:
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
        evaluate(POLICIES, run_tasks(), PROMPTS, 6, out=tmp_path / "new", progress=False)


def test_no_new_folder_is_made_of_what_cannot_have_happened(run: Path, tmp_path: Path) -> None:
    def impossible(number: int, record: dict[str, Any]) -> None:
        if number == 4:
            record["steps"].pop()

    broken = copy_of(run, tmp_path / "broken", impossible)
    with pytest.raises(InvalidInputError, match="cannot be scored again"):
        rescore_run(broken, tmp_path / "new")
    with pytest.raises(StoreError, match="is the folder to read"):
        rescore_run(run, run)


def test_another_library_and_broken_files_are_refused(run: Path, tmp_path: Path) -> None:
    content = json.loads(default_library().to_json())
    content["tools"][0]["success_probability"] = 0.5
    with pytest.raises(InvalidInputError, match="made with another tool library"):
        rescore_run(run, library=ToolLibrary.from_json(json.dumps(content)))
    with pytest.raises(StoreError, match="no folder of results"):
        rescore_run(tmp_path)
    folder = copy_of(run, tmp_path / "broken")
    torn = (folder / EPISODES_NAME).read_bytes()[:-20]
    (folder / EPISODES_NAME).write_bytes(torn)
    assert rescore_run(folder).num_episodes == sum(1 for _ in read_records(run)) - 1
    (folder / EPISODES_NAME).write_bytes(b"{}\n")
    with pytest.raises(StoreError, match=r"line 1 of .* is no episode"):
        rescore_run(folder)


def test_of_an_agent_that_began_anew_the_last_trial_is_scored(tmp_path: Path) -> None:
    from resilisim.chat import ChatReply, ChatRequest
    from tests.evaluation.agent_models import FollowingModel

    class Doubting(FollowingModel):
        """Follows the plan; its evaluator refuses the first trial."""

        async def complete(self, request: ChatRequest) -> ChatReply:
            if request.role == "agent":
                return await super().complete(request)
            refuses = request.role == "evaluator" and int(request.cache_scope.rpartition("#")[2]) < 12
            return ChatReply(json.dumps({"success": not refuses, "reason": "as seen"}))

    evaluate(lambda: Reflexion(models=Doubting(), trials="fresh"), toy_tasks(), "optimal", 3, out=tmp_path / "run")
    records = list(read_records(tmp_path / "run"))
    assert any(record["agent"]["restarts"] for record in records)
    assert rescore_run(tmp_path / "run") == RescoreSummary(len(records), len(records), 0, 0, 0, (), None)
