"""What the environment answers: result or error, progress, and what to do next."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from resilisim.envs.reply import ENDINGS, Progress
from resilisim.errors import InvalidInputError
from resilisim.simulator.episode import Event
from resilisim.simulator.law import TICKS_PER_SECOND, Law
from resilisim.simulator.problem import Problem, is_awaiting_closing
from resilisim.simulator.state import EpisodeState
from resilisim.simulator.tool_status import SUCCEEDED
from resilisim.tool_library import Parameter, Tool
from resilisim.tool_library.tool import DEPENDENCY_ERROR, standard_error_specs

_CALL_HINT = {
    "text": "Use <tool_search>query</tool_search>, <tool_info>name</tool_info> or <tool_call>name</tool_call>, one a "
    "message, or say <finish/> when the task is complete.",
    "native": "Use one of the functions tool_search, tool_info, tool_call or finish.",
    "functions": "Call one of the functions, or the function finish when the task is complete.",
}
_WAIT_HINT = {
    "text": "<wait/> lets a turn pass.",
    "native": "The function wait lets a turn pass.",
    "functions": "The function wait lets a turn pass.",
}
WAITED = "A turn has passed; nothing was executed."
# What a reply repeats of a message is cut, so that a long message cannot make a longer reply.
_EXCERPT_LENGTH = 200
_PROBLEM_LENGTH = 500
_MAX_PROBLEMS = 20
_SHOWN_PARAMETERS = 2

_OUTPUT_MARK = " executed successfully.\nOutput: "

# Made once: `json.dumps` with an option makes one for every call. Outputs are plain JSON values, which hold no circles.
_OUTPUT_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False)


def execution_reply(event: Event) -> str:
    """Return the result or the error of an execution."""
    if event.failure is None:
        output = _OUTPUT_ENCODER.encode(event.output)
        return f"{event.tool}{_OUTPUT_MARK}{output}"
    failure = event.failure
    if failure.code != DEPENDENCY_ERROR:
        return f"{event.tool} failed.\nError: {failure.code}: {failure.message}"
    lines = [f"{event.tool} failed because of its dependencies.", f"Error: {failure.code}"]
    lines += [f"- {name} has not been executed." for name in failure.not_executed]
    lines += [f"- {name} was executed, but has not succeeded yet." for name in failure.failed]
    lines.append("Recommendation: run each of these first, then try again.")
    return "\n".join(lines)


def rejection_reply(name: str, problems: Sequence[str], known: bool) -> str:
    """Return the answer to a call that is not executed."""
    code = "INVALID_PARAMETERS" if known else "UNKNOWN_TOOL"
    lines = [f"Error: {code}: {line}" for line in _shortened(problems)]
    return "\n".join([f"The call of {_excerpt(name)} was rejected and not executed.", *lines])


def search_reply(query: str, hits: Sequence[tuple[Tool, float]], detail: str) -> str:
    """Return the tools that a search found, with their relevance."""
    lines = [f"Tools found for {_excerpt(query)!r}:"]
    for number, (tool, score) in enumerate(hits, start=1):
        if detail == "full":
            lines += ["", f"{number}. {tool.name}", f"   Relevance: {score:.3f}", _indent(describe_tool(tool))]
        else:
            lines.append(f"{number}. {tool.name} (relevance {score:.3f}): {tool.description}")
    return "\n".join(lines)


def describe_tool(tool: Tool) -> str:
    """Return everything that an agent may know about a tool."""
    lines = [f"Category: {tool.category}", f"Description: {tool.description}", "Parameters:"]
    for parameter in tool.parameters:
        need = "required" if parameter.required else f"optional, default {json.dumps(parameter.default)}"
        lines.append(f"- {parameter.name} ({parameter.type}, {need}): {parameter.description}")
    lines.append("Returns:")
    lines += [f"- {value.name} ({value.type}): {value.description}" for value in tool.returns]
    lines.append("Possible errors:")
    lines += [f"- {error.code}: {error.description}" for error in tool.errors]
    lines.append("Dependencies (run these first): " + (", ".join(tool.dependencies) or "none"))
    return "\n".join(lines)


def info_reply(name: str, tool: Tool | None, problems: Sequence[str]) -> str:
    """Return the answer to a request for one tool."""
    if tool is None:
        return "\n".join([f"No such tool: {_excerpt(name)}.", *_shortened(problems)])
    return f"{tool.name}\n{describe_tool(tool)}"


def format_reply(problems: Sequence[str], calling: str, offers_wait: bool = False) -> str:
    """Return the reminder of how to write a message."""
    lines = [f"Error: {line}" for line in _shortened(problems)]
    hint = f"{_CALL_HINT[calling]} {_WAIT_HINT[calling]}" if offers_wait else _CALL_HINT[calling]
    return "\n".join(["The message could not be read.", *lines, hint])


_CODES_OF_PARTS: Final = ("RATE_LIMIT_ERROR", "SERVICE_UNAVAILABLE", "TIMEOUT")


def codes_of(law: Law) -> set[str]:
    """Return the codes of failures that a law can draw."""
    codes = {*standard_error_specs(), *_CODES_OF_PARTS, *law.errors}
    if law.error_kinds is not None:
        codes |= {*law.error_kinds.input_codes, *law.error_kinds.access_codes}
    return codes


def progress(problem: Problem, state: EpisodeState, num_ignored: int, finish: str) -> Progress:
    """Return how far an episode is; `finish` is how completion is signalled."""
    seconds = _seconds_left(problem, state) if problem.dynamics.rules.budget >= 0 else None
    return Progress(
        state.status.count(SUCCEEDED),
        problem.rules.max_turns - state.turns_used,
        seconds,
        is_awaiting_closing(problem, state),
        num_ignored,
        state.ended_by,
        finish,
    )


def terse_reply(event: Event, extra: Mapping[str, Any], problem: Problem, state: EpisodeState) -> str:
    """Return the whole answer to a message in one line: what came of it, and which message of how many it was.

    Terse plans say up to which message a step may be tried, so that a small model finds the number that it has to look
    for and need not subtract.
    `extra` is what the environment's info says about the message.
    """
    failure = event.failure
    if event.executed:
        said = f"{event.tool} {'succeeded' if failure is None else f'failed: {failure.code}'}"
        needed = [name for names in extra.get("dependency_problems", {}).values() for name in names]
        said += f", it needs {', '.join(needed)}" if needed else ""
        if extra.get("error_kind") == "input":
            said += f", it takes {_parameters_in_a_line(problem.library[event.tool or ''])}"
    elif "search" in extra:
        said = "Found " + ", ".join(hit["name"] for hit in extra["search"])
    elif "tool_info" in extra:
        needed = extra["tool_info"]["dependencies"]
        said = f"{extra['tool_info']['name']} needs {', '.join(needed) or 'no other tool'}"
    elif "problems" in extra:
        said = "Error: " + "; ".join(_shortened(extra["problems"]))
    else:
        said = WAITED.rstrip(".") if event.message.kind == "wait" else ""
    if state.ended_by is not None:
        ending = ENDINGS[state.ended_by]
    else:
        number, seconds = f"message {state.turns_used} of {problem.rules.max_turns}", _seconds_left(problem, state)
        ending = f"{number}." if seconds is None else f"{number}, {seconds:g} seconds left."
    return f"{said}; {ending}" if said else ending


def shown_parameters(tool: Tool) -> Sequence[Parameter]:
    """Return the parameters that a terse reply names where an error asks for another one."""
    return tool.parameters[:_SHOWN_PARAMETERS]


def _parameters_in_a_line(tool: Tool) -> str:
    shown = [f"{parameter.name} ({parameter.type})" for parameter in shown_parameters(tool)]
    more = ["..."] if len(tool.parameters) > len(shown) else []
    return ", ".join(shown + more) or "no parameters"


def _seconds_left(problem: Problem, state: EpisodeState) -> float | None:
    """Return how much of the time is left that an episode has; None if it has any."""
    dynamics = problem.dynamics
    if dynamics.rules.budget < 0:
        return None
    return (dynamics.rules.budget - state.parts[dynamics.rules.at_time]) / TICKS_PER_SECOND


def tool_facts(tool: Tool) -> Mapping[str, Any]:
    """Return what `info["tool_info"]` holds about a tool."""
    return {
        "name": tool.name,
        "category": tool.category,
        "description": tool.description,
        "parameters": [parameter.name for parameter in tool.parameters],
        "dependencies": list(tool.dependencies),
    }


def _excerpt(text: str) -> str:
    return text if len(text) <= _EXCERPT_LENGTH else text[:_EXCERPT_LENGTH] + "..."


def _shortened(problems: Sequence[str]) -> list[str]:
    lines = [line if len(line) <= _PROBLEM_LENGTH else line[:_PROBLEM_LENGTH] + "..." for line in problems]
    if len(lines) > _MAX_PROBLEMS:
        lines[_MAX_PROBLEMS:] = [f"and {len(lines) - _MAX_PROBLEMS} more"]
    return lines


def _indent(text: str) -> str:
    return "\n".join("   " + line for line in text.splitlines())


# A record keeps what was sent, as text. Who reads a saved episode takes it apart here, beside what puts it together;
# while an episode is played nobody does (`reply.Reply`).


def words_in(reply: str) -> str:
    """Return what a saved reply says of its message, without the progress behind it."""
    return reply.rpartition("\n\n")[0].strip() or reply


def output_in(reply: str) -> Any:
    """Return the output that a saved reply to a successful call shows (`execution_reply`).

    Raises:
        InvalidInputError: It shows none that is whole.
    """
    _, mark, rest = reply.partition(_OUTPUT_MARK)
    try:
        return json.loads(rest.partition("\n")[0]) if mark else {}
    except ValueError as error:
        raise InvalidInputError(f"the output of a reply is not whole: {error}") from error
