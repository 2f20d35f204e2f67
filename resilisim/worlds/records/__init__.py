"""The records world: questions over tables, texts and graphs that nobody knows, and twelve tools that really look."""

from resilisim.worlds.records.building import grade_answer
from resilisim.worlds.records.contents import Recipe
from resilisim.worlds.records.database import QueryLimits
from resilisim.worlds.records.toolqa import load_toolqa
from resilisim.worlds.records.tools import records_library
from resilisim.worlds.records.world import RecordsWorld, generated_records, records_card, records_v1

__all__ = [
    "QueryLimits",
    "Recipe",
    "RecordsWorld",
    "generated_records",
    "grade_answer",
    "load_toolqa",
    "records_card",
    "records_library",
    "records_v1",
]
