"""Tasks made better by a language model: descriptions rewritten, or whole tasks designed; everything is checked.

A task that the model does not get right stays as the rules made it, with the reason in its metadata.
"""

from resilisim.tasks.enhancement.designing import DesignMode
from resilisim.tasks.enhancement.dry_run import CallForecast, forecast_calls
from resilisim.tasks.enhancement.enhancer import EnhancementMode, EnhancementOptions, TaskEnhancer
from resilisim.tasks.enhancement.files import EnhancedTasksFile
from resilisim.tasks.enhancement.outcomes import Enhancement, EnhancementTotals, Refusal
from resilisim.tasks.enhancement.rewriting import RewriteMode
from resilisim.tasks.enhancement.running import enhance_tasks

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
