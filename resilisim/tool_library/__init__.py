"""Tools: what they are, the 30 that ship, your own libraries, parameters, MCP definitions, retrieval.

Importing this package loads neither torch nor faiss; `retrieval` and `embeddings` load them when they need them.
"""

from __future__ import annotations

from resilisim.tool_library.library import ToolLibrary, default_library, load_library
from resilisim.tool_library.retrieval import Retriever, ToolHit
from resilisim.tool_library.tool import ErrorSpec, Parameter, ReturnValue, Tool

__all__ = [
    "ErrorSpec",
    "Parameter",
    "Retriever",
    "ReturnValue",
    "Tool",
    "ToolHit",
    "ToolLibrary",
    "default_library",
    "load_library",
]
