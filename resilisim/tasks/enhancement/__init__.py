"""Tasks made better by a language model: descriptions rewritten, or whole tasks designed; everything is checked.

A task that the model does not get right stays as the rules made it, with the reason in its metadata.
"""

from resilisim.tasks.enhancement.enhancer import (
    CallForecast,
    EnhancedTasksFile,
    Enhancement,
    EnhancementMode,
    EnhancementOptions,
    EnhancementTotals,
    TaskEnhancer,
    enhance_tasks,
    forecast_calls,
)
from resilisim.tasks.enhancement.modes import DesignMode, Refusal, RewriteMode

MODES = ("rewrite", "design")

__all__ = [
    "MODES",
    "CallForecast",
    "DesignMode",
    "EnhancedTasksFile",
    "Enhancement",
    "EnhancementMode",
    "EnhancementOptions",
    "EnhancementTotals",
    "Refusal",
    "RewriteMode",
    "TaskEnhancer",
    "enhance_tasks",
    "forecast_calls",
]
