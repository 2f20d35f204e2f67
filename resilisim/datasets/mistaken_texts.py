"""Messages that execute nothing where a call is due, worded and filled in like the call that they stand beside."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from resilisim.datasets.demonstrator import Demonstrator, purpose
from resilisim.datasets.rollout import Stage
from resilisim.policies.scripted import messages
from resilisim.seeding import Draws
from resilisim.simulator import Message, Problem
from resilisim.simulator.state import EpisodeState, is_done
from resilisim.tool_library import Tool, ToolLibrary
from resilisim.tool_library.parameters import check_parameters
from resilisim.workflows.templating import escape_line, inline_json

# Announcements: {tool} is the tool's name, {given} its parameters with the words before them, or nothing.
_ANNOUNCEMENTS = (
    "Next I will run {tool}{given}.",
    "I run {tool} now{given}.",
    "The next step is {tool}{given}.",
    "Now it is the turn of {tool}{given}; I wait for its result.",
    "To go on with the work order I call the tool {tool}{given} and look at what it returns.",
)
_QUERIES = (
    "other tools for {words}",
    "{purpose}",
    "a tool that is better than {words} for this: {purpose}",
)
_MISNAMED = ("{name}_value", "input_{name}", "{name}s")  # what somebody who remembers badly could write


def mistaken_texts(
    stage: Stage, problem: Problem, state: EpisodeState, agent: Demonstrator, said: Message, draws: Draws
) -> Iterator[str]:
    """Yield messages that give up, search, announce a call, or make one that is refused.

    Args:
        stage: Where the episode is played.
        problem: The task's numbers.
        state: A running state.
        agent: Who is in that state.
        said: Its message; all but giving up needs a call that is beside it.
        draws: Draws the wording.
    """
    if not is_done(problem, state):
        yield messages.FINISH
    if said.kind != "execute" or said.tool is None:
        return
    tool, parameters = stage.library[said.tool], agent.parameters(said.tool)
    words = {"words": _words(tool.name), "purpose": escape_line(purpose(tool))}
    yield messages.search(draws.choice(_QUERIES).format_map(words))
    yield _announcement(tool, parameters, stage, draws)
    # Beside a call that leaves out what the tool requires, a refused one would not be wrong for what it changes alone.
    if not check_parameters(tool, parameters, "strict"):
        yield messages.call(_unknown_name(tool.name, stage.library), parameters)
        yield messages.call(tool.name, _with_a_flaw(tool, parameters, draws))
        if stage.parameters == "strict" and parameters:
            left_out = draws.choice(list(parameters))
            yield messages.call(tool.name, {name: value for name, value in parameters.items() if name != left_out})


def _announcement(tool: Tool, parameters: Mapping[str, Any], stage: Stage, draws: Draws) -> str:
    """Return a text that means to be a call and is none: words alone, or a call without its tags."""
    given = inline_json(parameters) if parameters else ""
    bare = f"{tool.name} {given}".rstrip()
    forms = [text.format(tool=tool.name, given=f" with {given}" if given else "") for text in _ANNOUNCEMENTS]
    forms.append(bare)
    if stage.protocol == "text":
        forms += [f"<tool_call>{bare}", f"<call>{bare}</call>"]
    return draws.choice(forms)


def _with_a_flaw(tool: Tool, parameters: Mapping[str, Any], draws: Draws) -> dict[str, Any]:
    """Return parameters of which one has another name than the tool's, is of another type, or is one too many."""
    taken = {parameter.name for parameter in tool.parameters}
    if not parameters:
        return {_free_name("input", taken): _words(tool.name)}
    changed = draws.choice(list(parameters))
    flaw = draws.choice(("name", "type", "surplus"))
    if flaw == "name":
        wrong = _free_name(draws.choice(_MISNAMED).format(name=changed), taken)
        return {wrong if name == changed else name: value for name, value in parameters.items()}
    if flaw == "type":
        wrapped = {name: [value] if name == changed else value for name, value in parameters.items()}
        if check_parameters(tool, wrapped, "lenient"):
            return wrapped
    return {**parameters, _free_name(draws.choice(_MISNAMED).format(name=changed), taken): parameters[changed]}


def _free_name(wanted: str, taken: set[str]) -> str:
    while wanted in taken:
        wanted += "_value"
    return wanted


def _unknown_name(tool: str, library: ToolLibrary) -> str:
    """Return a name that nobody has and that somebody who remembers badly could write."""
    guess = "_".join(reversed(tool.split("_")))
    while library.resolve(guess) is not None:
        guess += "_tool"
    return guess


def _words(tool: str) -> str:
    return " ".join(re.findall(r"[^\W_]+", tool))
