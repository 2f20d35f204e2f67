"""The records world: questions over tables, texts and graphs that nobody knows, and twelve tools that really look."""

from resilisim.worlds.records.contents import Sizes
from resilisim.worlds.records.database import QueryLimits
from resilisim.worlds.records.grading import grade_answer
from resilisim.worlds.records.toolqa import load_toolqa
from resilisim.worlds.records.tools import records_library
from resilisim.worlds.records.world import (
    RecordsWorld,
    generate_records,
    load_records,
    records_card,
    records_v1,
    write_records,
)

__all__ = [
    "QueryLimits",
    "RecordsWorld",
    "Sizes",
    "generate_records",
    "grade_answer",
    "load_records",
    "load_toolqa",
    "records_card",
    "records_library",
    "records_v1",
    "write_records",
]
