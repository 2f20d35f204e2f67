"""Why a message is sent, in a sentence: what stands under "Reasoning:" where a prompt asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from resilisim.policies.scripted.reading import ordered_steps
from resilisim.simulator import Message, Problem
from resilisim.simulator.law import FAILED, SUCCEEDED
from resilisim.simulator.state import EpisodeState, is_done
from resilisim.workflows.templating import escape_line

# What an agent that makes the mistake would think, for prompts that ask for its reasoning.
MISTAKEN_REASONS: Final[Mapping[str, str]] = {
    "missing_dependency_first": "This tool does what the work order asks for, so I run it at once.",
    "wrong_order": "The work order asks for this, too, so I do it now.",
    "unneeded_tool": "This tool might help with the work, so I run it.",
    "repeated_success": "I run this tool once more, to be on the safe side.",
    "suboptimal_choice": "This tool belongs to the work, so I run it next.",
    "wasted_turn": "There may be a better tool than those I know, so I look for one.",
    "repeated_search": "I ask once more, in case something else turns up.",
    "format_error": "I know which tool to run next.",
    "rejected_call": "I know how to call the tool for the next operation.",
    "gave_up_early": "What matters has been done, so I report completion.",
    "no_completion_signal": "There may be something left to do.",
}


def opening(description: str) -> str:
    """Return what the first message of an episode says about the whole work order."""
    steps = [f"{number}. {escape_line(step)}" for number, step in enumerate(ordered_steps(description), start=1)]
    return "\n".join(
        [
            "The work order asks for these operations, in this order:",
            *steps,
            "Each needs a tool that does it. A tool may depend on others, which then have to run before it.",
        ]
    )


def reasoning(problem: Problem, state: EpisodeState, message: Message) -> str:
    """Return the reason for a message; foreign text in it is escaped, so that it holds no tag.

    Args:
        problem: The task's numbers.
        state: The state in which the message is sent.
        message: An optimal message, one that looks something up, or the closing message of an episode that failed.
    """
    if message.kind == "search":
        return f"I look for a tool that does this: {escape_line(message.query or '')}."
    if message.kind == "info":
        return f"I need to know what {message.tool} takes and which tools have to run before it."
    if message.kind == "execute" and message.tool is not None:
        return _reason_of_call(problem, state, problem.library.index(message.tool))
    if is_done(problem, state):
        return "Everything that the work order asks for has succeeded, in its order, so I report completion."
    return "No turn is left and some of the work is still open, so I must not report completion."


def _reason_of_call(problem: Problem, state: EpisodeState, tool: int) -> str:
    names = problem.library.names
    name = names[tool]
    if state.status[tool] == FAILED:
        return f"{name} failed and is still needed. Any tool can fail, so I run it again."
    dependents = [
        names[other]
        for other in problem.closure
        if tool in problem.dependencies[other] and state.status[other] != SUCCEEDED
    ]
    if problem.place[tool] >= 0 and state.status[tool] != SUCCEEDED:
        missing = [names[other] for other in problem.dependencies[tool] if state.status[other] != SUCCEEDED]
        if missing:
            return (
                f"{name} does the next operation of the work order. It depends on {_listed(missing)}, but turns are "
                "too few for that, so I take the risk."
            )
        return f"{name} does the next operation of the work order, and what it depends on has succeeded."
    if dependents and state.status[tool] != SUCCEEDED:
        return f"{_listed(dependents)} depends on {name}, so I run {name} first to make success likelier."
    return f"{name} does none of the work, but is likely to succeed, and a success ends a row of failed runs."


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
