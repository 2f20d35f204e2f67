"""How a task ended: done, with what it found, or failed, with whose failure it is and what the replanner is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from resilisim.policies.llm.kpi_chain.feedback import Component


@dataclass(frozen=True, slots=True)
class Done:
    """A task succeeded.

    Attributes:
        component: Who brought the result: extractor, reasoner, or the tool itself.
        entities: What it found: entity -> value.
        output: Its whole output, as text.
    """

    component: str
    entities: Mapping[str, Any] = field(hash=False)
    output: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """A task failed.

    Attributes:
        component: Which part failed.
        reason: Why, on one line.
        feedback: What the replanner is told.
    """

    component: Component
    reason: str
    feedback: str
