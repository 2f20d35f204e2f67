"""What tests of played datasets share: a search without a model, small tasks, and replaying what a record holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from resilisim.datasets.rollout import TRAINING_ENVIRONMENT
from resilisim.envs.conversation import ConversationEnv
from resilisim.policies.checks import CommonWordSearch
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.tool_library.retrieval import ToolHit

READER, PARSER = "file_operations_reader", "data_processing_parser"
FILTER, TRANSFORMER = "data_processing_filter", "data_processing_transformer"
WRITER = "file_operations_writer"


class WordSearcher:
    """A search without a model, in the shape of a retriever."""

    def __init__(self, library: ToolLibrary) -> None:
        self._find = CommonWordSearch(library)

    def search(self, query: str, k: int = 5) -> Sequence[ToolHit]:
        return self._find(query, k)

    def search_many(self, queries: Sequence[str], k: int = 5) -> list[list[ToolHit]]:
        return [self._find(query, k) for query in queries]


def word_searcher() -> WordSearcher:
    return WordSearcher(default_library())


def task_of(*tools: str, description: str = "", **fields: Any) -> Task:
    """Return a task whose text names no tool."""
    text = description or " ".join(default_library()[tool].original_description for tool in tools)
    return Task.from_mapping({"required_tools": list(tools), "description": text, **fields}, default_library())


def tasks() -> list[Task]:
    """Return tasks with and without dependencies outside their lists."""
    return [
        task_of(READER, inputs={"source": "orders.csv"}),
        task_of(READER, PARSER, FILTER),
        task_of(READER, TRANSFORMER, WRITER, inputs={"source": "orders.csv"}),
        task_of("network_fetcher", "network_validator", TRANSFORMER, "network_poster"),
    ]


def replay(record: dict[str, Any], messages: Sequence[dict[str, Any]], task: Task) -> tuple[ConversationEnv, Any]:
    """Send a record's messages to a fresh environment and assert that it answers as the record says.

    Returns:
        The environment, and its info after the last of them.
    """
    env = ConversationEnv(protocol=record["protocol"], salt=TRAINING_ENVIRONMENT.salt, search=word_searcher().search)
    observation, info = env.reset(seed=record["seed"], options={"task": task, "prompt": record["prompt_type"]})
    assert messages[0] == {**messages[0], "role": "user", "content": observation}
    heard: list[dict[str, Any]] = []
    for message in messages[1:]:
        if message["role"] == "assistant":
            assert not heard
            observation, _, _, _, info = env.step(message["content"] if record["protocol"] == "text" else message)
            plain = record["protocol"] == "text"
            heard = [{"role": "user", "content": observation}] if plain else json.loads(observation)
        else:
            expected = heard.pop(0)
            assert {key: message[key] for key in expected} == expected
    return env, info
