"""Preference pairs: two messages from one real state, the chosen one optimal, the other worse by what is said."""

import functools
import json

import pytest

from resilisim.datasets.preferences import PreferenceSpec
from resilisim.datasets.schema import check_record
from resilisim.evaluation.episode.record import LOSS_LABELS
from resilisim.simulator import Law, Outage, build_problem
from resilisim.simulator.exact import solve
from resilisim.simulator.exact.optimum import compute_optimum
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.tool_library.parameters import check_parameters
from tests.datasets import rollout_tools
from tests.datasets.rollout_tools import FILTER, PARSER, READER, TRANSFORMER, WRITER, replay, task_of, tasks
from tests.simulator.little_room import give_little_room

records_of = functools.partial(rollout_tools.records_of, PreferenceSpec)
source_of = functools.partial(rollout_tools.source_of, PreferenceSpec)


@pytest.mark.parametrize("protocol", ["text", "native"])
@pytest.mark.parametrize("prompt", ["baseline", "optimal", "chain_of_thought"])
def test_both_messages_mean_and_are_worth_what_the_record_says(protocol, prompt):
    """The prompt is replayed in a fresh environment; then each message is sent and judged by a new optimum."""
    source = source_of(protocol=protocol, prompts=(prompt,), seeds=2)
    compared = 0
    for task in tasks():
        optimum = None
        for record in source.records(task):
            assert check_record(source.schema, record) is None
            for side in ("chosen", "rejected"):
                env, info = replay(record, record["prompt"], task)
                optimum = optimum or compute_optimum(info["problem"])
                state = info["state"]
                assert info["turn"] + 1 == record["turn"]
                (said,) = record[side]
                assert said["role"] == "assistant"
                *_, after = env.step(said["content"] if protocol == "text" else said)
                message = after["message"]
                assert (message.tool or "") == record[f"{side}_tool"]
                assert optimum.value(state) == record["value"]
                assert optimum.action_value(state, message) == pytest.approx(record[f"{side}_action_value"], abs=1e-12)
                if side == "chosen":
                    assert message.kind in ("execute", "finish")
                    assert record["value"] - record["chosen_action_value"] <= 1e-12
                else:
                    assert message.kind == record["rejected_kind"]
                    assert message.native == (protocol == "native" and message.kind != "format_error")
            assert record["chosen"] != record["rejected"]
            assert record["margin"] == record["chosen_action_value"] - record["rejected_action_value"]
            assert record["margin"] >= 0.01
            assert record["rejected_reason"] in LOSS_LABELS
            assert record["prompt"][-1]["role"] in ("user", "tool")
            compared += 1
    assert compared > 20


def test_reasons_and_states_are_varied():
    records = records_of(seeds=24, prompts=("optimal",))
    reasons = {record["rejected_reason"] for record in records}
    only_elsewhere = {  # under laws with parts
        *("rate_limited_call", "did_not_wait", "waited_in_vain", "kept_at_broken_tool", "believed_corrupt_data"),
        *("repeated_invalid_call", "call_without_access"),
        "agent_error",  # of agents
    }
    possible = set(LOSS_LABELS) - {"information", "obeyed_flaw"} - only_elsewhere
    assert possible - {"repeated_search"} <= reasons <= possible
    kinds = {"execute", "finish", "search", "rejected", "format_error"}
    assert {record["rejected_kind"] for record in records} == kinds
    assert {record["num_mistakes"] for record in records} >= {0, 1, 2, 3}
    after_a_failure = [record for record in records if "has not been executed" in record["prompt"][-1]["content"]]
    assert after_a_failure  # a dependency that was missing
    assert any(record["chosen_tool"] == "" for record in records)


def test_searching_is_never_the_worse_message_where_the_prompt_names_no_tools():
    records = records_of(seeds=8, prompts=("baseline",))
    assert records
    assert {"information", "wasted_turn"}.isdisjoint(record["rejected_reason"] for record in records)
    for record in records:
        read = "".join(message["content"] for message in record["prompt"])
        assert record["chosen_tool"] == "" or record["chosen_tool"] in read


def test_exploring_is_a_share_of_the_steps():
    assert {record["num_mistakes"] for record in records_of(explore=0.0)} == {0}
    for record in records_of(explore=1.0, prompts=("optimal",)):
        assert record["num_mistakes"] == record["turn"] - 1


@pytest.mark.parametrize("least", [0.001, 0.05, 0.3])
def test_the_margin_is_kept(least):
    margins = [record["margin"] for record in records_of(min_margin=least, seeds=2)]
    assert least <= min(margins) < least + 0.05


def test_where_nothing_can_succeed_there_is_no_pair():
    task = task_of(READER, PARSER, FILTER, TRANSFORMER, WRITER)
    assert list(source_of(max_turns=4).records(task)) == []
    assert list(source_of(max_turns=5, prompts=("optimal",)).records(task))


def test_a_margin_within_what_the_optimum_may_be_wrong_by_is_not_used(monkeypatch):
    law = Law(outage=Outage(begins=0.04, ends=0.4))
    source, problem = (
        source_of(prompts=("optimal",), seeds=20, law=law),
        build_problem(default_library(), [READER], law),
    )
    exact = list(source.records(task_of(READER)))
    assert {record["optimum_gap"] for record in exact} == {0.0}
    give_little_room(monkeypatch)
    found, at_first = [], solve(problem).gap
    for record in source.records(task_of(READER)):
        assert record["margin"] >= record["optimum_gap"] > 0.01
        assert record["optimum_gap"] == solve(problem).gap, "what is known now, not what was at first"
        found.append(record)
    assert found
    assert solve(problem).gap > at_first
    assert min(record["margin"] for record in exact) < max(record["optimum_gap"] for record in found)


def test_refused_calls_are_refused_whatever_the_library_calls_its_tools_and_parameters():
    tool = {"name": "mend", "description": "Mends.", "parameters": [{"name": "input", "required": False}]}
    library = ToolLibrary.from_json(json.dumps({"tools": [tool, {"name": "rest", "description": "Rests."}]}))
    task = Task.from_mapping({"required_tools": ["mend"], "description": "Mend it."}, library)
    records = source_of(library, prompts=("optimal",), seeds=40, max_turns=3).records(task)
    refused = {record["rejected"][0]["content"] for record in records if record["rejected_kind"] == "rejected"}
    assert refused == {"<tool_call>mend_tool</tool_call>", '<tool_call>mend {"input_value": "mend"}</tool_call>'}


def called(record, side):
    """Return tool and parameters of a call of the text protocol."""
    content = record[side][0]["content"]
    assert content.startswith("<tool_call>")
    name, _, given = content[len("<tool_call>") : -len("</tool_call>")].partition(" ")
    return name, json.loads(given or "{}")


@pytest.mark.parametrize("options", [{}, {"pass_parameters": False}, {"search": False}, {"parameters": "strict"}])
def test_calls_of_a_pair_are_filled_in_alike(options):
    compared = 0
    for record in records_of(seeds=4, **options):
        if record["rejected_kind"] != "execute" or record["chosen_tool"] == "":
            continue
        (chosen_tool, chosen), (rejected_tool, rejected) = called(record, "chosen"), called(record, "rejected")
        assert bool(chosen) == bool(rejected)
        library = default_library()
        if chosen and not check_parameters(library[chosen_tool], chosen, "strict"):
            assert not check_parameters(library[rejected_tool], rejected, "strict")
        compared += 1
    assert compared > 20


@pytest.mark.parametrize("parameters", ["lenient", "strict"])
def test_a_refused_call_differs_in_one_thing_from_a_call_that_is_acceptable(parameters):
    kinds = set()
    for record in records_of(seeds=16, prompts=("optimal",), parameters=parameters):
        if record["rejected_kind"] != "rejected":
            continue
        (chosen_tool, chosen), (rejected_tool, rejected) = called(record, "chosen"), called(record, "rejected")
        assert not check_parameters(default_library()[chosen_tool], chosen, "strict")
        if chosen_tool != rejected_tool:
            assert chosen == rejected
            kinds.add("tool")
            continue
        added = {name: value for name, value in rejected.items() if name not in chosen}
        left_out = {name: value for name, value in chosen.items() if name not in rejected}
        changed = [name for name in chosen.keys() & rejected.keys() if chosen[name] != rejected[name]]
        assert len(changed) + max(len(added), len(left_out)) == 1
        if added and left_out:
            assert list(added.values()) == list(left_out.values())
        kinds.add("changed" if changed else f"{len(added)} added, {len(left_out)} left out")
    expected = {"tool", "changed", "1 added, 0 left out", "1 added, 1 left out"}
    assert kinds == expected | ({"0 added, 1 left out"} if parameters == "strict" else set())


def test_no_name_that_was_never_read_gives_a_wrong_call_away():
    records = list(records_of(seeds=8, prompts=("baseline",)))
    calls = [record for record in records if record["rejected_kind"] == "execute"]
    assert len(calls) > 20
    for record in calls:
        assert record["rejected_tool"] in "".join(message["content"] for message in record["prompt"])


def test_a_tool_that_nothing_named_is_called_only_where_no_named_one_is_worse():
    task = task_of(READER)
    records = list(source_of(prompts=("optimal",), seeds=30).records(task))
    calls = {record["rejected_tool"] for record in records if record["rejected_kind"] == "execute"}
    assert READER not in calls
    assert calls


def test_a_call_that_nobody_can_fill_in_is_in_no_pair():
    code = {"name": "code", "constraints": {"pattern": "^[0-9]{4}$"}}
    tools = [
        {"name": "mend", "description": "Mends."},
        {"name": "rest", "description": "Rests.", "parameters": [code]},
        {"name": "wait", "description": "Waits."},
    ]
    library = ToolLibrary.from_json(json.dumps({"tools": tools}))
    task = Task.from_mapping({"required_tools": ["mend"], "description": "Mend it."}, library)
    pairs = list(source_of(library, prompts=("optimal",), seeds=40, max_turns=3, parameters="strict").records(task))
    executed = {record["rejected_tool"] for record in pairs if record["rejected_kind"] == "execute"}
    assert executed == {"mend", "wait"}  # not "rest"


def test_strict_environments_execute_what_the_record_says_is_executed():
    records = records_of(parameters="strict", prompts=("optimal",), seeds=12)
    bare = f"<tool_call>{READER}</tool_call>"
    assert bare in [record["rejected"][0]["content"] for record in records]
    for record in records:
        assert record["chosen"][0]["content"] != bare
