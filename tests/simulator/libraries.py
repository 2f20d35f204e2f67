"""Small tool libraries for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from resilisim.tool_library import ToolLibrary


def small_library(
    dependencies: Mapping[str, Sequence[str]], probabilities: Mapping[str, float] | None = None
) -> ToolLibrary:
    """Build a library from its dependency lists and, where given, success probabilities."""
    tools = [
        {
            "name": name,
            "description": f"Tool {name}.",
            "dependencies": list(needed),
            "success_probability": (probabilities or {}).get(name),
        }
        for name, needed in dependencies.items()
    ]
    return ToolLibrary.from_json(json.dumps({"tools": tools}), source="test library")


@st.composite
def libraries(draw: st.DrawFn, max_tools: int = 4) -> ToolLibrary:
    """Draw a library with random acyclic dependencies and success probabilities."""
    names = ["tool_a", "tool_b", "tool_c", "tool_d", "tool_e"][: draw(st.integers(1, max_tools))]
    dependencies = {
        name: draw(st.lists(st.sampled_from(names[:place]), unique=True)) if place else []
        for place, name in enumerate(names)
    }
    probabilities = {
        name: probability
        for name in names
        if (probability := draw(st.sampled_from([None, None, 0.5, 0.9, 1.0]))) is not None
    }
    return small_library(dependencies, probabilities)
