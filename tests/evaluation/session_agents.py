"""Agents of a session that follow the plan in their prompt, and differ in what they do where a tool fails."""

from __future__ import annotations

from resilisim.envs import Session
from resilisim.workflows import parse_plan


def careful(session: Session) -> str:
    """Call each tool until it succeeds."""
    for name in parse_plan(session.prompt):
        while session.turns_left and not session.call(name).ok:
            pass
    return "done"


def crashing(session: Session) -> str:
    """Break where a tool fails."""
    for name in parse_plan(session.prompt):
        if not session.call(name).ok:
            raise RuntimeError("a tool has failed")
    return "done"


def dodging(session: Session) -> str:
    """Say that an endpoint was down where a tool fails."""
    for name in parse_plan(session.prompt):
        if not session.call(name).ok:
            raise ConnectionError("the endpoint is down, believe me")
    return "done"
