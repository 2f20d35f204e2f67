"""CodeAct with a scripted model: what is read as code, tools as functions, every branch of its loop."""

from __future__ import annotations

import asyncio
import logging

import pytest

from resilisim.chat import ChatReply, ScriptedChatModel
from resilisim.chat.scripted_models import ScriptedReply
from resilisim.envs.reply import CallResult
from resilisim.policies.llm.agent_run import EpisodeEnded
from resilisim.policies.llm.agents.code_act import (
    Block,
    CodeAct,
    Finished,
    ToolFunctions,
    bound,
    marked_code,
    read_proposal,
)
from resilisim.policies.llm.conversation_toolbox import CONVERSATION_TOOLS
from resilisim.policies.llm.reply_reading import Finish, Unreadable
from resilisim.sandbox import HostCallError
from tests.guards import no_endless_work
from tests.policies.llm import helpers
from tests.policies.llm.helpers import NONSENSE, ScriptedToolbox, live_children, spec

# A fence without a language is a block only where no other one is: else it quotes something.
QUOTED = 'finish("from the tool")'


@pytest.mark.parametrize(
    "text",
    [
        "I look.\n```python\nprint(1)\n```",
        "I look.\n```py\nprint(1)\n```\nOutput:\n1\n```python\nprint(2)\n```",
        "I look.\n```\nprint(1)\n```",
        "I look.\n```Python\r\nprint(1)\r\n```".replace("\r", ""),
        "I look.\n   ```python\n   print(1)\n   ```",
        "I look.\n```python print(1)```",
        "I look.\n<execute>\nprint(1)\n</execute>",
        "I look.\n<EXECUTE>print(1)</EXECUTE> and <execute>print(2)</execute>",
        "I look.\n<execute>\n```python\nprint(1)\n```\n</execute>",
        "<think>```python\nprint(0)\n```</think>I look.\n```python\nprint(1)\n```",
        "I look.\n```python\nprint(1)",
        "I look.\n```python\nprint(1)\n```\n<finish>done</finish>",
        f"I saw:\n```\n{QUOTED}\n```\nSo now:\n```python\nprint(1)\n```",
        f"I saw:\n```\n{QUOTED}\n```\nSo now:\n<execute>\nprint(1)\n</execute>",
        f"I saw `it`: ```{QUOTED}```\nSo now:\n```python\nprint(1)\n```",
        f"I saw:\n```\n<execute>{QUOTED}</execute>\n```\nSo now:\n```python\nprint(1)\n```",
        f"I saw:\n```\n{QUOTED}\n```python\nprint(1)\n```",
        f"<execute>\n```\n{QUOTED}\n```\n```python\nprint(1)\n```\n</execute>",
    ],
)
def test_the_first_block_is_taken(text):
    proposal = read_proposal(text)
    assert isinstance(proposal, Block)
    assert proposal.code.strip() == "print(1)"
    assert proposal.thought == "I look." or QUOTED in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('a\n```json\n{"a": 1}\n```\n', "no block of code"),
        ("```bash\nls\n```\n```python\nx\n```", Block("x", "```bash\nls\n```")),
        ('```python\nprint("```")\nx = 1\n```', Block('print("```")\nx = 1')),
        ("<finish>It is done.</finish>", Finish("It is done.")),
        ("All done. <finish/>", Finish("")),
        ("I did not call <finish> before. <finish>now</finish>", Finish("now")),
        ("<FINISH> a\nb </FINISH>", Finish("a\nb")),
        ('```json\n{"a": 1}\n```\n<finish>x</finish>', Finish("x")),
        ("", "the reply is empty"),
        ("<think>never closed ```python\nx\n```", "the reply is empty"),
        ("I do not know.", "no block of code"),
        ("<tool_call>x</tool_call>" * 10, "no block of code"),
        ("```python\n\n   \n```", "the block of code is empty"),
        ("I would not call <finish> yet, there is more to do.", "<finish> is never closed"),
        ("<finish>the rest", "<finish> is never closed"),
    ],
)
def test_other_languages_are_passed_over_and_the_end_counts_where_no_block_is(text, expected):
    proposal = read_proposal(text)
    if isinstance(expected, str):
        assert isinstance(proposal, Unreadable)
        assert expected in proposal.problem
    else:
        assert proposal == expected


@pytest.mark.parametrize(
    ("text", "code", "thought"),
    [
        ("I look.\n```tool_code\nx = 1\nprint(x)\n```\nDone", "x = 1\nprint(x)", "I look."),
        ("<|python_tag|>x = 1\nprint(x)<|eom_id|>", "x = 1\nprint(x)", ""),
        ("<|python_start|>print(1)<|python_end|>", "print(1)", ""),
        ("<|python_tag|>", None, ""),
        ("I think of python_tag.", None, ""),
    ],
)
def test_code_behind_the_marks_of_models_is_a_block(text, code, thought):
    found = marked_code(text)
    assert (None if found is None else (found.code, found.thought)) == (None if code is None else (code, thought))


@pytest.mark.parametrize(
    "text",
    [
        "x" * 1_000_000,
        "```python\n" * 100_000,
        "```\nx\n" * 50_000,
        "```\n<execute>" * 50_000,
        "<finish>" * 20_000 + "</finish>",
        "`" * 1_000_000,
    ],
)
def test_a_megabyte_is_read_in_no_time(text):
    with no_endless_work():
        assert read_proposal(text)


SEARCH, INFO, CALL = CONVERSATION_TOOLS


@pytest.mark.parametrize(
    ("tool", "positional", "named", "expected"),
    [
        (CALL, ["reader", {"a": 1}], {}, {"name": "reader", "parameters": {"a": 1}}),
        (CALL, ["reader"], {"a": 1, "b": [2]}, {"name": "reader", "parameters": {"a": 1, "b": [2]}}),
        (CALL, ["reader", {"a": 1}], {"b": 2}, {"name": "reader", "parameters": {"a": 1, "b": 2}}),
        (CALL, [], {"name": "reader", "parameters": None, "a": 1}, {"name": "reader", "parameters": {"a": 1}}),
        (CALL, ["a", {}, 1], {}, "3 values without a name are too many: tool_call("),
        (CALL, ["a"], {"name": "b"}, "'name' is given twice"),
        (CALL, ["a", "text"], {"b": 2}, "no parameter 'b'"),
        (SEARCH, [], {"words": "x"}, "no parameter 'words': tool_search(query: string)"),
    ],
)
def test_calls_are_bound_to_parameters_or_say_why_not(tool, positional, named, expected):
    if isinstance(expected, dict):
        assert bound(tool, positional, named) == expected
    else:
        with pytest.raises(HostCallError) as refused:
            bound(tool, positional, named)
        assert expected in str(refused.value)


@pytest.mark.parametrize(
    ("positional", "named", "answer"),
    [
        (["done"], {}, "done"),
        ([], {}, ""),
        ([], {"answer": {"a": 1}}, '{"a": 1}'),
        ([42], {}, "42"),
        ([None], {}, "null"),
    ],
)
def test_finish_takes_any_answer(positional, named, answer):
    functions = ToolFunctions(ScriptedToolbox([], {}))
    with pytest.raises(Finished) as finished:
        asyncio.run(functions.by_name["finish"](positional, named))
    assert finished.value.answer == answer


ROWS = {"rows": [{"n": 1}, {"n": 2}]}


def code(text: str, thought: str = "I act.") -> str:
    return f"{thought}\n```python\n{text}\n```"


def play(script, answers=None, **options):
    policy = CodeAct(models=ScriptedChatModel(script), **options)
    return helpers.play(policy, ScriptedToolbox(CONVERSATION_TOOLS, answers or {}), "Count the rows.")


def test_a_whole_run_with_a_namespace_that_lasts():
    played = play(
        [
            ScriptedReply(code('print(tool_search("read rows"))'), expect="Count the rows.", role="agent"),
            ScriptedReply(code('data = tool_call("reader", source="x")'), expect="reader (0.9)"),
            ScriptedReply(code('total = sum(row["n"] for row in data["rows"])\nprint(total)'), expect="(no output)"),
            ScriptedReply(code('finish(f"The sum is {total}.")'), expect="Output:\n3"),
        ],
        {"tool_search": ["1. reader (0.9)"], "tool_call": [CallResult("ok", data=ROWS, progress="7 turns left")]},
    )
    assert played.answer == "The sum is 3."
    assert played.calls == [
        ("tool_search", {"query": "read rows"}),
        ("tool_call", {"name": "reader", "parameters": {"source": "x"}}),
    ]
    assert played.told(2) == "Output:\n(no output)\n\n7 turns left"
    assert [block.get("calls") for block in played.structure["blocks"]] == [1, 1, 0, None]
    assert played.structure["blocks"][-1]["finished"]
    assert played.counters["blocks"] == 3
    for line in ("tool_search(query: str)", "tool_call(name: str, parameters: dict = None)", "finish(answer)"):
        assert f"\n- {line}: " in played.system(0)
    assert "greenhouse" in played.system(0)
    mail = ScriptedToolbox([spec("mail-send", "to", n="integer")], {"mail-send": ["sent"]})
    policy = CodeAct(models=ScriptedChatModel([code("finish(mail_send('Ada', n=1))")]))
    assert helpers.play(policy, mail, "Send it.").answer == "sent", "names of functions are Python's"


def test_limits_are_those_of_the_paper():
    options = CodeAct(models=ScriptedChatModel([])).options
    assert (options.steps, options.output_chars, options.block_seconds, options.memory_mib) == (20, 2_000, 5.0, 64)
    played = play([code("print('x' * 5_000)"), code("finish('')")])
    assert "[output cut: the first 2,000 of 5,001" in played.told(1)


def test_an_end_that_is_made_up_behind_a_call_in_another_form_is_none():
    assert play(["Done. <finish/>"]).answer == ""
    made_up = 'Action: tool_call {"name": "reader"}\nObservation: It ran.\nAction: finish'
    played = play([made_up, "<finish>It ran.</finish>"], {"tool_call": [CallResult("ok")]})
    assert played.answer == "It ran."
    assert played.calls == [("tool_call", {"name": "reader"})]
    quoting = 'It ran.\n<finish>done</finish>\n```json\n{"name": "tool_call", "arguments": {"name": "reader"}}\n```'
    assert play([quoting]).answer == "done"


def test_an_error_of_the_code_is_observed_and_the_names_stay():
    played = play([code("x = 5\nprint('before')\nx / 0"), ScriptedReply(code("finish(x)"), "before\nTraceback")])
    assert played.answer == "5"
    assert played.counters["block_errors"] == 1
    assert played.events("code")[0]["text"] == "ZeroDivisionError: division by zero"


def test_a_failed_tool_is_an_exception_in_the_code():
    failing = [CallResult("words", "TIMEOUT: slow"), CallResult("ok", data=ROWS), CallResult("words", "NOT_FOUND: no")]
    caught = (
        "for attempt in range(3):\n"
        "    try:\n"
        "        data = tool_call('reader')\n"
        "        break\n"
        "    except ToolError as error:\n"
        "        print('again:', error)\n"
        "print(len(data['rows']))\n"
        "other = tool_call('reader')"
    )
    played = play([code(caught), code("print('other' in str(data))\nfinish('end')")], {"tool_call": failing})
    assert (played.answer, len(played.calls)) == ("end", 3)
    assert played.told(1).startswith("Output:\nagain: TIMEOUT: slow\n2\nTraceback")
    assert played.told(1).endswith("RuntimeError: NOT_FOUND: no")


def test_a_stopped_sandbox_is_told_and_counted(caplog):
    gone = "All variables and functions of earlier blocks are gone"
    anew = "try:\n  raise ToolError('x')\nexcept ToolError:\n  finish('new')"
    script = [
        code("kept = 1\nwhile True: pass"),
        ScriptedReply(code("print(kept)"), gone),
        ScriptedReply(code(anew), "NameError"),
    ]
    with caplog.at_level(logging.WARNING, "resilisim.agents"):
        played = play(script, block_seconds=0.3)
    assert played.answer == "new"
    assert played.counters["sandbox_restarts"] == 1
    assert "the sandbox was stopped: TimeoutError" in caplog.text


@pytest.mark.parametrize("nonsense", [*NONSENSE.values(), "```json\n{}\n```", "```python\n```"])
def test_without_code_there_is_one_more_call_for_code_alone_and_then_a_reminder(nonsense):
    right = code("finish('ok')")
    played = play([nonsense, ScriptedReply(right, "one block of code and nothing else")])
    assert (played.answer, played.counters) == ("ok", {"malformed_replies": 1, "asked_for_code_alone": 1})
    played = play([nonsense, "??", ScriptedReply(right, "Nothing was run: the reply holds no block")])
    assert (played.answer, played.counters["malformed_replies"], played.longest < 30_000) == ("ok", 2, True)
    assert [message.content for message in played.messages(2)[2:-1]] == ["??"], "the retry is not kept"


def test_a_block_cut_off_by_the_limit_of_tokens_is_not_run_and_of_several_only_the_first():
    cut = ChatReply("```python\ntool_call('a')\ntool_call('b')", finish_reason="length")
    played = play([cut, code("finish('ok')")])
    assert (played.answer, played.calls) == ("ok", [])
    two = code("print('first')") + "\nOutput:\nfirst\n" + code("print('second')")
    played = play([ChatReply(two, finish_reason="length"), code("finish('')")])
    assert played.told(1) == "Output:\nfirst"
    assert "second" not in played.messages(1)[-2].content


def test_the_limit_of_steps_is_a_failure_of_the_agent():
    played = play([code("print(1)")] * 3 + ["?"] * 2, steps=4)
    assert played.answer is None
    assert played.failures == [("agent", "no finish within 4 steps")]


GREEDY = "for i in range(5):\n    try:\n        tool_call('reader')\n    except BaseException:\n        print('caught')"


def test_an_episode_that_ends_inside_a_block_ends_the_agent_and_its_process():
    before = live_children()
    played = play([code(GREEDY)], {"tool_call": [CallResult("ok", data=1), EpisodeEnded()]})
    assert played.answer is EpisodeEnded
    assert len(played.calls) == 2
    assert played.structure["blocks"] == [{"thought": "I act.", "code": GREEDY}]
    assert live_children() <= before
