"""The records world: questions over tables, texts and graphs that nobody knows, and twelve tools that really look."""

from resilisim.worlds.records.question_set import grade_answer
from resilisim.worlds.records.toolqa import load_toolqa
from resilisim.worlds.records.world import records_card

__all__ = ["grade_answer", "load_toolqa", "records_card"]
