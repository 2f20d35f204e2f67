"""Worlds: what calls really do, where more than an order of names counts, and how answers are scored."""

from __future__ import annotations

from resilisim.worlds.base import (
    Grade,
    ReferenceCall,
    ToolError,
    Workspace,
    World,
    WorldFailed,
    load_world,
    world_names,
)

__all__ = ["Grade", "ReferenceCall", "ToolError", "Workspace", "World", "WorldFailed", "load_world", "world_names"]
