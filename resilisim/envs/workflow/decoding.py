"""What an action of Workflow-v0 means: the tuple of appendix D.2, for reading and for records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from resilisim.envs.workflow.actions import ACTION_TYPES, action_type_of, num_actions, tool_of
from resilisim.envs.workflow.context import WEIGHT_EMBEDDING, WEIGHT_PATTERN, WEIGHT_RULE
from resilisim.envs.workflow.core import WorkflowCore
from resilisim.envs.workflow.laws import pattern_confidence
from resilisim.envs.workflow.masking import confidence
from resilisim.errors import InvalidInputError
from resilisim.workflows.steps import step_parameters

SOURCES = ("rule", "embedding", "hybrid", "pattern")
NUM_ALTERNATIVES = 3
# Rule and embedding speak together if the smaller part is at least half of the larger one.
HYBRID_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class SemanticPart:
    """What retrieval says of an action's tool.

    Attributes:
        score: Similarity of the tool's text and the task's description, in [0, 1].
        source: What speaks most for the tool: one of SOURCES.
        alternatives: Other candidates of the task, the most similar first.
    """

    score: float
    source: str
    alternatives: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkflowAction:
    """An action, decoded.

    Attributes:
        type: One of `actions.ACTION_TYPES`.
        tool: Name of the tool, or None.
        semantic: What retrieval says of the tool; None without one.
        parameters: What the call would pass to the tool, from the task's inputs.
        confidence: Composite confidence of the semantic filter, in [0, 1]; 1 without a tool.
    """

    type: str
    tool: str | None
    semantic: SemanticPart | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    confidence: float = 1.0


def decode_action(core: WorkflowCore, action: int, env: int = 0) -> WorkflowAction:
    """Return what an action means in the present state of an environment.

    Args:
        core: `WorkflowEnv.core` or `WorkflowVectorEnv.core`.
        action: The action.
        env: Which environment of a batch.

    Raises:
        InvalidInputError: There is no such action.
    """
    num_tools = len(core.library)
    if not 0 <= action < num_actions(num_tools):
        raise InvalidInputError(f"action {action}: expected 0 to {num_actions(num_tools) - 1}")
    kind, tool = ACTION_TYPES[action_type_of(action, num_tools)], tool_of(action, num_tools)
    if tool < 0:
        return WorkflowAction(kind, None)
    episode, world = core.episodes[env], core.worlds[0]
    index = int(episode.task)
    record = core.records[index]
    similarity = max(0.0, float(record.similarity[tool]))
    pattern = float(pattern_confidence(episode, tool, world))
    candidates = [core.library.names[other] for other in record.candidates if other >= 0 and other != tool]
    semantic = SemanticPart(
        score=similarity,
        source=_source(float(core.context.rule_confidence[index, tool]), similarity, pattern),
        alternatives=tuple(candidates[:NUM_ALTERNATIVES]),
    )
    name = core.library.names[tool]
    return WorkflowAction(
        type=kind,
        tool=name,
        semantic=semantic,
        parameters=step_parameters(core.library[name], core.tasks[index].inputs, _last_tool(core, env)),
        confidence=float(confidence(episode, tool, record, world)),
    )


def _source(rule: float, similarity: float, pattern: float) -> str:
    """Return which weighted part of the composite confidence is the largest."""
    parts = np.array([WEIGHT_RULE * rule, WEIGHT_EMBEDDING * similarity])
    if WEIGHT_PATTERN * pattern > parts.max():
        return "pattern"
    if parts.min() >= HYBRID_SHARE * parts.max():
        return "hybrid"
    return "rule" if parts[0] > parts[1] else "embedding"


def _last_tool(core: WorkflowCore, env: int) -> str | None:
    """Return the tool that succeeded last, or None."""
    episode = core.episodes[env]
    length = int(episode.sequence_length)
    return core.library.names[episode.sequence[length - 1]] if length else None
