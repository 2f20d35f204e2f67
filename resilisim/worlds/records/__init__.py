"""The records world: questions over tables, texts and graphs that nobody knows, and twelve tools that really look."""

from resilisim.worlds.records.data import Sizes
from resilisim.worlds.records.database import QueryLimits
from resilisim.worlds.records.tools import records_library

__all__ = ["QueryLimits", "Sizes", "records_library"]
