"""Preference pairs and prompts of a world, against values worked out here by plain recursion."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilisim.datasets import export_dataset, read_records
from resilisim.datasets.preferences import PreferenceSpec
from resilisim.datasets.prompt_records import PromptSpec
from resilisim.datasets.rollout import TRAINING_ENVIRONMENT
from resilisim.envs import ConversationEnv, Session
from resilisim.envs.protocol.message_reader import read_text
from resilisim.simulator import Problem
from resilisim.simulator.messages import execution
from resilisim.simulator.problem import next_state, success_probability
from resilisim.simulator.state import ENDED, RUNNING, EpisodeState
from resilisim.tasks import Task
from resilisim.tool_library import Parameter, ToolLibrary
from resilisim.workflows.flaws import FLAW_TYPES
from resilisim.workflows.planner import ReferencePlanner
from resilisim.worlds import load_world
from resilisim.worlds.base import reference_calls, world_task
from tests.worlds.notebook import NAME, Notebook, NotebookWorkspace, number_on


class OptionalNotebook(Notebook):
    """A notebook whose reader takes a parameter that it can do without, and whose references give it."""

    name = "tests.datasets.test_world_data:OptionalNotebook"
    library = ToolLibrary(
        [
            replace(tool, parameters=(*tool.parameters, Parameter("hurry", "boolean", required=False)))
            for tool in Notebook.library
        ]
    )

    def _task(self, pages: tuple[int, ...]) -> Task:
        task = super()._task(pages)
        reference = [
            {**call, "parameters": {**call["parameters"], "hurry": True}} for call in task.metadata["reference"]
        ]
        return replace(task, metadata={**task.metadata, "reference": reference})


UNDER_LAW = TRAINING_ENVIRONMENT.in_world(NAME, ("law",))
REASONS = {"other_arguments", "repeated_success", "wrong_answer", "gave_up_early", "format_error", "rejected_call"}


def chance_of(problem: Problem, tools: list[str], state: EpisodeState) -> float:
    """Return the chance that calls of these tools go through in order, each again until it does."""
    if state.counters[ENDED] != RUNNING:
        return 0.0
    if not tools:
        return 1.0
    if state.turns_used >= problem.rules.max_turns:
        return 0.0
    chance = success_probability(problem, state, problem.library.index(tools[0]))
    message = execution(tools[0], {"call": len(tools)})
    passed = chance_of(problem, tools[1:], next_state(problem, state, message, success=True))
    missed = chance_of(problem, tools, next_state(problem, state, message, success=False))
    return chance * passed + (1.0 - chance) * missed


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    result = export_dataset(PreferenceSpec(seeds=3), NAME, tmp_path_factory.mktemp("pairs"), tokenizer="none")
    assert result.manifest["arguments"]["source"]["environment"]["base"] == 0.8  # where nothing fails, no turn counts
    return list(read_records(result.directory))


def test_both_messages_are_worth_what_a_plain_recursion_says(pairs: list[dict[str, Any]]) -> None:
    env = ConversationEnv(UNDER_LAW)
    assert len(pairs) > 100
    for pair in pairs[::3]:
        task = world_task(load_world(NAME), pair["instance_id"])
        session = Session(env, task, pair["prompt_type"], pair["seed"], privileged=True)
        assert session.reply.observation == pair["prompt"][0]["content"]
        done = 0
        for said, heard in zip(pair["prompt"][1::2], pair["prompt"][2::2], strict=True):
            reply = session.send(said["content"])
            assert reply.observation == heard["content"]
            done += bool(reply.info.get("execution", {}).get("success"))
        info = session.reply.info
        problem, state = info["problem"], info["state"]
        rest = [call.tool for call in reference_calls(task)][done:]
        assert pair["value"] == pytest.approx(chance_of(problem, rest, state))
        assert pair["chosen_action_value"] == pair["value"]
        message = read_text(pair["rejected"][0]["content"], problem.library, "strict", True)
        assert (message.kind, message.tool or "") == (pair["rejected_kind"], pair["rejected_tool"])
        if message.kind == "execute":
            chance = success_probability(problem, state, problem.library.index(message.tool or ""))
            worth = sum(
                share * chance_of(problem, rest, next_state(problem, state, message, success=success))
                for success, share in ((True, chance), (False, 1.0 - chance))
            )
        else:
            worth = chance_of(problem, rest, next_state(problem, state, message))
        assert pair["rejected_action_value"] == pytest.approx(worth)
        assert pair["margin"] == pytest.approx(pair["value"] - worth)
        assert pair["margin"] >= 0.01


def test_the_chosen_message_is_the_references_and_the_rejected_one_is_wrong(pairs: list[dict[str, Any]]) -> None:
    for pair in pairs:
        task = world_task(load_world(NAME), pair["instance_id"])
        (answer,), pages = task.metadata["answers"], task.inputs["pages"]
        chosen, rejected = pair["chosen"][0]["content"], pair["rejected"][0]["content"]
        total = " + ".join(str(number_on(page)) for page in pages)
        assert chosen in {
            *(f'<tool_call>notebook_reader {{"page": {page}}}</tool_call>' for page in pages),
            f'<tool_call>arithmetic_calculator {{"expression": "{total}"}}</tool_call>',
            f"<finish>{answer}</finish>",
        }
        assert chosen != rejected
        if pair["rejected_reason"] == "wrong_answer":
            given = rejected.removeprefix("<finish>").removesuffix("</finish>")
            assert given.isdecimal()
            assert given != answer
        if pair["rejected_reason"] == "other_arguments":
            page = json.loads(rejected.partition(" ")[2].removesuffix("</tool_call>"))["page"]
            assert page not in pages
            assert number_on(page) != int(answer)
        assert pair["split"] in ("train", "validation", "test")
    assert set(Counter(pair["rejected_reason"] for pair in pairs)) == REASONS
    assert {pair["num_mistakes"] > 0 for pair in pairs} == {True, False}


def test_where_nothing_fails_only_ends_are_worse(tmp_path: Path) -> None:
    spec = PreferenceSpec(prompts=("baseline",), environment=TRAINING_ENVIRONMENT.in_world(NAME))
    found = list(read_records(export_dataset(spec, f"{NAME}:4", tmp_path, tokenizer="none").directory))
    assert {pair["rejected_kind"] for pair in found} == {"finish"}
    assert {pair["margin"] for pair in found} == {1.0}
    card = (tmp_path / "README.md").read_text()
    assert "preference pairs of a world" in card
    assert "calling the right tool with what another question asks of it" in card


def test_a_call_that_brings_the_same_is_not_rejected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(NotebookWorkspace, "call", lambda *_: {"number": 5, "value": 5, "text": "all pages are alike"})
    found = list(read_records(export_dataset(PreferenceSpec(), NAME, tmp_path, tokenizer="none").directory))
    assert found
    assert not {"other_arguments", "repeated_success"} & {pair["rejected_reason"] for pair in found}


def test_a_call_without_what_it_can_do_without_is_no_refused_one(tmp_path: Path) -> None:
    result = export_dataset(PreferenceSpec(seeds=3), OptionalNotebook.name, tmp_path, tokenizer="none")
    found = list(read_records(result.directory))
    refused = [pair["rejected"][0]["content"] for pair in found if pair["rejected_reason"] == "rejected_call"]
    assert refused
    for text in refused:
        assert read_text(text, OptionalNotebook.library, "strict", True).kind == "rejected"
    assert {pair["rejected_kind"] for pair in found} == {"execute", "finish", "format_error", "rejected"}


def test_prompts_of_a_world_say_what_obeying_costs(tmp_path: Path) -> None:
    spec = PromptSpec(environment=UNDER_LAW.with_options(search="lexical"), severities=("light", "severe"))
    records = list(read_records(export_dataset(spec, NAME, tmp_path, tokenizer="none").directory))
    by_flaw = Counter(record["flaw"]["type"] for record in records if record["flaw"])
    assert set(by_flaw) == set(FLAW_TYPES) - {"tool_misuse", "semantic_drift"}  # which need a third tool
    world = load_world(NAME)
    planner = ReferencePlanner(world.library, UNDER_LAW.failure_model(), UNDER_LAW.rules())

    compared = 0
    for record in records:
        task = world_task(world, record["instance_id"])
        costs, calls = record["costs"], reference_calls(task)
        if record["flaw"] is None:
            assert costs["obey"] == pytest.approx(costs["deviate"])
            assert costs["deviate"] == pytest.approx(planner.plan(task).predicted_success_probability)
            if record["prompt_type"] == "optimal":
                assert record["workflow"] == [call.tool for call in calls]
                assert "${page_" in record["text"]
            continue
        assert 0.0 <= costs["obey"] <= costs["deviate"] + 1e-12
        if any(limit is not None for limit in (*record["max_tries"], *record["skip_from"])):
            continue
        own = [(call.tool, dict(call.parameters)) for call in calls]
        steps = list(zip(record["workflow"], map(json.loads, record["parameters"]), strict=True))
        rest = iter(steps)
        if all(call in rest for call in own):  # all are there in their order, and there may be more
            compared += 1
            if len(steps) == len(own):
                assert costs["obey"] == pytest.approx(costs["deviate"])
            else:
                assert costs["obey"] < costs["deviate"]
        else:
            assert costs["obey"] == 0.0, record["flaw"]
    assert compared > 0
