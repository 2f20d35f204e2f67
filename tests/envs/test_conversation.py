"""Conversation-v0 as agents meet it."""

from __future__ import annotations

import json
import warnings
from types import MappingProxyType

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

import resilisim  # noqa: F401  (registers the ids)
from resilisim.envs.checks import check_conversation_env
from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.protocol.native_messages import CUT_MARK, native_answers
from resilisim.envs.reply import public_info
from resilisim.envs.session import Session
from resilisim.envs.text_space import UnicodeText
from resilisim.errors import InvalidInputError
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import default_library
from resilisim.workflows import parse_plan
from tests.simulator.brute_force import small_library

TASK = {
    "required_tools": ["file_operations_reader", "data_processing_transformer", "file_operations_writer"],
    "description": "Read the orders. Transform them. Write the result.",
}
CALLS = [f"<tool_call>{name}</tool_call>" for name in TASK["required_tools"]]


def certain_env(**options):
    """An environment in which every tool succeeds."""
    return ConversationEnv(base=1.0, not_executed=1.0, failed=1.0, history=1.0, **options)


def run(env, messages, seed=0, prompt="baseline", task=TASK):
    observation, info = env.reset(seed=seed, options={"task": task, "prompt": prompt})
    steps = [(observation, 0.0, False, False, info)]
    for message in messages:
        steps.append(env.step(message))
        if steps[-1][2]:
            break
    return steps


def test_gymnasium_finds_and_accepts_it():
    env = gymnasium.make("resilisim/Conversation-v0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*render.*")
        check_env(env.unwrapped, skip_render_check=True)


def test_it_passes_our_own_conformance_suite():
    assert check_conversation_env(ConversationEnv, tasks=[TASK], episodes=4) == []


def broken(step=lambda sent: sent, reset=lambda begun: begun):
    """Return a Conversation-v0 whose answers are changed: step and reset get, and give, what Gymnasium's give."""

    class Broken(ConversationEnv):
        def step(self, action):
            return step(super().step(action))

        def reset(self, **options):
            return reset(super().reset(**options))

    return Broken


def leaky(sent):
    """Break common luck and the turn count, as a careless wrapper might."""
    observation, _, terminated, truncated, info = sent
    if info.get("execution"):
        info["execution"]["success"] = info["turn"] % 2 == 0
    return observation, 1.0, terminated, truncated, info | {"turns_left": 3}


def scored(level):
    def step(sent):
        observation, _, terminated, truncated, info = sent
        if terminated:
            info["score"]["level"] = level
        return observation, float(terminated and level == "full_success"), terminated, truncated, info

    return step


def raising(error):
    def answer(_):
        raise error

    return answer


def shows_more_of_executions(sent):
    if "execution" in sent[4]:
        sent[4]["execution"]["base"] = 0.8
    return sent


@pytest.mark.parametrize("tasks", [(), [TASK]])
@pytest.mark.parametrize(
    ("faulty", "parts"),
    [
        (broken(leaky), ["exactly one turn", "before the end", "changed the luck"]),
        (broken(lambda sent: (sent[0], 2 * sent[1], *sent[2:])), ["the last reward is 2.0 and the level full_success"]),
        (broken(scored("failure")), ["the level is 'failure' although all required tools had succeeded in order"]),
        (broken(scored("full_success")), ["the level is 'full_success' although 1 required tools had not succeeded"]),
        (broken(raising(KeyError("two\nlines"))), [r"KeyError: 'two\nlines'"]),
        (broken(reset=raising(ValueError("no beginning"))), ["ValueError: no beginning"]),
        (broken(reset=lambda begun: (begun[0], begun[1] | {"next_draw": 0.5})), ["public_info shows next_draw"]),
        (broken(shows_more_of_executions), ["public_info shows base of the execution"]),
    ],
    ids=range(8),
)
def test_the_conformance_suite_finds_each_fault_on_any_task_and_tells_it_in_a_line(faulty, parts, tasks):
    problems = check_conversation_env(faulty, tasks=tasks, episodes=1)
    assert all(any(part in problem for problem in problems) for part in parts)
    assert not any("\n" in problem for problem in problems)


def test_full_success_pays_one():
    steps = run(certain_env(), [*CALLS, "<finish/>"])
    assert [step[1] for step in steps] == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert [step[2] for step in steps] == [False, False, False, False, True]
    assert steps[-1][4]["score"] == {
        "level": "full_success",
        "coverage": 1.0,
        "minimum": True,
        "order": True,
        "output": True,
        "completion": True,
        "ended_by": "completion",
    }


def test_wrong_order_pays_nothing():
    steps = run(certain_env(), [CALLS[1], CALLS[0], CALLS[2], "<finish/>"])
    assert steps[-1][1] == 0.0
    assert steps[-1][4]["score"]["order"] is False
    assert steps[-1][4]["score"]["level"] == "partial_success"  # an output tool succeeded, and enough tools


def test_policies_do_not_see_probabilities():
    info = public_info(run(ConversationEnv(), CALLS)[-1][4])
    assert "success_probability" not in str(info)
    assert not {"instance_id", "required_tools", "state", "problem", "seed", "score"} & set(info)


def test_tenth_turn_does_not_end_the_episode_and_the_closing_message_does():
    chatter = [f"<tool_info>{name}</tool_info>" for name in default_library().names[:7]]
    steps = run(certain_env(), [*CALLS, *chatter])
    assert not steps[-1][2]
    assert steps[-1][4]["turns_left"] == 0
    assert "closing message" in steps[-1][0]
    assert run(certain_env(), [*CALLS, *chatter, "<finish/>"])[-1][1] == 1.0
    late = run(certain_env(), [*CALLS[:2], *chatter, "hm", CALLS[2]])
    assert late[-1][2]
    assert late[-1][4]["score"]["ended_by"] == "turns"
    assert "execution" not in late[-1][4]


def test_stop_counts_as_completion():
    env = certain_env()
    run(env, CALLS)
    _, reward, terminated, _, info = env.stop()
    assert (reward, terminated, info["score"]["ended_by"]) == (1.0, True, "stopped")


def test_prompts_share_the_luck():
    env = ConversationEnv()
    for seed in range(20):
        one = run(env, CALLS * 3, seed, "baseline")
        other = run(env, CALLS * 3, seed, "optimal")
        assert [step[4].get("execution") for step in one] == [step[4].get("execution") for step in other]
        assert one[0][0] != other[0][0]


def test_search_and_info_say_as_much_as_is_asked_for():
    message = "<tool_search>file operations reader</tool_search>"
    brief, full = (run(ConversationEnv(search_detail=detail), [message])[-1] for detail in ("brief", "full"))
    assert brief[4]["search"][0]["name"] == "file_operations_reader"
    assert len(brief[4]["search"]) == 5
    assert ("Possible errors" in brief[0], "Possible errors" in full[0]) == (False, True)
    told = run(ConversationEnv(), ["<tool_info>computation_analyzer</tool_info>"])[-1]
    assert "data_processing_parser, data_processing_aggregator" in told[0]
    assert told[4]["tool_info"]["dependencies"] == ["data_processing_parser", "data_processing_aggregator"]
    prompts = [run(ConversationEnv(tools=tools), [])[0][0] for tools in ("listed", "discovery")]
    assert ["utility_tracker" in prompt for prompt in prompts] == [True, False]


NATIVE_OF = {"tool_call": "name", "tool_info": "name", "tool_search": "query"}
plain = st.sampled_from(
    [("tool_call", name) for name in TASK["required_tools"]]
    + [("tool_info", "utility_cache"), ("tool_call", "nope"), ("tool_info", "nope"), ("finish", "")]
)


@given(st.lists(plain, min_size=1, max_size=12), st.integers(0, 50))
def test_both_protocols_give_the_same_episodes(sent, seed):
    texts = ["<finish/>" if name == "finish" else f"<{name}>{value}</{name}>" for name, value in sent]
    natives = []
    for number, (name, value) in enumerate(sent):
        arguments = {} if name == "finish" else {NATIVE_OF[name]: value}
        call = {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        natives.append(json.dumps({"role": "assistant", "content": None, "tool_calls": [call]}))
    one = run(ConversationEnv(), texts, seed)
    other = run(ConversationEnv(protocol="native"), natives, seed)
    keys = ("event", "execution", "turns_left", "score", "problems")
    assert [[step[4].get(key) for key in keys] for step in one] == [
        [step[4].get(key) for key in keys] for step in other
    ]
    assert [step[1:4] for step in one] == [step[1:4] for step in other]


def test_parallel_native_calls_are_answered_with_ignored():
    env = certain_env(protocol="native")
    env.reset(seed=0, options={"task": TASK})
    calls = [
        {"id": f"c{number}", "function": {"name": "tool_call", "arguments": json.dumps({"name": name})}}
        for number, name in enumerate(TASK["required_tools"])
    ]
    observation, *_, info = env.step({"content": None, "tool_calls": calls})
    replies = json.loads(observation)
    assert [reply["tool_call_id"] for reply in replies] == ["c0", "c1", "c2"]
    assert [reply["content"] for reply in replies[1:]] == ["ignored", "ignored"]
    assert info["execution"]["tool"] == "file_operations_reader"
    assert "2 more were ignored" in replies[0]["content"]


def test_tools_of_any_library_may_be_required_in_any_order():
    library = small_library({"alpha": [], "beta": ["alpha"]})
    for tools, more in ((list(reversed(default_library().names)), {}), (["alpha", "beta"], {"library": library})):
        calls = [f"<tool_call>{name}</tool_call>" for name in tools]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            steps = run(certain_env(max_turns=40, **more), [*calls, "<finish/>"], task={"required_tools": tools})
        assert steps[-1][1] == 1.0


def test_without_a_task_the_seed_chooses_one():
    env = ConversationEnv()
    first = env.reset(seed=5)[1]["instance_id"]
    assert env.reset(seed=5)[1]["instance_id"] == first
    assert len({env.reset(seed=seed)[1]["instance_id"] for seed in range(10)}) > 5


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"task": "task_nope"}, "task_nope"),
        ({"task": {"required_tools": ["file_operations_read"]}}, "file_operations_reader"),
        ({"task": {"required_tools": []}}, "required_tools"),
        ({"task": TASK, "prompt": "optimall"}, "optimal"),
        ({"taks": TASK}, "task"),
        ({"task": 3}, "int"),
    ],
)
def test_bad_reset_options_are_refused(options, part):
    with pytest.raises(InvalidInputError, match=part):
        ConversationEnv().reset(seed=0, options=options)


@pytest.mark.parametrize(
    "option", ["parameters", "search_detail", "payload", "tools", "protocol", "prompt", "render_mode"]
)
def test_bad_constructor_options_are_refused(option):
    with pytest.raises(InvalidInputError, match="nonsense"):
        ConversationEnv(**{option: "nonsense"})


def test_replies_stay_short_and_can_be_sent_anywhere():
    long_name = "x" * 900_000
    parameters = json.dumps({f"p{number}": number for number in range(20_000)})
    for message in (
        "x" * 1_000_001,
        f"<tool_info>{long_name}</tool_info>",
        f"<tool_call>{long_name}</tool_call>",
        f"<tool_call>file_operations_reader {parameters}</tool_call>",
        "<tool_info>\ud800</tool_info>",
    ):
        observation = run(ConversationEnv(), [message])[-1][0]
        assert len(observation) < 20_000
        observation.encode("utf-8")


def nested(depth, inner=None):
    for _ in range(depth):
        inner = [inner]
    return inner


def cyclic():
    message = {"content": "hello"}
    message["tool_calls"] = [{"id": message}]
    return message


def called(call_id="c", name="tool_call", arguments='{"name": "file_operations_reader"}'):
    return {"id": call_id, "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("message", "kind", "part"),
    [
        ({"tool_calls": [called(nested(5000))]}, "format_error", "nested too deeply"),
        ({"tool_calls": [called(arguments=nested(5000))]}, "format_error", "nested too deeply"),
        (cyclic(), "format_error", "Circular"),
        ({"tool_calls": [called(object())]}, "format_error", "it holds a object"),
        ({"content": float("nan")}, "format_error", "Out of range"),
        ({"tool_calls": [called(10**5000)]}, "format_error", "integer"),
        ({"tool_calls": [called("i" * 1_000_000)]}, "format_error", "expected at most 1,000,000"),
        ({"tool_calls": [called(arguments="{nope")]}, "rejected", "INVALID_PARAMETERS"),
        ({"tool_calls": [called(nested(50))]}, "execute", "executed successfully"),
        ({"tool_calls": [called("c" * 900_000)]}, "execute", "executed successfully"),
        ({"tool_calls": [called(), *[{"id": "b"}] * 70_000]}, "execute", "[cut: too long]"),
        (MappingProxyType({"tool_calls": [MappingProxyType(called())]}), "execute", "executed successfully"),
        ({"tool_calls": [called(name="f" * 900_000)]}, "format_error", "unknown function"),
    ],
    ids=range(13),
)
def test_native_nonsense_is_an_observation_of_valid_json(message, kind, part):
    def sent_to(step):
        observation, *_, info = step(message)
        words = json.loads(observation)[0]["content"]
        assert (info["event"], part in words) == (kind, True)
        assert len(observation) <= 1_000_000
        return observation

    env = certain_env(protocol="native")
    env.reset(seed=0, options={"task": TASK})
    first = sent_to(env.step)
    session = Session(certain_env(protocol="native"), Task.from_mapping(TASK, default_library()), "baseline", 0)
    assert session.send(message).observation == first, "as a mapping, which records keep as a text"


@given(st.text(), st.lists(st.text()), st.integers(200, 1000))
def test_a_native_observation_that_is_cut_is_valid_json(text, ids, max_length):
    messages, encoded = native_answers(text, ids, max_length)
    assert json.loads(encoded) == messages
    assert len(encoded) <= max_length
    content = messages[0]["content"]
    assert content == text or (content.endswith(CUT_MARK) and text.startswith(content.removesuffix(CUT_MARK)))
    answered = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert answered == ids[: len(answered)]
    assert content != text or len(answered) == len(ids)


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_seeds_out_of_range_are_refused(seed):
    with pytest.raises(InvalidInputError, match="expected at least 0 and at most 9,223,372,036,854,775,807"):
        ConversationEnv().reset(seed=seed)


def test_an_environment_survives_a_refused_reset():
    env = gymnasium.make("resilisim/Conversation-v0")
    with pytest.raises(InvalidInputError, match="nope"):
        env.reset(options={"task": "nope"})
    env.reset(seed=0)
    assert env.step("<finish/>")[2]


def test_wrong_libraries_are_refused():
    with pytest.raises(InvalidInputError, match="load_library"):
        ConversationEnv(library="tools.json")
    with pytest.raises(InvalidInputError, match="shipped tasks"):
        ConversationEnv(library=small_library({"alpha": []})).reset(seed=0)


def test_infos_print_short():
    assert len(repr(run(ConversationEnv(), CALLS)[-1][4])) < 4000


def test_space_of_texts():
    space = UnicodeText(100, seed=1)
    assert all(space.contains(space.sample()) for _ in range(100))
    assert not space.contains("x" * 101)
    assert not space.contains(3)
    assert space == UnicodeText(100) != UnicodeText(99)


PLANNED = next(task for task in benchmark_tasks() if len(task.required_tools) == 5)


def test_a_flaw_is_named_and_kept_from_ordinary_policies():
    prompt = "flawed:missing_step:severe:middle_step_removal"
    observation, info = ConversationEnv().reset(seed=1, options={"task": PLANNED, "prompt": prompt})
    assert info["prompt_type"] == prompt
    flaw = info["flaw"]
    assert (flaw["type"], flaw["method"], flaw["severity"]) == ("missing_step", "middle_step_removal", "severe")
    shown = parse_plan(observation)
    assert all(edit["before"] not in shown for edit in flaw["edits"])
    public = public_info(info)
    assert "flaw" not in public
    assert public["prompt_type"] == "optimal"
    assert "flaw" not in observation.lower()


def test_flawed_alone_draws_a_flaw_that_the_task_can_carry():
    env = ConversationEnv(prompt="flawed")
    drawn = set()
    for task in benchmark_tasks()[:40]:
        _, info = env.reset(seed=1, options={"task": task})
        drawn.add(info["flaw"]["type"])
        assert info["flaw"]["edits"]
        assert env.reset(seed=2, options={"task": task})[1]["flaw"] == info["flaw"]
    assert len(drawn) > 4


@pytest.mark.parametrize("prompt", ["baseline", "chain_of_thought", "optimal"])
def test_a_sound_prompt_has_no_flaw(prompt):
    _, info = ConversationEnv().reset(seed=1, options={"task": PLANNED, "prompt": prompt})
    assert info["flaw"] is None
    assert public_info(info)["prompt_type"] == prompt


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("flawed:mising_step", "'missing_step'"),
        ("flawed:tool_misuse:hard", "light, moderate, severe"),
        ("flawed:tool_misuse:light:swap", "semantic_similarity"),
        ("optimal:tool_misuse", "flawed:FLAW"),
        ("flawed:a:b:c:d", "flawed:FLAW"),
        ("flaved", "'flawed'"),
    ],
)
def test_prompts_that_do_not_exist_or_that_the_plan_cannot_carry_are_refused(prompt, words):
    with pytest.raises(InvalidInputError, match=words):
        ConversationEnv(prompt=prompt)
    short = next(task for task in benchmark_tasks() if len(task.required_tools) == 1)
    with pytest.raises(InvalidInputError, match="cannot carry missing_step"):
        ConversationEnv().reset(options={"task": short, "prompt": "flawed:missing_step"})
