"""Tools worded anew by a model: what is kept, what is refused and why, and that meaning and schemas stay."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import pytest

from resilisim.chat import ChatMessage, ChatReply
from resilisim.chat.checked_answers import RefusedAnswer
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.tool_library.differentiation import (
    FIELDS,
    TOOL_REFUSALS,
    Differentiated,
    ToolWriter,
    differentiate_library,
)
from resilisim.tool_library.retrieval import default_retriever

LIBRARY = default_library()
READER = LIBRARY["file_operations_reader"]


def lexical(library: ToolLibrary) -> Any:
    return default_retriever(library, "lexical")


WRITER = ToolWriter(LIBRARY, lexical(LIBRARY))


def answer(tool: Any = READER, **changes: Any) -> str:
    """What a careful model would answer: the tool's own words, put otherwise."""
    differentiation = tool.differentiation
    good = {
        "description": f"{tool.original_description} Made to {differentiation.usage_keywords[0]}.",
        "unique_purpose": f"{tool.original_description.rstrip('.')}, and only that.",
        "key_differentiators": list(differentiation.key_differentiators),
        "usage_keywords": list(differentiation.usage_keywords[:3]),
    }
    return f"Here:\n```json\n{json.dumps({**good, **changes})}\n```"


def run(answers: Any, library: ToolLibrary = LIBRARY, re_asks: int = 0) -> tuple[Differentiated, list[str]]:
    """Let a function of the tool and of the number of the question answer."""
    asked: list[str] = []

    async def ask(messages: tuple[ChatMessage, ...]) -> ChatReply:
        tool = next(tool for tool in library if f'"{tool.original_description}"' in messages[1].content)
        asked.append(messages[-1].content)
        reply = answers(tool, len(messages) // 2 - 1)
        return reply if isinstance(reply, ChatReply) else ChatReply(reply)

    return asyncio.run(differentiate_library(library, ask, lexical, model="openai:x", re_asks=re_asks)), asked


def test_only_texts_change_and_the_original_ones_are_kept() -> None:
    result, asked = run(lambda tool, _: answer(tool))
    made = [tool for tool in result.library if tool.differentiation_enhanced]
    assert len(made) + sum(result.refusals.values()) == len(asked) == 30
    assert len(made) > 20
    assert set(result.refusals) <= set(TOOL_REFUSALS)
    texts = ("description", "differentiation", "differentiation_enhanced", "metadata")
    for tool, old in zip(result.library, LIBRARY, strict=True):
        replaced = dataclasses.replace(tool, **{field: getattr(old, field) for field in texts})
        assert replaced == old, "nothing but texts"
        note = tool.metadata["enhancement"]
        if tool.differentiation_enhanced:
            assert tool.description != old.description
            original = old.to_mapping()
            assert note["original"] == {key: original[key] for key in ("description", "differentiation")}
        else:
            assert (note["outcome"], tool.description) == ("refused", old.description)
    assert ToolLibrary.from_json(result.library.to_json()) == result.library
    assert result.first_after >= result.first_before
    assert result.to_mapping()["enhanced"] == len(made)


WRITES = LIBRARY["file_operations_writer"].original_description


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("I would rather not.", "not_json"),
        (json.dumps({"description": "x"}), "not_json"),
        (answer(usage_keywords="read files"), "wrong_fields"),
        (answer(usage_keywords=["read a file"]), "wrong_fields"),
        (answer(description=" "), "wrong_fields"),
        (answer(description="Reads a file from disk. " * 40), "too_long"),
        (answer(description="Reads a file\u0007 from disk and returns its content."), "not_text"),
        (answer(description="Reads a file from disk. <finish/>"), "markup"),
        (answer(description="Reads a file from disk, unlike file_operations_writer."), "names_tool"),
        (answer(key_differentiators=["not the network_fetcher"]), "names_tool"),
        (answer(description=READER.description), "unchanged"),
        (answer(description="Reads a file from disk of up to 5 GB and returns its content."), "new_promise"),
        (answer(description="Reads a file from disk and never returns its content."), "negation"),
        (answer(description=WRITES), "other_meaning"),
        (answer(unique_purpose=WRITES), "other_meaning"),
        (answer(usage_keywords=["read a file", "load file content", "forecast next month"]), "other_meaning"),
    ],
)
def test_what_may_change_a_tools_meaning_is_refused(text: str, kind: str) -> None:
    with pytest.raises(RefusedAnswer) as refused:
        WRITER.read(READER, text)
    assert refused.value.args[0] == kind
    assert refused.value.args[1]


def test_an_unusable_answer_is_sent_back_with_the_reason_and_one_that_was_cut_off_is_told_so() -> None:
    def answers(tool: Any, number: int) -> Any:
        if tool.name == "utility_cache":
            return ChatReply('{"description": "Caches', finish_reason="length")
        return answer(tool) if number else answer(tool, description=tool.description)

    result, asked = run(answers, re_asks=1)
    assert sum("This answer cannot be used: the description is the same as before." in text for text in asked) == 29
    assert result.library["utility_cache"].metadata["enhancement"]["reason"] == "cut_off"
    assert "unchanged" not in result.refusals


def test_texts_that_make_searches_worse_are_taken_back() -> None:
    # A writer that is worded with all of the reader's words, too, draws searches for the reader to itself.
    greedy = f"{READER.original_description} {WRITES}"

    def answers(tool: Any, _: int) -> str:
        if tool.name == "file_operations_scanner":
            return answer(tool, usage_keywords=["find files", "list folder contents", "scan a directory"])
        return "no"

    calm, _ = run(answers)
    assert calm.library["file_operations_scanner"].differentiation_enhanced

    class Biased(type(lexical(LIBRARY))):  # type: ignore[misc]
        """Finds the scanner first, whatever is asked, once it has new texts."""

        def search_many(self, queries: Any, k: int = 5) -> Any:
            found = super().search_many(queries, k)
            if not self.library["file_operations_scanner"].differentiation_enhanced:
                return found
            return [sorted(hits, key=lambda hit: hit.name != "file_operations_scanner") for hits in found]

    async def ask(messages: tuple[ChatMessage, ...]) -> ChatReply:
        scanner = LIBRARY["file_operations_scanner"]
        return ChatReply(answer(scanner) if f'"{scanner.original_description}"' in messages[1].content else greedy)

    biased = asyncio.run(differentiate_library(LIBRARY, ask, Biased, model="x", re_asks=0))
    assert biased.refusals["crowds_out"] == 1
    assert [tool.name for tool in biased.library if tool.differentiation_enhanced] == []


def test_the_question_shows_the_tool_and_its_neighbours_but_no_names() -> None:
    system, user = WRITER.question(READER)
    assert all(field in system.content for field in FIELDS)
    assert WRITES in user.content
    assert not [name for name in LIBRARY.names if name in user.content]
