"""Whole episodes of LLM agents in Conversation-v0 with scripted models, for tests."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from resilisim.chat import ScriptedChatModel
from resilisim.chat.scripted import Line
from resilisim.envs.conversation import ConversationEnv
from resilisim.evaluation.episode.play import play_episode
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.tasks import Task

# Two tools, the second depends on the first; with base=1.0 every call succeeds.
TASK = {
    "instance_id": "task_read_and_parse",
    "task_type": "basic_task",
    "description": "Read the records from exports/records.json, then parse them.",
    "required_tools": ["file_operations_reader", "data_processing_parser"],
    "inputs": {"source": "exports/records.json"},
    "expected_outputs": {"success": True},
    "complexity": "easy",
    "constraints": {},
}
READER, PARSER = TASK["required_tools"]


@functools.cache
def environment(**options: Any) -> ConversationEnv:
    """An environment in which every tool succeeds unless `base` says otherwise; made once for each set of options."""
    return ConversationEnv(**{"base": 1.0, "planner": "exact", **options})


def play_scripted(
    policy: LlmPolicy[Any],
    prompt: str = "optimal",
    task: Mapping[str, Any] = TASK,
    seed: int = 0,
    **options: Any,
) -> EpisodeRecord:
    """Play one episode; `options` are the environment's (`protocol="native"`, `base=0.8`, `max_turns=5`, ...)."""
    env = environment(**options)
    return play_episode(env, policy, Task.from_mapping(task, env.library), prompt, seed)


def scripted(*lines: Line) -> ScriptedChatModel:
    """A model that says these lines, one for each call."""
    return ScriptedChatModel(lines)
