"""Tools: what they are, the 30 that ship, libraries of one's own, parameters, MCP definitions, retrieval.

Importing this package loads neither torch nor faiss; `resilisim.tool_library.retrieval` loads them when it needs them.
"""

from __future__ import annotations

from resilisim.tool_library.library import ToolLibrary, default_library, load_library
from resilisim.tool_library.model import (
    DEPENDENCY_ERROR,
    DependencyMetadata,
    Differentiation,
    ErrorSpec,
    Parameter,
    ReturnValue,
    Tool,
)
from resilisim.tool_library.parameters import check_parameters, mcp_definition, mcp_definitions
from resilisim.tool_library.retrieval import (
    LexicalRetriever,
    Retriever,
    TextIndex,
    ToolHit,
    ToolRetriever,
    default_retriever,
)

__all__ = [
    "DEPENDENCY_ERROR",
    "DependencyMetadata",
    "Differentiation",
    "ErrorSpec",
    "LexicalRetriever",
    "Parameter",
    "Retriever",
    "ReturnValue",
    "TextIndex",
    "Tool",
    "ToolHit",
    "ToolLibrary",
    "ToolRetriever",
    "check_parameters",
    "default_library",
    "default_retriever",
    "load_library",
    "mcp_definition",
    "mcp_definitions",
]
