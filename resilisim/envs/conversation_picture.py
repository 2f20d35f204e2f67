"""What a picture of Conversation-v0 shows (`envs.rendering`)."""

from __future__ import annotations

from resilisim.envs.rendering import Scene, ToolState
from resilisim.simulator import Episode, Message
from resilisim.tasks import Task

_STATUS_WORDS = ("not attempted", "failed", "success")


def scene_of(episode: Episode, task: Task, seed: int, succeeded: bool, said: str) -> Scene:
    """Return what there is to see of an episode, in which the environment has said something last."""
    problem, state, events = episode.problem, episode.state, episode.events
    done = state.ended_by is not None and succeeded
    tools = zip(problem.library.names, state.status, state.executions, strict=True)
    ending = "" if state.ended_by is None else "full success" if done else f"failure: {state.ended_by}"
    last = events[-1] if events else None
    return Scene(
        f"{task.instance_id}, seed {seed}",
        state.turns_used,
        problem.rules.max_turns,
        tuple(ToolState(name, _STATUS_WORDS[status], number) for name, status, number in tools),
        task.required_tools,
        "" if last is None else _shown_message(last.message),
        task.description if last is None else said,
        "not attempted" if last is None or last.success is None else "success" if last.success else "failed",
        ending,
        done,
    )


def _shown_message(message: Message) -> str:
    """Return a message as a picture shows it."""
    if message.kind in ("execute", "rejected", "info"):
        given = " ".join(f"{name}={value!r:.100}" for name, value in message.parameters.items())
        return f"{message.kind} {message.tool or ''} {given}"
    if message.kind == "search":
        return f"search {message.query or ''!r:.300}"
    return message.kind if message.kind in ("finish", "stop", "wait") else message.text
