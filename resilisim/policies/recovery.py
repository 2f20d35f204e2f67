"""Patterns of recovery that people write into pipelines, as policies: backoff, circuit breaker, alternative first.

Each follows a plan as `PlanFollower` does (or makes one of what it finds), reads nothing but whether a call succeeded,
and does one thing about failures. What that is worth, beside V*, is what they are for.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Annotated, Final

from annotated_types import Ge

from resilisim.bounds import checked
from resilisim.envs.reply import Info
from resilisim.policies.base import WAIT_TEXT, call_message, is_closing, search_message, succeeded_tool
from resilisim.policies.scripted import PlanFollower
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.workflows import PlannedStep

AtLeastOne = Annotated[int, Ge(1)]
LONGEST_BACKOFF: Final = 4  # turns


class RetryBackoff(PlanFollower):
    """Tries a step again after ever longer pauses, and gives it up after some attempts.

    After the first failure of a step it lets one turn pass, then two, then four; where a law without time offers no
    waiting, it tries again at once. A step that is given up is left out, and the plan goes on without it.

    Args:
        attempts: Calls of a step, the first included.
        pass_parameters: Whether the plan's parameters are passed.
    """

    name = "retry-backoff"

    def __init__(self, attempts: int = 4, pass_parameters: bool = True) -> None:
        super().__init__(pass_parameters)
        self._attempts: int = checked(AtLeastOne, "attempts", attempts)
        self._can_wait, self._pause = False, 0

    def reset(self, observation: str, info: Info) -> None:
        """Read the plan in the prompt."""
        super().reset(observation, info)
        self._can_wait, self._pause = bool(info.get("offers_wait")), 0

    def memory_beside_state(self) -> Hashable:
        """Its messages depend on how far it is in its plan, its attempts and its pause (`base.memory_of`)."""
        tries = self._tries if self._steps and self._tried is self._steps[0] else 0
        queries = None if self._queries is None else len(self._queries)
        return self._messages, len(self._steps), tries, queries, self._pause

    def _read_reply(self, info: Info) -> None:
        super()._read_reply(info)
        if not self._steps or self._tried is not self._steps[0] or "execution" not in info:
            return
        if self._tries >= self._attempts:
            self._steps = self._steps[1:]
        elif self._can_wait:
            self._pause = min(2 ** (self._tries - 1), LONGEST_BACKOFF)

    def _next(self, info: Info) -> str:
        self._leave()
        if self._pause and self._steps and not is_closing(info):
            self._pause -= 1
            return WAIT_TEXT
        self._pause = 0
        return super()._next(info)


class CircuitBreaker(PlanFollower):
    r"""Leaves a tool alone for a while after some failures in a row, then tries it once (half open).

    Meanwhile it goes on with the next step whose tool is not left alone. Where there is none it lets turns pass; where
    a law without time offers no waiting, it tries the first one after all.

    Args:
        failures: Failures of a tool in a row that open its circuit; one more opens it again.
        cooldown: Messages for which an open circuit stays open.
        pass_parameters: Whether the plan's parameters are passed.
    """

    name = "circuit-breaker"

    def __init__(self, failures: int = 2, cooldown: int = 2, pass_parameters: bool = True) -> None:
        super().__init__(pass_parameters)
        self._most: int = checked(AtLeastOne, "failures", failures)
        self._cooldown: int = checked(AtLeastOne, "cooldown", cooldown)
        self._forget(offers_wait=False)

    def _forget(self, offers_wait: bool) -> None:
        self._can_wait = offers_wait
        self._failures: Mapping[str, int] = {}  # in a row, by tool
        self._closes: Mapping[str, int] = {}  # the message from which on a tool is tried again

    def reset(self, observation: str, info: Info) -> None:
        """Read the plan in the prompt."""
        super().reset(observation, info)
        self._forget(bool(info.get("offers_wait")))

    def memory_beside_state(self) -> Hashable:
        """Its messages depend on the steps left, their failures and the open circuits (`base.memory_of`)."""
        steps = tuple(step.tool for step in self._steps)
        counts = tuple(sorted(self._failures.items())), tuple(sorted(self._closes.items()))
        tried = None if self._tried is None else self._tried.tool
        queries = None if self._queries is None else len(self._queries)
        return self._messages, steps, tried, self._tries, counts, queries

    def _read_reply(self, info: Info) -> None:
        step = self._tried
        if step is None or "execution" not in info:
            return
        if succeeded_tool(info) is not None:
            self._steps = tuple(other for other in self._steps if other is not step)
            self._failures = {**self._failures, step.tool: 0}
            return
        failures = self._failures.get(step.tool, 0) + 1
        self._failures = {**self._failures, step.tool: failures}
        if failures >= self._most:
            self._closes = {**self._closes, step.tool: self._messages + self._cooldown}

    def _next(self, info: Info) -> str:
        self._leave()
        ready = [step for step in self._steps if self._closes.get(step.tool, 0) <= self._messages]
        if not self._steps or is_closing(info) or (ready and ready[0] is self._steps[0]):
            return super()._next(info)
        if ready:
            return self._call(ready[0])
        return WAIT_TEXT if self._can_wait else super()._next(info)


class AlternativeFirst(PlanFollower):
    """Turns to another tool as soon as one fails, and back when that fails, too.

    The other tool is the first of those that the library names as equivalents; else the first that a search for the
    words of the tool's name shows beside it, which takes a turn, once a tool. A step is done when either has succeeded.
    Tools of the plan itself are no alternatives.

    Args:
        pass_parameters: Whether the plan's parameters are passed; alternatives are called without any.
        library: The tools; None takes the default library.
    """

    name = "alternative-first"

    def __init__(self, pass_parameters: bool = True, library: ToolLibrary | None = None) -> None:
        super().__init__(pass_parameters)
        self._library = default_library() if library is None else library
        self._forget()

    def _forget(self) -> None:
        self._planned: tuple[str, ...] = tuple(step.tool for step in self._steps)
        self._alternatives: Mapping[str, str | None] = {}  # by tool; None where there is none
        self._seeks: str | None = None  # the tool whose alternative the latest message searched for
        self._turns_to: str | None = None  # the tool to call in place of the step's

    def reset(self, observation: str, info: Info) -> None:
        """Read the plan in the prompt."""
        super().reset(observation, info)
        self._forget()

    def memory_beside_state(self) -> Hashable:
        """Its messages depend on the steps left, the alternatives known and whose turn it is (`base.memory_of`)."""
        tries = self._tries if self._steps and self._tried is self._steps[0] else 0
        queries = None if self._queries is None else len(self._queries)
        alternatives = tuple(sorted(self._alternatives.items(), key=str))
        return self._messages, len(self._steps), tries, queries, alternatives, self._seeks, self._turns_to

    def _read_reply(self, info: Info) -> None:
        before, self._seeks = self._seeks, None
        if not self._steps or self._tried is None:
            return
        tool = self._steps[0].tool
        if succeeded_tool(info) is not None:
            self._steps, self._turns_to = self._steps[1:], None
        elif before is not None:
            planned = {*self._planned, *(step.tool for step in self._steps)}
            others = [hit["name"] for hit in info.get("search") or () if hit["name"] not in planned]
            self._alternatives = {**self._alternatives, before: others[0] if others else None}
            self._turns_to = self._alternatives[before]
        elif "execution" in info and self._turns_to is None:
            self._seek(tool)
        else:
            self._turns_to = None

    def _seek(self, tool: str) -> None:
        """Turn to the alternative of a tool, or search for one."""
        if tool not in self._alternatives:
            known = self._library.resolve(tool)
            equivalents = () if known is None else self._library[known].equivalents
            if not equivalents:
                self._seeks = tool
                return
            self._alternatives = {**self._alternatives, tool: equivalents[0]}
        self._turns_to = self._alternatives[tool]

    def _next(self, info: Info) -> str:
        self._leave()
        if not self._steps or is_closing(info):
            return super()._next(info)
        if self._seeks is not None:
            return search_message(self._seeks.replace("_", " "))
        if self._turns_to is not None:
            return call_message(self._turns_to)
        return super()._next(info)

    def _call(self, step: PlannedStep) -> str:
        self._planned = (*self._planned, *({step.tool} - set(self._planned)))
        return super()._call(step)
