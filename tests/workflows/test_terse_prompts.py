"""The terse style: names of tools and one line a turn, in the same episodes."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import names, nested_objects, workflows_of

from resilisim import benchmark_tasks
from resilisim.chat import ScriptedChatModel
from resilisim.chat.local import shipped_model_path
from resilisim.chat.local.gguf import TokenCounter
from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.session import Session
from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import InvalidInputError
from resilisim.evaluation import evaluate
from resilisim.policies.llm.agents.direct import Direct
from resilisim.tool_library import default_library
from resilisim.workflows.plan_text import read_compact_steps, render_compact_plan
from resilisim.workflows.prompts import parse_steps, parse_work_order, render_prompt

MOST_TOKENS = 230  # of a prompt with the longest plans, beside the work order
limits = st.none() | st.integers(1, 12)


def test_its_plans_are_the_same_without_parameters_and_short():
    terse, compact = (ConversationEnv(prompt_style=style) for style in ("terse", "compact"))
    counter = TokenCounter(shipped_model_path())
    chosen = [task for task in benchmark_tasks() if len(task.required_tools) >= 4][:400:80]
    for task, prompt in itertools.product(chosen, ("optimal", "flawed:redundant_operation")):
        shown = terse.prompt(task, prompt)
        bare = [replace(step, parameters=None) for step in parse_steps(compact.prompt(task, prompt).text)]
        assert parse_steps(shown.text) == bare
        assert shown.plan_format == "terse"
        assert counter.count(shown.text) <= MOST_TOKENS + counter.count(task.description)
        assert parse_work_order(shown.text) == task.description
    baseline = terse.prompt(chosen[0], "baseline").text
    assert parse_work_order(baseline) == chosen[0].description
    assert "10 messages; 5 failed runs or 4 idle repeats in a row end the work." in baseline


@settings(max_examples=20)
@given(workflows_of(names, nested_objects), st.lists(st.tuples(limits, limits), min_size=5, max_size=5))
def test_a_plan_reads_back_as_it_was(workflow, numbers):
    steps = [
        replace(step, max_tries=tries, skip_from=message)
        for step, (tries, message) in zip(workflow.steps, numbers, strict=False)
    ]
    plan = render_compact_plan(steps, None)
    read = read_compact_steps(f"## Plan\n\nGo on (tries).\n\n{plan}\n\n## More\n\n9 other\n")
    assert [(s.tool, s.parameters, s.requires, s.max_tries, s.skip_from) for s in read] == [
        (s.tool, None, s.requires or None, s.max_tries, s.skip_from) for s in steps
    ]


def test_a_plan_in_markdown_is_not_taken_for_a_terse_one():
    assert read_compact_steps("## Plan\n\n1. Execute reader\n   - Requires: opener\n2 readers will do\n") == []


CALLS = [f"<tool_call>{name}</tool_call>" for name in default_library().names[:12]]
OTHERS = ["<tool_search>read a file</tool_search>", "<tool_info>network_poster</tool_info>", "no call", "<finish/>"]
OTHERS += ["<tool_call>reader_of_files</tool_call>", "<tool_info>nobody</tool_info>"]


@given(st.lists(st.sampled_from(CALLS + OTHERS), min_size=1, max_size=12), st.integers(0, 9))
def test_replies_are_one_line_and_the_episodes_stay_what_they_are(messages, seed):
    sessions = [Session(env, benchmark_tasks()[3], "optimal", seed, privileged=True) for env in ENVIRONMENTS]
    for message in messages:
        if sessions[0].ended:
            break
        full, terse = (session.send(message) for session in sessions)
        assert full.ended == terse.ended
        plain = {"words", "progress"}
        told = [{name: reply.info[name] for name in reply.info.keys() - plain} for reply in (full, terse)]
        assert told[0] == told[1]
        assert (full.progress is None, terse.progress, terse.words) == (False, None, terse.text)
        assert "\n" not in terse.text
        assert len(terse.text) < 300
        assert all(hit["name"] in terse.text for hit in terse.info.get("search", ()))
        assert "execution" not in terse.info or terse.text.startswith(f"{terse.info['execution']['tool']} ")
        if not terse.ended:
            assert terse.text.endswith(f"message {10 - terse.info['turns_left']} of 10.")
        for problem in terse.info.get("problems", ()):
            assert problem in terse.text


ENVIRONMENTS = [ConversationEnv(prompt_style=style, search="lexical") for style in ("full", "terse")]


def test_an_error_and_missing_dependencies_are_named():
    env = ConversationEnv(base=1e-9, prompt_style="terse", search="lexical")
    env.reset(seed=0, options={"task": benchmark_tasks()[0], "prompt": "optimal"})
    observation, _, _, _, info = env.step("<tool_call>file_operations_reader</tool_call>")
    code = info["execution"]["error"]
    assert observation == f"file_operations_reader failed: {code}; message 1 of 10."
    env = ConversationEnv(prompt_style="terse", search="lexical")
    for seed in range(60):  # until the law draws that error
        env.reset(seed=seed, options={"task": benchmark_tasks()[0], "prompt": "optimal"})
        observation, _, _, _, info = env.step("<tool_call>network_validator</tool_call>")
        if "dependency_problems" in info:
            break
    assert observation == "network_validator failed: DEPENDENCY_ERROR, it needs network_fetcher; message 1 of 10."


def test_an_error_of_the_input_says_what_another_call_may_change():
    env = ConversationEnv(law="meaningful-errors", prompt_style="terse", search="lexical")
    named = set()
    for tool, takes in (
        ("network_fetcher", "source (string), timeout (number), ..."),
        ("utility_notifier", "destination (string), message (string)"),
    ):
        for seed in range(60):
            env.reset(seed=seed, options={"task": benchmark_tasks()[0], "prompt": "optimal"})
            observation, _, _, _, info = env.step(f"<tool_call>{tool}</tool_call>")
            is_input = info.get("error_kind") == "input"
            assert (f", it takes {takes}; message 1 of 10." in observation) == is_input
            named |= {tool} if is_input else set()
    assert len(named) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"protocol": "native"}, "protocol 'text', not 'native'"),
        ({"parameters": "strict"}, "not 'strict'"),
        ({"world": "records-v1"}, "no world"),
    ],
)
def test_it_is_refused_where_parameters_or_outputs_matter(options, words):
    with pytest.raises(InvalidInputError, match=words):
        EnvironmentSettings(prompt_style="terse", **options)
    with pytest.raises(InvalidInputError, match="plan format 'xml': expected none with the terse style"):
        render_prompt(benchmark_tasks()[0], "baseline", style="terse", plan_format="xml")


def test_followers_follow_it_and_direct_adds_nothing_of_its_own():
    env = ConversationEnv(base=1.0, prompt_style="terse", search="lexical")
    task = benchmark_tasks()[2]
    follower = evaluate("plan-follower", [task], "optimal", prompt_style="terse", search="lexical", base=1.0)
    assert follower.rows[0].success.value == 1.0
    model = ScriptedChatModel(["<finish/>"])
    agent = Direct(model)
    observation, info = env.reset(seed=0, options={"task": benchmark_tasks()[2], "prompt": "optimal"})
    agent.reset(observation, info)
    assert agent.act(observation, info) == "<finish/>"
    agent.close()
    (request,) = model.requests
    assert [(message.role, message.content) for message in request.messages] == [("user", observation)]
