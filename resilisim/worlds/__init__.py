"""Worlds: what calls really do, where more than an order of names counts, and how answers are scored."""

from __future__ import annotations

from resilisim.worlds.base import (
    DoneCall,
    Grade,
    ReferenceCall,
    ToolError,
    Workspace,
    World,
    WorldFailed,
    load_world,
    names_world,
    reference_calls,
    resolve_parameters,
    world_names,
    world_task,
    world_tasks,
)

__all__ = [
    "DoneCall",
    "Grade",
    "ReferenceCall",
    "ToolError",
    "Workspace",
    "World",
    "WorldFailed",
    "load_world",
    "names_world",
    "reference_calls",
    "resolve_parameters",
    "world_names",
    "world_task",
    "world_tasks",
]
