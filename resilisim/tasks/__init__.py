"""Tasks: what an agent is asked to do, where it comes from, and which part of the data it belongs to."""

from resilisim.tasks.model import (
    COMPLEXITIES,
    MINIMUM_FOR_PARTIAL,
    TASK_TYPES,
    Task,
    minimum_for_partial,
)

__all__ = ["COMPLEXITIES", "MINIMUM_FOR_PARTIAL", "TASK_TYPES", "Task", "minimum_for_partial"]
