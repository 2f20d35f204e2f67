"""Which processes a test has left behind."""

from __future__ import annotations

import os
from pathlib import Path


def live_children() -> set[int]:
    """Children of this process that still run."""
    children = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if int(parent) == os.getpid() and state != "Z":
                children.add(int(entry.name))
    return children
