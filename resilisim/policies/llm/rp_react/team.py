"""Which executors there are, and which tools each of them has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from resilisim.errors import InvalidInputError, unknown_name
from resilisim.policies.llm.tools import ToolSpec

ALL: Final = "all"
_NAME = re.compile(r"[A-Za-z][\w-]{0,30}\Z")
_ADDRESS = re.compile(r"\s*([A-Za-z][\w-]{0,30})\s*:\s*")


@dataclass(frozen=True, slots=True)
class Executor:
    """An executor.

    Attributes:
        name: How the planner addresses it.
        tools: Names of its tools; None is all of them.
    """

    name: str
    tools: tuple[str, ...] | None = None

    def specs(self, specs: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
        """Return its tools out of all.

        Raises:
            InvalidInputError: One does not exist.
        """
        if self.tools is None:
            return tuple(specs)
        by_name = {spec.name: spec for spec in specs}
        for name in self.tools:
            if name not in by_name:
                raise unknown_name("tool", name, by_name, f"option executors, executor {self.name!r}")
        return tuple(by_name[name] for name in self.tools)


def read_team(text: str) -> tuple[Executor, ...]:
    """Read the option `executors`: "all", one that has every tool, or `search:tool_search+tool_info;run:tool_call`.

    Raises:
        InvalidInputError: It cannot be read, or two have the same name.
    """
    if text.strip().lower() == ALL:
        return (Executor("executor"),)
    team = tuple(_executor(part, text) for part in text.split(";") if part.strip())
    names = [executor.name for executor in team]
    if not team or len(set(names)) < len(names):
        problem = "two executors have the same name" if team else "there is none"
        raise InvalidInputError(f"option executors={text!r}: {problem}")
    return team


def _executor(part: str, text: str) -> Executor:
    name, colon, listed = (piece.strip() for piece in part.partition(":"))
    tools = read_tools(listed)
    if not colon or not _NAME.match(name) or tools == ():
        raise InvalidInputError(f"option executors={text!r}: expected all, or NAME:TOOL+TOOL;NAME:TOOL, not {part!r}")
    return Executor(name, tools)


def read_tools(text: str) -> tuple[str, ...] | None:
    """Read names of tools, `tool_call+tool_search`; None for "all"."""
    if text.strip().lower() == ALL:
        return None
    return tuple(dict.fromkeys(name.strip() for name in text.split("+") if name.strip()))


def offloaded_tools(text: str, specs: Sequence[ToolSpec]) -> tuple[str, ...] | None:
    """Read the option `offload_tools`: names of tools; None for "all".

    Raises:
        InvalidInputError: A tool does not exist.
    """
    there = [spec.name for spec in specs]
    names = read_tools(text)
    for name in names or ():
        if name not in there:
            raise unknown_name("tool", name, there, "option offload_tools")
    return names


def checked_specs(tools: object) -> tuple[ToolSpec, ...]:
    """Return the tools of a toolbox as they were given to a policy.

    Raises:
        InvalidInputError: They are something else, such as a text in the policy's brackets.
    """
    given = tuple(tools) if isinstance(tools, Iterable) else (tools,)
    specs = tuple(spec for spec in given if isinstance(spec, ToolSpec))
    if len(specs) < len(given):
        raise InvalidInputError(f"tools={tools!r}: expected the ToolSpecs of a toolbox; options take names of tools")
    return specs


def addressed(question: str, team: Sequence[Executor]) -> tuple[Executor, str] | str:
    """Return who is asked and what, or what is wrong.

    A single executor needs no address. One of several is named before the question: `search: which tools ...`.
    """
    if len(team) == 1:
        return team[0], question
    found = _ADDRESS.match(question)
    names = ", ".join(executor.name for executor in team)
    if found is None:
        return f"the sub-question does not begin with the name of an executor and a colon ({names})"
    by_name = {executor.name.lower(): executor for executor in team}
    executor = by_name.get(found.group(1).lower())
    if executor is None:
        return f"there is no executor {found.group(1)!r}, only {names}"
    rest = question[found.end() :].strip()
    return (executor, rest) if rest else "the sub-question is empty behind the executor's name"
