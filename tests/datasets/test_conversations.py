"""Conversations: whole episodes, true to the environment, judged exactly, by somebody who only uses what was read."""

import functools
import itertools
import json
import re

import pytest

from resilisim import benchmark_tasks
from resilisim.chat import ScriptedChatModel
from resilisim.datasets.conversations import ConversationSpec
from resilisim.datasets.demonstrator import search_queries
from resilisim.datasets.rollout import TRAINING_ENVIRONMENT
from resilisim.datasets.schema import check_record
from resilisim.envs.protocol.message_reader import read_text
from resilisim.errors import InvalidInputError
from resilisim.evaluation.episode.play import play_episode
from resilisim.policies.llm.agents.react import ReAct
from resilisim.seeding import EVALUATION_SALT
from resilisim.simulator import build_problem
from resilisim.simulator.exact.optimum import start_optimum
from resilisim.tasks import Task
from resilisim.tool_library import default_library
from resilisim.tool_library.retrieval import default_retriever
from resilisim.workflows.flaws import FLAW_TYPES
from resilisim.workflows.flaws.flaw import STRESSORS
from tests.datasets import rollout_tools
from tests.datasets.rollout_tools import PARSER, READER, TRANSFORMER, replay, task_of, tasks
from tests.simulator.brute_force import small_library

records_of = functools.partial(rollout_tools.records_of, ConversationSpec)
source_of = functools.partial(rollout_tools.source_of, ConversationSpec)


@pytest.mark.parametrize("protocol", ["text", "native"])
@pytest.mark.parametrize("policy", ["exact-optimum", "plan-follower", "random"])
def test_every_record_fits_the_schema_and_its_figures_add_up(protocol, policy):
    source = source_of(protocol=protocol, policy=policy, seeds=3)
    for task in tasks():
        for record in source.records(task):
            assert check_record(source.schema, record) is None
            missed = (1 - record["reward"]) - (1 - record["optimum"]) - record["regret"] + record["luck"]
            assert missed == pytest.approx(0.0, abs=1e-9)
            for name in ("regret", "luck"):
                assert record[name] == pytest.approx(sum(turn[name] for turn in record["turns"]), abs=1e-12)
            assert record["success"] == (record["reward"] == 1.0) == (record["level"] == "full_success")
            assert record["optimum"] == start_optimum(build_problem(default_library(), task.required_tools))
            assert record["optimum"] == record["turns"][0]["value"]
            assert record["num_turns"] == len(record["turns"])
            if policy == "exact-optimum":  # it signals completion only where everything is done
                assert (record["turns"][-1]["kind"] == "finish") == record["success"]


@pytest.mark.parametrize("protocol", ["text", "native"])
def test_messages_are_what_the_environment_was_sent_and_answered(protocol):
    by_id = {task.instance_id: task for task in tasks()}
    for record in records_of(protocol=protocol, seeds=2):
        messages = record["messages"]
        assert messages[-1]["role"] == "assistant"
        spoken = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        assert [turn["message_index"] for turn in record["turns"]] == spoken
        _, info = replay(record, messages, by_id[record["instance_id"]])
        assert info["score"]["level"] == record["level"]
        if protocol == "text":
            assert [message["role"] for message in messages] == ["user", "assistant"] * len(spoken)
            assert all(set(message) == {"role", "content"} for message in messages)
            assert record["tools"] is None


@pytest.mark.parametrize("policy", ["exact-optimum", "plan-follower", "repairing-follower"])
def test_both_protocols_hold_the_same_episodes(policy):
    text, native = (
        [[(turn["kind"], turn["tool"], turn["success"]) for turn in record["turns"]] for record in records]
        for records in (records_of(protocol=protocol, policy=policy, seeds=2) for protocol in ("text", "native"))
    )
    assert text == native


def test_nothing_is_filtered_and_an_unlucky_failure_is_nobodys_fault():
    records = records_of(prompts=("optimal",), seeds=25)
    assert len(records) == 4 * 25
    failed = [record for record in records if not record["success"]]
    assert 0 < len(failed) < len(records) / 2
    for record in records:
        assert all(turn["regret"] == 0.0 and turn["label"] == "" for turn in record["turns"])
    for record in failed:
        assert record["luck"] == pytest.approx(-record["optimum"], abs=1e-9)
    mean = sum(record["reward"] for record in records) / len(records)
    ceiling = sum(record["optimum"] for record in records) / len(records)
    assert abs(mean - ceiling) < 0.12  # three standard errors


@pytest.mark.parametrize("options", [{"search_detail": "brief"}, {"search_detail": "full"}, {"parameters": "strict"}])
def test_no_tool_is_called_and_no_parameter_passed_before_it_was_read_of(options):
    inputs_of = {task.instance_id: set(task.inputs) for task in tasks()}
    parameters_passed = 0
    for record in records_of(prompts=("baseline",), seeds=10, **options):
        read = ""
        for message in record["messages"]:
            if message["role"] == "user":
                read += message["content"]
            elif message["content"].startswith("<tool_call>"):
                name, _, given = message["content"][len("<tool_call>") : -len("</tool_call>")].partition(" ")
                assert name in read
                for parameter in json.loads(given or "{}"):
                    parameters_passed += 1
                    assert parameter in inputs_of[record["instance_id"]] or f"- {parameter} (" in read
    assert parameters_passed > 0


def test_looking_up_has_its_price_and_its_label():
    records = records_of(prompts=("baseline",), seeds=5)
    labels = {turn["label"] for record in records for turn in record["turns"] if turn["regret"] > 0.0}
    assert labels == {"information"}
    without = records_of(prompts=("baseline",), seeds=5, search=False)
    assert {turn["kind"] for record in without for turn in record["turns"]} <= {"execute", "finish", "format_error"}
    assert all(record["regret"] == 0.0 for record in without)
    assert {record["policy"] for record in without} == {"exact-optimum"}
    assert {record["policy"] for record in records} == {"exact-optimum-with-search"}


def test_a_dependency_outside_the_list_is_asked_for():
    task = task_of(TRANSFORMER, description="Bring the orders into another shape.")
    (record,) = source_of(prompts=("baseline",)).records(task)
    said = [message["content"] for message in record["messages"] if message["role"] == "assistant"]
    assert said[0].startswith("<tool_search>")
    seen = record["messages"][2]["content"]
    if PARSER not in seen:
        assert said[1] == f"<tool_info>{TRANSFORMER}</tool_info>"
    calls = [text for text in said if text.startswith("<tool_call>")]
    assert calls[0].startswith(f"<tool_call>{PARSER}")


def test_a_tool_that_only_ends_a_row_of_failures_is_looked_for_first():
    library = small_library({"steady": [], "spare": [], "shaky": []}, {"steady": 0.9, "spare": 0.9, "shaky": 0.2})
    task = Task.from_mapping({"required_tools": ["shaky"], "description": "Tool shaky."}, library)
    rules = {"max_consecutive_failures": 2, "history": 1.0}
    source = source_of(library, prompts=("optimal", "chain_of_thought"), seeds=30, **rules)
    ending, reasons = 0, 0
    for record in source.records(task):
        for turn in record["turns"]:
            assert turn["label"] in ("", "information", "wasted_turn")
            if turn["kind"] == "execute" and turn["tool"] != "shaky":
                ending += 1
                earlier = record["messages"][: turn["message_index"]]
                assert any(turn["tool"] in message["content"] for message in earlier if message["role"] == "user")
                said = record["messages"][turn["message_index"]]["content"]
                reasons += f"{turn['tool']} does none of the work" in said
    assert ending > reasons > 0


def test_a_row_of_equal_calls_is_left_where_that_is_best():
    library = small_library({"good": [], "bad": []}, {"good": 0.9, "bad": 0.1})
    task = Task.from_mapping({"required_tools": ["bad"], "description": "Do it."}, library)
    rules = {"max_turns": 14, "max_consecutive_failures": 3, "loop_length": 2, "history": 1.0}
    records = list(source_of(library, prompts=("optimal",), seeds=300, search=False, **rules).records(task))
    assert all(record["regret"] == 0.0 for record in records)
    assert any(turn["kind"] == "search" for record in records for turn in record["turns"])


def test_clauses_in_another_order_and_work_that_no_clause_names_are_searched_for():
    task = task_of(READER, "integration_queue", description="Queue messages and jobs. Read a file; nothing else.")
    queries = search_queries(task, default_library(), default_retriever(default_library(), "lexical"))
    assert queries == {READER: "Read a file", "integration_queue": "Queue messages and jobs"}
    silent = task_of(READER, description="Zzz.")
    assert search_queries(silent, default_library(), NothingFound()) == {
        READER: default_library()[READER].original_description
    }


@pytest.mark.parametrize("search", [True, False])
@pytest.mark.parametrize("prompt", ["baseline", "optimal"])
def test_strict_environments_accept_every_call(search, prompt):
    records = records_of(parameters="strict", prompts=(prompt,), seeds=5, search=search)
    kinds = [turn["kind"] for record in records for turn in record["turns"]]
    assert "rejected" not in kinds
    assert kinds.count("execute") > 50
    asked = prompt == "baseline" and search
    assert ("info" in kinds) == asked


def test_reasons_stand_where_the_prompt_asks_for_them_and_hold_no_tag():
    task = task_of(
        READER, TRANSFORMER, description=f"Read the <tool_call>{PARSER}</tool_call> file. Then transform it; <finish/>."
    )
    for search in (True, False):
        records = list(source_of(prompts=("chain_of_thought",), seeds=10, search=search, max_turns=5).records(task))
        for record in records:
            said = [message["content"] for message in record["messages"] if message["role"] == "assistant"]
            assert all(text.startswith("Reasoning: ") for text in said)
            assert "1. Read the" in said[0]
            # A tag in a reason would be carried out instead of the message's own.
            assert [turn["kind"] for turn in record["turns"]].count("finish") == int(record["success"])
            assert all(turn["regret"] == 0.0 or turn["label"] == "information" for turn in record["turns"])
        assert {record["success"] for record in records} == {True, False}
    for record in source_of(prompts=("chain_of_thought",), protocol="native").records(task):
        spoken = [message for message in record["messages"] if message["role"] == "assistant"]
        assert all(message["content"].startswith("Reasoning: ") for message in spoken)
        assert all("<" not in message["content"].replace("&lt;", "") for message in spoken)


def test_a_flawed_plan_is_not_followed_where_it_is_wrong():
    for flaw in STRESSORS:
        records = records_of(prompts=("flawed",), flaws=(flaw,), severities=("severe",), seeds=4)
        assert records
        for record in records:
            assert (record["flaw"]["type"], record["flaw"]["severity"]) == (flaw, "severe")
            assert record["flaw"]["method"] in STRESSORS[flaw]
            assert (record["prompt_type"], record["planner"]) == ("flawed", "exact")
            said = [message["content"] for message in record["messages"] if message["role"] == "assistant"]
            assert not any(re.search(r"result.?.?of\W*step", text) for text in said)  # references that a plan breaks
            # Only looking for a tool that the plan should have named can cost something.
            assert {turn["kind"] for turn in record["turns"] if turn["regret"] > 0.0} <= {"search", "info"}
    mixed = records_of(prompts=("flawed", "baseline"), severities=("light", "severe"), seeds=12)
    drawn = [record["flaw"] for record in mixed if record["prompt_type"] == "flawed"]
    assert {flaw["type"] for flaw in drawn} == set(FLAW_TYPES)
    assert {flaw["severity"] for flaw in drawn} == {"light", "severe"}
    assert all(set(record["flaw"].values()) == {""} for record in mixed if record["prompt_type"] == "baseline")


def test_training_luck_is_not_evaluation_luck():
    def luck(**options):
        records = records_of(prompts=("optimal",), seeds=6, **options)
        return [tuple(turn["success"] for turn in record["turns"]) for record in records]

    assert ConversationSpec().environment.salt != EVALUATION_SALT
    assert luck() != luck(salt="another")
    with pytest.raises(InvalidInputError, match="luck of evaluations"):
        records_of(salt=EVALUATION_SALT)
    with pytest.raises(InvalidInputError, match="training data hold what luck brings"):
        records_of(force=["network_fetcher#1=ok"])
    assert {record["salt"] for record in records_of()} == {TRAINING_ENVIRONMENT.salt}


INPUT_ERRORS = ("INVALID_INPUT", "FILE_NOT_FOUND", "CALCULATION_ERROR", "OVERFLOW")


def test_nobody_learns_to_repeat_a_call_that_an_input_error_answered():
    def replies(**options):
        records = records_of(prompts=("optimal",), seeds=8, **options)
        return "".join(message["content"] for record in records for message in record["messages"])

    assert not any(f"Error: {code}" in replies() for code in INPUT_ERRORS)
    assert "Error: TIMEOUT" in replies()
    assert any(f"Error: {code}" in replies(errors="documented") for code in INPUT_ERRORS)


ACCESS_ERRORS = ("PERMISSION_DENIED", "AUTHENTICATION_FAILED")
OPENER = "integration_authenticator"


def calls_with_errors(record):
    """Yield tool, parameters and error code (None: success) of each execution of a conversation."""
    codes = iter(turn for turn in record["turns"])
    for place, message in enumerate(record["messages"]):
        if message["role"] != "assistant":
            continue
        read, turn = read_text(message["content"], default_library(), "lenient"), next(codes)
        is_last = place + 1 == len(record["messages"])  # the episode has ended, and the reply is not part of it
        if turn["kind"] == "execute" and turn["success"] is not None and not is_last:
            reply = record["messages"][place + 1]["content"]
            code = None if turn["success"] else re.search(r"^Error: ([A-Z_]+)", reply, re.MULTILINE)[1]
            yield read.tool, json.dumps(dict(read.parameters), sort_keys=True), code


@pytest.mark.parametrize("search", [True, False])
def test_under_errors_that_mean_what_they_say_nobody_learns_to_repeat_what_was_refused(search):
    options = {"seeds": 8, "max_turns": 8, "law": "meaningful-errors", "search": search}
    records = records_of(prompts=("optimal", "chain_of_thought"), **options)
    codes = set()
    for record in records:
        refused, closed, opened = {}, set(), False
        for tool, parameters, code in calls_with_errors(record):
            codes.add(code)
            assert refused.get(tool) != parameters
            assert tool not in closed or opened
            if code in INPUT_ERRORS:
                refused[tool] = parameters
            elif code in ACCESS_ERRORS:
                closed.add(tool)
            if code not in INPUT_ERRORS:
                refused.pop(tool, None)
                opened = opened or (tool == OPENER and code is None)
    assert codes & {*INPUT_ERRORS}
    assert codes & {*ACCESS_ERRORS}


class NothingFound:
    """A search that finds nothing."""

    def search_many(self, queries, k=5):
        return [[] for _ in queries]


class StopsOrShows:
    """Answers in ways that a language model may: native messages of its own, loose talk, and no message at all."""

    def reset(self, observation, info):
        call = {"id": "x", "function": {"name": "tool_call", "arguments": {"name": READER}}, "index": 0}
        self.left = [
            {"content": None, "tool_calls": [call]},
            json.dumps({"content": "I look.", "tool_calls": [call, {"id": "y", "function": {"arguments": "{NaN"}}]}),
            f"I think that <tool_info>{READER}</tool_info> helps.",
            f'<tool_call>{READER} {{"source": }}</tool_call>',
            "{Hm}.",
            None,
        ]

    def act(self, observation, info):
        return self.left.pop(0)


@pytest.mark.parametrize("form", ["object", "text"])
def test_whatever_a_policy_says_becomes_messages_of_one_shape(form):
    source = source_of(policy=f"{__name__}:StopsOrShows", protocol="native", prompts=("baseline",), call_arguments=form)
    (record,) = source.records(task_of(READER))
    assert check_record(source.schema, record) is None
    assert record["turns"][-1]["message_index"] is None
    assert record["ended_by"] == "stopped"
    spoken = [message for message in record["messages"] if message["role"] == "assistant"]
    assert [message["content"] for message in spoken] == [
        "",
        "I look.",
        "I think that  helps.",
        f'<tool_call>{READER} {{"source": }}</tool_call>',
        "{Hm}.",
    ]
    kinds = ["execute", "execute", "info", "rejected", "format_error", "stop"]
    assert [turn["kind"] for turn in record["turns"]] == kinds
    arguments = {"name": READER} if form == "object" else f'{{"name": "{READER}"}}'
    function = {"name": "tool_call", "arguments": arguments}
    assert spoken[0]["tool_calls"][0] == {"id": "x", "type": "function", "function": function}
    assert spoken[1]["tool_calls"][1]["function"] == {"name": "", "arguments": "{NaN"}  # no object, in whatever form
    assert [message["content"] for message in record["messages"] if message.get("tool_call_id") == "y"] == ["ignored"]
    replay(record, record["messages"], task_of(READER))


def test_searches_by_the_work_order_find_the_tool_that_is_called():
    source = ConversationSpec(prompts=("baseline",)).make(default_library())
    for task in benchmark_tasks()[:8]:
        (record,) = source.records(task)
        searches = [
            (message["content"], reply["content"])
            for message, reply in itertools.pairwise(record["messages"])
            if message["content"].startswith("<tool_search>")
        ]
        assert searches
        for query, reply in searches:
            assert query[len("<tool_search>") : -len("</tool_search>")] in task.description
            assert any(name in reply for name in task.required_tools)


@pytest.mark.parametrize("prompt", ["optimal", "baseline"])
def test_names_that_are_called_in_the_terse_style_stand_behind_a_space_and_mean_the_same(prompt):
    environment = TRAINING_ENVIRONMENT.with_options(prompt_style="terse")
    terse, full = (
        source_of(prompts=(prompt,), seeds=2, environment=used, pass_parameters=False)
        for used in (environment, TRAINING_ENVIRONMENT)
    )
    for record, other in zip(terse.records(tasks()[0]), full.records(tasks()[0]), strict=True):
        said = [message["content"] for message in record["messages"] if message["role"] == "assistant"]
        calls = [text for text in said if "_call>" in text]
        assert calls
        assert all(re.fullmatch(r"<tool_call> \w+</tool_call>", text) for text in calls)
        spoken = [message["content"] for message in other["messages"] if message["role"] == "assistant"]
        assert [text.replace("> ", ">") for text in said] == spoken
        for name in ("turns", "reward", "regret"):
            assert record[name] == other[name]


@pytest.mark.parametrize("prompt", ["baseline", "optimal"])
def test_in_the_form_of_react_a_conversation_is_what_that_agent_reads_and_says(prompt):
    options = {"pass_parameters": False, "prompt_style": "terse", "parameters": "ignore"}
    source = source_of(prompts=(prompt,), form="react", **options)
    played_tasks = 0
    for task in tasks():
        (record,) = source.records(task)
        said = [message["content"] for message in record["messages"] if message["role"] == "assistant"]
        if not said[-1].startswith("Action: "):  # out of turns: the agent would be asked once more
            continue
        played_tasks += 1
        model = ScriptedChatModel(said)
        played = play_episode(source._stage.environment, ReAct(models=model), task, prompt, record["seed"])
        read = [(message.role, message.content) for message in model.requests[-1].messages]
        assert [*read, ("assistant", said[-1])] == [(each["role"], each["content"]) for each in record["messages"]]
        assert (played["outcome"], len(played["steps"])) == (int(record["success"]), record["num_turns"])
    assert played_tasks >= 2
    with pytest.raises(InvalidInputError, match="form is 'react' with prompt style 'full': expected the style 'terse'"):
        ConversationSpec(form="react")
