"""Which failure a call shows: its code and its text, as the tool documents it.

Both are functions of the episode's key: the same execution shows the same failure whenever it is replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeVar

from resilisim.seeding import PURPOSE_ERROR_CODE, PURPOSE_FAILURE, UNIFORM_BITS
from resilisim.simulator.compiled import draw_bits
from resilisim.simulator.law import TICKS_PER_SECOND, Law
from resilisim.simulator.messages import Message
from resilisim.simulator.problem import Problem
from resilisim.simulator.rulebook.build import weighed_errors
from resilisim.simulator.rulebook.drawn_results import OF_DEPENDENCIES
from resilisim.simulator.rulebook.dynamics import Draw, Dynamics
from resilisim.simulator.rulebook.lost_answers import shown_result
from resilisim.simulator.rulebook.rules import (
    DOWN,
    FAILURE,
    LIMITED,
    REFUSED,
    SLOW,
    is_opened,
    is_refused,
    messages_until_free,
)
from resilisim.simulator.state import EpisodeState
from resilisim.simulator.tool_status import FAILED, NOT_EXECUTED
from resilisim.tool_library import ErrorSpec, Tool
from resilisim.tool_library.tool import DEPENDENCY_ERROR

T = TypeVar("T")
# Whether failures draw any error that the tool documents, or only those after which calling again is sensible.
Errors = Literal["documented", "transient"]

TRANSIENT_CODES = ("TIMEOUT", "NETWORK_ERROR", "RATE_LIMIT_ERROR", "OPERATION_FAILED")
RATE_LIMIT_ERROR = "RATE_LIMIT_ERROR"
SERVICE_UNAVAILABLE = "SERVICE_UNAVAILABLE"
TIMEOUT = "TIMEOUT"
# What a tool that documents none of them fails with where failures are transient.
_NO_ANSWER = ErrorSpec("TIMEOUT", "The tool did not answer in time.", "The tool did not answer in time")


class Failure(NamedTuple):
    """A failure: a code from the tool's documentation, or DEPENDENCY_ERROR, and its text, slots filled.

    One that is `real` was not drawn from the law: the tool itself refused or failed (`worlds.ToolError`).
    """

    code: str
    message: str
    not_executed: tuple[str, ...] = ()  # dependencies that never were (DEPENDENCY_ERROR only)
    failed: tuple[str, ...] = ()  # dependencies that were executed and have not succeeded (likewise)
    real: bool = False


class PendingCall(NamedTuple):
    """A call that is made and not drawn yet: all that what it brings depends on.

    Attributes:
        problem: The task.
        state: The state in which the call is made.
        tool: Index of the tool.
        message: The call; its whole parameters tell inputs apart.
        key: Luck key of the tool.
        errors: Which errors failures draw where they have no kinds.
        unseen: What the state leaves open and has happened here (`Episode.unseen`).
    """

    problem: Problem
    state: EpisodeState
    tool: int
    message: Message
    key: tuple[int, int]
    errors: Errors
    unseen: Sequence[int] = ()

    @property
    def name(self) -> str:
        """Name of the tool."""
        return self.problem.library.names[self.tool]

    @property
    def described(self) -> Tool:
        """The tool as its library describes it."""
        return self.problem.library[self.tool]

    @property
    def dynamics(self) -> Dynamics:
        """The law of the problem."""
        return self.problem.dynamics

    @property
    def executions(self) -> int:
        """How often the tool was executed before."""
        return self.state.executions[self.tool]


def shown_failure(call: PendingCall, draw: Draw, error: int) -> Failure | None:
    """Return the failure that a call shows; None if the law lets it through.

    Args:
        call: The call.
        draw: What luck brought to it.
        error: Number of the error that it shows, OF_DEPENDENCIES, or OTHER_ERROR.
    """
    if error == OF_DEPENDENCIES:
        return _dependency_failure(call)
    dynamics, state, tool = call.dynamics, call.state, call.tool
    rules, law, result = dynamics.rules, dynamics.numbers.law, shown_result(draw.result)
    if result == FAILURE and law.error_kinds is None:  # the codes have no meaning
        return Failure(*drawn_error(law, documented_errors(call), call.key, call.executions))
    if draw.passes:
        return None
    if draw.result == LIMITED:
        return _limited(dynamics, tool, messages_until_free(rules, state.parts, tool))
    if draw.result == DOWN:
        return Failure(SERVICE_UNAVAILABLE, f"Service unavailable: {dynamics.groups[rules.group[tool]]} is down")
    if draw.result == REFUSED:
        return _refused(call)
    if result == SLOW:
        return Failure(TIMEOUT, f"No result within {draw.ticks / TICKS_PER_SECOND:g} seconds")
    is_opener = dynamics.numbers.facts[tool].is_opener
    spec = weighed_errors(law, call.described, is_opener, is_opened(rules, state.status))[error].error
    return filled_failure(call, spec)


def filled_failure(call: PendingCall, spec: ErrorSpec) -> Failure:
    """Return the failure that a call shows by an error of its tool."""
    return Failure(spec.code, _filled(spec, draw_bits(*call.key, call.executions, PURPOSE_FAILURE)))


def _limited(dynamics: Dynamics, tool: int, wait: int) -> Failure:
    limit, wait = dynamics.numbers.law.rate_limit, max(wait, 1)
    assert limit is not None
    calls = f"{limit.calls} call{'s' if limit.calls > 1 else ''}"
    when = "with the next message" if wait == 1 else f"after {wait - 1} more message{'s' if wait > 2 else ''}"
    scope = dynamics.numbers.facts[tool].rate_key
    text = f"Rate limit of {scope} reached: {calls} in any {limit.window} messages (works again {when})"
    return Failure(RATE_LIMIT_ERROR, text)


def _refused(call: PendingCall) -> Failure:
    """Return the failure of a closed tool, or of an input that was refused before."""
    dynamics, described = call.dynamics, call.described
    kinds = dynamics.numbers.law.error_kinds
    assert kinds is not None
    is_closed = is_refused(dynamics.rules, call.state.status, call.state.parts, call.tool, 0)
    codes = kinds.access_codes if is_closed else kinds.input_codes
    code = next((error.code for error in described.failure_errors if error.code in codes), codes[0])
    if not is_closed:
        return Failure(code, "The same input was refused before: a parameter has to change")
    names = [one.name for one in dynamics.numbers.facts if one.is_opener]
    what = f"until {' or '.join(names)} has succeeded" if names else "in this episode"
    return Failure(code, f"Access to {described.name} stays closed {what}")


def drawn_error(law: Law, specs: Sequence[ErrorSpec], key: tuple[int, int], attempt: int) -> tuple[str, str]:
    """Return code and message of one of the errors of a tool, by the weights of the law."""
    bits = draw_bits(*key, attempt, PURPOSE_FAILURE)
    weights = [law.error_weight(spec.code) for spec in specs] if law.errors else ()
    if not weights or not sum(weights) > 0.0:
        spec, bits = specs[bits % len(specs)], bits // len(specs)
    else:
        spec = weighted_choice(specs, weights, draw_bits(*key, attempt, PURPOSE_ERROR_CODE) * 2.0**-UNIFORM_BITS)
    return spec.code, _filled(spec, bits)


def weighted_choice(options: Sequence[T], weights: Sequence[float], uniform: float) -> T:
    """Return the option that a uniform number from [0, 1) falls on, each as likely as its weight says."""
    target = uniform * sum(weights)
    for option, weight in zip(options, weights, strict=True):
        target -= weight
        if target < 0.0:
            return option
    return options[-1]


def _dependency_failure(call: PendingCall) -> Failure:
    """Return the failure that lists the dependencies of a tool that were not executed or failed."""
    names, status, not_executed, failed = call.problem.library.names, call.state.status, [], []
    for dependency in call.problem.dependencies[call.tool]:
        if status[dependency] == NOT_EXECUTED:
            not_executed.append(names[dependency])
        elif status[dependency] == FAILED:
            failed.append(names[dependency])
    parts = [f"{name} has not been executed" for name in not_executed]
    parts += [f"{name} was executed but failed" for name in failed]
    return Failure(DEPENDENCY_ERROR, f"Unmet dependencies: {'; '.join(parts)}", tuple(not_executed), tuple(failed))


def _filled(error: ErrorSpec, bits: int) -> str:
    """Return the message of an error, its slots filled as the bits say."""
    values = {}
    for slot, options in error.slots.items():
        bits, which = divmod(bits, len(options))
        values[slot] = options[which]
    return error.message(values)


def possible_errors(tool: Tool, errors: Errors = "documented") -> tuple[ErrorSpec, ...]:
    """Return the errors that a failure of a tool is drawn from; it may document no transient one."""
    if errors == "documented":
        return tool.failure_errors
    return tuple(error for error in tool.failure_errors if error.code in TRANSIENT_CODES) or (_NO_ANSWER,)


def documented_errors(call: PendingCall) -> tuple[ErrorSpec, ...]:
    """Return the errors that a failure of a call is drawn from where they have no kinds."""
    if call.errors == "documented":
        return call.dynamics.numbers.documented[call.tool]
    return possible_errors(call.described, call.errors)
