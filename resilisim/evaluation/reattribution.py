"""Scoring and attributing a saved episode again: no model, no environment, no search, only its record.

The states are rebuilt from what the steps say happened (which tool ran, whether it succeeded), by the simulator's own
transition. The exact optimum then gives values, regret, luck and labels anew. Whether an execution succeeded is looked
up in the luck as well, which is a function of salt, seed, task, tool and attempt: a record that contradicts it is none.

Of an agent that began anew in fresh episodes the record holds the steps of the last one, which is what is scored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from resilisim.envs.protocol import decode_native, read_native, read_text
from resilisim.errors import InvalidInputError
from resilisim.evaluation.attribution import IDENTITY_TOLERANCE, attribute, total_losses
from resilisim.evaluation.labels import Course
from resilisim.evaluation.records import EpisodeRecord, StepRecord
from resilisim.seeding import PURPOSE_SUCCESS, episode_key
from resilisim.simulator import (
    BenchmarkLaw,
    EndRules,
    EpisodeState,
    Message,
    Problem,
    build_problem,
    next_state,
    rescore,
    start_state,
    success_probability,
)
from resilisim.simulator.compiled import draw_bits, tool_luck_key
from resilisim.simulator.exact import solve
from resilisim.simulator.messages import MessageKind
from resilisim.simulator.state import is_awaiting_closing, success_threshold_at
from resilisim.tool_library import ToolLibrary
from resilisim.tool_library.parameters import ParameterMode

# Fields that follow from the rest of a record, in the order in which differences are looked for.
_FACTS: Final = ("required_outputs", "ended_by", "score", "outcome")
_NUMBERS: Final = ("optimum", "optimum_gap", "known_after_search", "regret", "luck")
_STEP_NUMBERS: Final = ("success_probability", "value", "action_value", "regret", "luck")

ReadMessage = Callable[[str], Message]


def message_reader(library: ToolLibrary, mode: ParameterMode = "lenient", protocol: str = "text") -> ReadMessage:
    """Return what turns the text of a recorded message into its meaning.

    Args:
        library: Tool library of the run.
        mode: How the run checked parameters.
        protocol: Protocol of the run's environment, "text" or "native".
    """
    if protocol == "native":
        return lambda text: read_native(decode_native(text), library, mode)
    return lambda text: read_text(text, library, mode)


def reattribute(record: EpisodeRecord, library: ToolLibrary, read: ReadMessage | None = None) -> EpisodeRecord:
    """Return a record with everything computed again that follows from what happened.

    These are the score, how the episode ended, and all values, regrets, lucks, labels and their sums. The record that
    is handed in is left as it is.

    Args:
        record: The saved episode.
        library: Tool library of its run.
        read: Reads messages (`message_reader`); that of the text protocol if omitted.

    Raises:
        InvalidInputError: The record contradicts itself, the law or its luck, or does not fit the library.
        ExactLimitError: The task is too large to be solved exactly.
    """
    problem = build_problem(library, record["required_tools"], *_law_and_rules(record))
    optimum, read = solve(problem), read or message_reader(library)
    course = Course(problem, record["planner"], record["flaw"])
    past = _Past(problem, record)
    steps: list[StepRecord] = []
    value: float | None = None
    for recorded in record["steps"]:
        message = _message_of(recorded, read)
        before = past.state
        attempt, probability = past.add(recorded, message)
        worth = attribute(optimum, before, message, past.state, course, value)
        value = worth.value_after
        steps.append(
            {
                **recorded,
                "attempt": attempt,
                "success_probability": probability,
                "value": worth.value,
                "action_value": worth.action_value,
                "regret": worth.regret,
                "luck": worth.luck,
                "label": worth.label,
            }
        )
    if past.state.ended_by is None:
        raise InvalidInputError(f"the episode does not end with its last message, number {len(steps)}")
    again: EpisodeRecord = {
        **record,
        "steps": steps,
        "required_outputs": sorted(library.outputs.intersection(record["required_tools"])),
        "ended_by": past.state.ended_by,
        "optimum": steps[0]["value"],
        "optimum_gap": optimum.gap,
        "regret": sum(step["regret"] for step in steps),
        "luck": sum(step["luck"] for step in steps),
        "losses": total_losses(steps),
    }
    searches = record.get("searches_needed")  # taken as it stands: records do not hold what was searched
    if searches is not None:
        again["known_after_search"] = optimum.after_search(searches)
    again["score"] = rescore(dict(again)).to_mapping()
    again["outcome"] = int(again["score"]["level"] == "full_success")
    return again


class _Past:
    """The states of a recorded episode, one after the other."""

    def __init__(self, problem: Problem, record: EpisodeRecord) -> None:
        self.state: EpisodeState = start_state(problem)
        self._problem = problem
        self._salt = record["salt"]  # where none is recorded, outcomes are taken as they stand
        self._key = episode_key(self._salt, record["seed"], record["instance_id"])
        self._tool_keys: dict[str, tuple[int, int]] = {}

    def add(self, step: StepRecord, message: Message) -> tuple[int | None, float | None]:
        """Go one message further; return attempt and success probability if it was an execution.

        Raises:
            InvalidInputError: It cannot have happened.
        """
        if self.state.ended_by is not None:
            raise InvalidInputError(f"message {step['turn']} comes after the end of the episode")
        executes = message.kind == "execute" and not is_awaiting_closing(self._problem, self.state)
        if executes != (step["success"] is not None):
            told = "executes a tool" if executes else "executes nothing"
            raise InvalidInputError(f"message {step['turn']} {told}, but its success is {step['success']}")
        found = self._execution(step, message.tool or "") if executes else (None, None)
        self.state = next_state(self._problem, self.state, message, bool(step["success"]))
        return found

    def _execution(self, step: StepRecord, name: str) -> tuple[int, float]:
        problem, state = self._problem, self.state
        tool = problem.library.index(name)
        done = state.executions[tool]
        if self._salt:
            if name not in self._tool_keys:
                self._tool_keys[name] = tool_luck_key(*self._key, name)
            bits = draw_bits(*self._tool_keys[name], done, PURPOSE_SUCCESS)
            succeeds = bits < success_threshold_at(problem, state, tool)
            if succeeds != step["success"]:
                told = "success" if succeeds else "failure"
                raise InvalidInputError(
                    f"the luck of message {step['turn']} ({name}) is a {told}, the record denies it"
                )
        return done + 1, success_probability(problem, state, tool)


def _law_and_rules(record: EpisodeRecord) -> tuple[BenchmarkLaw, EndRules]:
    try:
        return BenchmarkLaw(**record["law"]), EndRules(**record["rules"])
    except TypeError as error:
        raise InvalidInputError(f"law or end rules of the record are not known: {error}") from error


def _message_of(step: StepRecord, read: ReadMessage) -> Message:
    """Return the message of a step. Its kind is that of the record, which knows how the run read it.

    Only what executes nothing is read again: whether it repeats another message depends on its words.
    """
    kind = cast("MessageKind", step["kind"])
    if kind == "execute":
        return Message("execute", tool=step["tool"])
    if kind in ("finish", "stop"):
        return Message(kind)
    if kind not in ("search", "info", "format_error", "rejected"):
        raise InvalidInputError(f"message {step['turn']} is of the unknown kind {kind!r:.60}")
    message = read(step["message"])
    if message.kind == kind and (kind == "search" or message.tool == step["tool"]):
        return message
    return Message(kind, tool=step["tool"], query=step["message"], text=step["message"])


def first_disagreement(record: EpisodeRecord, again: EpisodeRecord) -> str | None:
    """Return where a record and what was computed from it differ first, apart from labels, or None where they agree.

    Numbers agree if they are within `IDENTITY_TOLERANCE` of each other.
    """
    then, now = cast("Mapping[str, Any]", record), cast("Mapping[str, Any]", again)
    for name in _FACTS:
        if then[name] != now[name]:
            return _told(name, then[name], now[name])
    for number, (old, new) in enumerate(zip(record["steps"], again["steps"], strict=True)):
        found = _first_number(old, new, _STEP_NUMBERS)
        if found is None and old["attempt"] != new["attempt"]:
            found = "attempt"
        if found is not None:
            old_fields, new_fields = cast("Mapping[str, Any]", old), cast("Mapping[str, Any]", new)
            return _told(f"steps[{number}].{found}", old_fields[found], new_fields[found])
    total = _first_number(then, now, _NUMBERS)
    return None if total is None else _told(total, then[total], now[total])


def first_other_label(record: EpisodeRecord, again: EpisodeRecord) -> str | None:
    """Return the first label, or sum over one, in which a record and what was computed from it differ, or None."""
    for number, (old, new) in enumerate(zip(record["steps"], again["steps"], strict=True)):
        if old["label"] != new["label"]:
            return _told(f"steps[{number}].label", old["label"], new["label"])
    then, now = record["losses"], again["losses"]
    for label in dict.fromkeys((*then, *now)):
        if not _is_near(then.get(label, 0.0), now.get(label, 0.0)):
            return _told(f"losses.{label}", then.get(label), now.get(label))
    return None


def _first_number(then: Mapping[str, Any], now: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((name for name in names if not _is_near(then.get(name), now.get(name))), None)


def _is_near(then: float | None, now: float | None) -> bool:
    if then is None or now is None:
        return then is now
    return abs(then - now) <= IDENTITY_TOLERANCE


def _told(where: str, then: object, now: object) -> str:
    return f"{where} is {then!r:.80} in the record and {now!r:.80} computed again"
