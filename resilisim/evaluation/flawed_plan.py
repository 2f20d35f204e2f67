"""Whether a message did what a flaw in its prompt's plan says.

Two readers follow an episode, one in the plan that was shown and one in the sound plan that it was made from. Both have
the same rule: a tool's success takes a reader behind the tool's next place in its plan, and a tool that does not stand
there any more leaves it where it is. A message obeys the flaw where it does what the shown plan says next and the sound
plan says something else. So nothing is put down to a flaw that a sound plan would have asked for as well, nor what an
agent does of its own accord after it left the plan (docs/decisions.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resilisim.errors import InvalidInputError
from resilisim.simulator.messages import Message
from resilisim.tool_library import ToolLibrary
from resilisim.tool_library.parameters import accepts, check_parameters
from resilisim.workflows.perturbation.values import as_json

_ADDED = ("inserted", "duplicated")
_OF_PARAMETERS = ("parameter_changed", "parameter_dropped")


class FlawedPlan:
    """A flawed plan that an agent was shown, and how far it has come in it.

    Args:
        shown: Tools of the plan's steps.
        edits: What was changed in the sound plan (`workflows.perturbation.Edit.to_mapping`).
        library: The tools.

    Raises:
        InvalidInputError: These are no edits of that plan.
    """

    def __init__(self, shown: Sequence[str], edits: Sequence[Mapping[str, Any]], library: ToolLibrary) -> None:
        try:
            self._sound = _Reader(sound_tools(shown, edits))
            self._changes = [_Change.of(edit) for edit in edits if edit["what"] in _OF_PARAMETERS]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise InvalidInputError(f"the edits of a flawed plan cannot be undone: {error!r}") from error
        self._shown = _Reader(shown)
        self._unfinished = set(shown)
        self._library = library

    def is_obeyed_by(self, message: Message) -> bool:
        """Return whether a message does what the shown plan says next, and what the sound one would not have said."""
        if message.kind == "execute":
            return self._shown.next == message.tool != self._sound.next
        if message.kind in ("finish", "stop"):
            return not self._unfinished and self._sound.next is not None
        return message.kind == "rejected" and self._shown.next == message.tool and self._is_refused_for_edits(message)

    def note_success(self, tool: str) -> None:
        """Note that a tool has succeeded."""
        self._shown.pass_by(tool)
        self._sound.pass_by(tool)
        self._unfinished.discard(tool)

    def _is_refused_for_edits(self, message: Message) -> bool:
        """Return whether a call was refused for values that a flaw put into its step, and for nothing else."""
        given = message.parameters
        here = [change for change in self._changes if change.place == self._shown.place and change.is_in(given)]
        restored = {**given, **{change.parameter: change.before for change in here}}
        tool = self._library[message.tool or ""]
        for mode in ("lenient", "strict"):
            if tuple(check_parameters(tool, given, mode)) == message.problems:
                return accepts(tool, restored, mode)
        return False  # refused for another reason than the schema


@dataclass(frozen=True, slots=True)
class _Change:
    """A parameter that a flaw changed, or dropped (then `after` is None).

    Attributes:
        place: The step's place in the plan that is shown.
        parameter: Its name.
        before: Its value in the sound plan.
        after: Its value in the plan that is shown, as JSON.
    """

    place: int
    parameter: str
    before: Any
    after: str | None

    @classmethod
    def of(cls, edit: Mapping[str, Any]) -> _Change:
        """Read an edit."""
        where = edit["where"]
        return cls(where["step"] - 1, where["parameter"], json.loads(edit["before"]), edit["after"])

    def is_in(self, parameters: Mapping[str, Any]) -> bool:
        """Return whether a call's parameters have the change."""
        if self.parameter not in parameters:
            return self.after is None
        return as_json(parameters[self.parameter]) == self.after


class _Reader:
    """Reads a plan along with what is run."""

    def __init__(self, tools: Sequence[str]) -> None:
        self._tools = tools
        self.place = 0

    @property
    def next(self) -> str | None:
        """The tool that the plan says to run next, None at its end."""
        return self._tools[self.place] if self.place < len(self._tools) else None

    def pass_by(self, tool: str) -> None:
        """Go on behind the next step that runs a tool, if there is one."""
        if tool in self._tools[self.place :]:
            self.place = self._tools.index(tool, self.place) + 1


def sound_tools(shown: Sequence[str], edits: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the tools of the plan that a flawed one was made from.

    Args:
        shown: Tools of the flawed plan's steps.
        edits: What was changed (`workflows.perturbation.Edit.to_mapping`).
    """
    tools = list(shown)
    elsewhere: set[int] = set()  # places in the flawed plan of steps that stood elsewhere, or nowhere
    returning: list[tuple[int, str]] = []  # places in the sound plan, and the tools that go back there
    for edit in edits:
        what, place, original = edit["what"], edit["where"]["step"] - 1, edit["where"]["original_step"]
        if what == "replaced":
            tools[place] = edit["before"]
        elif what == "swapped":
            tools[place], tools[place + 1] = tools[place + 1], tools[place]
        elif what == "removed":
            returning.append((original - 1, edit["before"]))
        elif what == "moved":
            elsewhere.add(place)
            returning.append((original - 1, tools[place]))
        elif what in _ADDED:
            elsewhere.add(place)
    sound = [tool for place, tool in enumerate(tools) if place not in elsewhere]
    for place, tool in sorted(returning):
        sound.insert(place, tool)
    return sound
