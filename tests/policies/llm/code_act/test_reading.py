"""What CodeAct takes for a block of code, and what not."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.policies.llm.agents.code_act import Block, read_proposal
from resilisim.policies.llm.reading import Finish, Unreadable
from tests.guards import no_endless_work


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
        "I look.\n<execute>print(1)",
        "I look.\n```python\nprint(1)\n```\n<finish>done</finish>",
    ],
)
def test_the_first_block_is_taken(text):
    proposal = read_proposal(text)
    assert isinstance(proposal, Block)
    assert proposal.code.strip() == "print(1)"
    assert proposal.thought == "I look."


def test_blocks_of_other_languages_are_passed_over():
    proposal = read_proposal('```json\n{"a": 1}\n```\nthen\n```bash\nls\n```\n```python\nx\n```')
    assert isinstance(proposal, Block)
    assert proposal.code == "x"


QUOTED = 'finish("from the tool")'


@pytest.mark.parametrize(
    "text",
    [
        f"I saw:\n```\n{QUOTED}\n```\nSo now:\n```python\nprint(1)\n```",
        f"I saw:\n```\n{QUOTED}\n```\nand\n```\n{QUOTED}\n```\nSo now:\n```py\nprint(1)\n```",
        f"I saw:\n```\n{QUOTED}\n```\nSo now:\n<execute>\nprint(1)\n</execute>",
        f"I saw `it`: ```{QUOTED}```\nSo now:\n```python\nprint(1)\n```",
        f"I saw:\n```\n<execute>{QUOTED}</execute>\n```\nSo now:\n```python\nprint(1)\n```",
        f"I saw:\n```\n{QUOTED}\n```python\nprint(1)\n```",
        f"<execute>\n```\n{QUOTED}\n```\n```python\nprint(1)\n```\n</execute>",
    ],
)
def test_a_block_without_a_language_is_a_quotation_where_another_has_one(text):
    proposal = read_proposal(text)
    assert isinstance(proposal, Block)
    assert proposal.code == "print(1)"


def test_the_first_block_without_a_language_is_taken_where_none_has_one():
    assert read_proposal("a\n```\nx = 1\n```\n```json\n{}\n```\n```\ny\n```") == Block("x = 1", "a")


def test_a_block_that_is_cut_off_is_preferred_to_a_quotation_and_not_run():
    proposal = read_proposal(f"```\n{QUOTED}\n```\n```python\nfor x in", is_cut=True)
    assert isinstance(proposal, Unreadable)
    assert proposal.problem == "the block of code is cut off"


def test_a_fence_within_a_line_of_code_does_not_close_the_block():
    proposal = read_proposal('```python\nprint("```")\nx = 1\n```')
    assert proposal == Block('print("```")\nx = 1')


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<finish>It is done.</finish>", "It is done."),
        ("All done. <finish/>", ""),
        ("I did not call <finish> before. <finish>now</finish>", "now"),
        ("</finish> <finish>a</finish> <finish>b</finish>", "a"),
        ("<FINISH> a\nb </FINISH>", "a\nb"),
        ('```json\n{"a": 1}\n```\n<finish>x</finish>', "x"),
    ],
)
def test_finish_counts_where_no_block_is(text, answer):
    assert read_proposal(text) == Finish(answer)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the reply is empty"),
        ("<think>never closed ```python\nx\n```", "the reply is empty"),
        ("   \n", "the reply is empty"),
        ("I do not know.", "no block of code"),
        ("```json\n{}\n```", "no block of code"),
        ("```bash\nls", "no block of code"),
        ("```python\n```", "the block of code is empty"),
        ("```python\n\n   \n```", "the block of code is empty"),
        ("<execute></execute>", "the block of code is empty"),
        ("<tool_call>x</tool_call>" * 10, "no block of code"),
        ("I would not call <finish> yet, there is more to do.", "<finish> is never closed"),
        ("<finish>the rest", "<finish> is never closed"),
        ("</finish> and <finish>", "<finish> is never closed"),
    ],
)
def test_what_holds_no_code_says_what_is_wrong(text, problem):
    proposal = read_proposal(text)
    assert isinstance(proposal, Unreadable)
    assert problem in proposal.problem


def test_a_block_that_was_cut_off_is_not_run():
    cut = read_proposal("```python\nfor x in range(3):\n  tool_call(", is_cut=True)
    assert isinstance(cut, Unreadable)
    assert cut.problem == "the block of code is cut off"
    assert read_proposal("```python\nx\n```\nand then", is_cut=True) == Block("x")


@pytest.mark.parametrize(
    "text",
    [
        "x" * 1_000_000,
        "```python\n" * 100_000,
        "```bash\n" * 100_000,
        "``` " * 200_000,
        "```\nx\n" * 50_000,
        "```\n<execute>" * 50_000,
        "<finish>" * 20_000 + "</finish>",
        "<execute>" * 100_000,
        "<think>" * 150_000,
        "<finish>" * 100_000,
        "```python\n" + "x = 1\n" * 150_000,
        "`" * 1_000_000,
    ],
)
def test_a_megabyte_is_read_in_no_time(text):
    with no_endless_work():
        read_proposal(text)
        assert read_proposal(text)


@given(
    st.lists(
        st.sampled_from(
            [
                "```",
                "python",
                "\n",
                "<execute>",
                "</execute>",
                "<think>",
                "</think>",
                "<finish>",
                "</finish>",
                "x = 1",
                " ",
                "\ud800",
                "json",
            ]
        ),
        max_size=30,
    ).map("".join),
    st.booleans(),
)
def test_nothing_that_a_model_writes_raises(text, is_cut):
    proposal = read_proposal(text, is_cut)
    if isinstance(proposal, Block):
        assert proposal.code.strip()


@given(
    st.text(st.characters(codec="ascii"), min_size=1, max_size=200).filter(
        lambda code: "```" not in code and code.strip() and "<" not in code
    )
)
def test_every_fenced_code_is_read_as_it_stands(code):
    proposal = read_proposal(f"thought\n```python\n{code}\n```")
    if "\r" not in code:
        assert proposal == Block(textwrap.dedent(code + "\n").strip("\n"), "thought")
