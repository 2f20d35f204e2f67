"""What a good model would answer, made from the vocabulary, whose clauses lead retrieval to their tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from resilisim.chat import ChatReply, ChatRequest
from resilisim.tasks.enhancement.rewrite import kept_values
from resilisim.tasks.task import Task
from resilisim.tasks.wording import GENERAL_ITEMS, vocabulary_clauses


def asked_steps(names: Sequence[str]) -> str:
    """One list line for each tool."""
    return "\n".join(f"- {vocabulary_clauses(name, GENERAL_ITEMS)[0]}" for name in names)


def good_description(task: Task) -> str:
    """A rewritten description that asks for the task's tools and says its values."""
    said = ", ".join(kept_values(task))
    return f"Morning all, one job for today.\n{asked_steps(task.required_tools)}\nFor the record: {said}."


def good_rewrite(task: Task) -> str:
    """The answer that holds it, with chatter around."""
    return f"Sure!\n```json\n{json.dumps({'description': good_description(task)})}\n```"


def good_design(**changes: Any) -> dict[str, Any]:
    """A design that fits every basic_file_processing task: read a file, parse it."""
    names = changes.get("tools", ["file_operations_reader", "data_processing_parser"])
    design = {
        "description": f"The harbour office needs its list, stored in /data/berths.csv.\n{asked_steps(names)}",
        "tools": names,
        "inputs": {"source": "/data/berths.csv"},
        "expected_outputs": {"success": True},
    }
    return {**design, **changes}


class FunctionModel:
    """A chat model that is a function of the request's last message; counts what it was asked."""

    name = "openai:function"

    def __init__(self, function: Any) -> None:
        self._function = function
        self.asked: list[str] = []
        self.closed = False

    async def complete(self, request: ChatRequest) -> ChatReply:
        text = request.messages[-1].content
        self.asked.append(text)
        answer = self._function(text)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, ChatReply) else ChatReply(answer)

    async def aclose(self) -> None:
        self.closed = True
