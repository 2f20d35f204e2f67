"""Worlds: what calls really do, and what a right answer is, where more than an order of names counts."""

from __future__ import annotations

from resilisim.worlds.base import (
    DoneCall,
    Grade,
    ReferenceCall,
    ToolError,
    Workspace,
    World,
    load_world,
    reference_calls,
    resolve_parameters,
    world_names,
)

__all__ = [
    "DoneCall",
    "Grade",
    "ReferenceCall",
    "ToolError",
    "Workspace",
    "World",
    "load_world",
    "reference_calls",
    "resolve_parameters",
    "world_names",
]
