"""Plays scripted replies to a policy; says what each reply would be in Conversation-v0's info."""

from __future__ import annotations

from typing import Any

Reply = dict[str, Any]


def ran(tool: str, success: bool = True, error: str | None = None) -> Reply:
    execution = {"tool": tool, "success": success, "error": None if success else error or "TIMEOUT", "attempt": 1}
    return {"event": "execute", "execution": execution}


def missing(tool: str, *not_executed: str, failed: tuple[str, ...] = ()) -> Reply:
    problems = {"not_executed": list(not_executed), "failed": list(failed)}
    return {**ran(tool, False, "DEPENDENCY_ERROR"), "dependency_problems": problems}


def found(*names: str) -> Reply:
    return {"event": "search", "search": [{"name": name, "score": 0.5} for name in names]}


def told(tool: str, *dependencies: str) -> Reply:
    return {"event": "info", "tool_info": {"name": tool, "dependencies": list(dependencies)}}


REJECTED: Reply = {"event": "rejected", "problems": ["no"]}


def drive(policy: Any, prompt: str, replies: list[Reply], turns: int = 10) -> list[str | None]:
    """Return the messages of a policy that meets these replies, one message more than there are replies."""
    start = {"turns_left": turns}
    policy.reset(prompt, dict(start))
    messages = [policy.act(prompt, dict(start))]
    for used, reply in enumerate(replies, start=1):
        messages.append(policy.act("reply", {"turns_left": turns - used, **reply}))
    return messages


def call(tool: str) -> str:
    return f"<tool_call>{tool}</tool_call>"


def ask(tool: str) -> str:
    return f"<tool_info>{tool}</tool_info>"


def search(query: str) -> str:
    return f"<tool_search>{query}</tool_search>"


FINISH = "<finish/>"
