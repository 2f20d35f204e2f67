"""Judging a recorded episode again, from its record alone, and saying where two records of one episode differ.

The recorded messages happen again on the simulator's own `Episode`, under the draws of the record's salt, seed and
task, and what it marks as forced, or on its branch; where tools of a world really failed, they fail as the record says.
The exact optimum then gives values, regret, luck and labels anew. A record that contradicts itself, the law or its
draws is none.

Of an agent that began anew in fresh episodes the record holds the steps of the last one, which is what is judged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, cast

from resilisim.envs.feedback import output_in
from resilisim.envs.protocol.message_reader import read_native, read_text
from resilisim.envs.protocol.native_messages import decode_native
from resilisim.envs.protocol.native_tools import NATIVE_FUNCTIONS, WAIT_FUNCTION
from resilisim.errors import InvalidInputError
from resilisim.evaluation.episode.attribution import IDENTITY_TOLERANCE, Attribution
from resilisim.evaluation.episode.record import CEILING_FIELDS, EpisodeRecord, StepRecord, differences, weight_of
from resilisim.evaluation.episode.record_builder import Happened, RecordBuilder
from resilisim.evaluation.episode.texts import opened, replies_of, spoken_texts
from resilisim.simulator import EndRules, Episode, Event, Law, Message, Problem, build_problem
from resilisim.simulator.draws import AFTER, BEFORE, CORRUPTED, OK, Branch, Draws, Forced
from resilisim.simulator.exact import Judge
from resilisim.simulator.goal import Goal, world_goal
from resilisim.simulator.law import CONSTANTS
from resilisim.simulator.messages import MessageKind
from resilisim.simulator.rulebook.rules import CORRUPT, FAILURE, RESULTS, SLOW, UNANSWERED, UNANSWERED_LATE
from resilisim.simulator.scoring import graded_score, rescore
from resilisim.tasks.searches import Searches
from resilisim.tool_library import ToolLibrary
from resilisim.tool_library.tool import DEPENDENCY_ERROR
from resilisim.worlds.base import DoneCall, Grade, graded, load_world, world_task

# What came of comparing a record with what was computed from it.
Verdict = Literal["agreeing", "other_labels", "differing"]

WEIGHT_TOLERANCE: Final = 1e-9  # products may be rounded otherwise on other machines

# Of failures that can come before a tool has run, or after it.
_SIDES: Final = {
    RESULTS[FAILURE]: BEFORE,
    RESULTS[SLOW]: BEFORE,
    RESULTS[UNANSWERED]: AFTER,
    RESULTS[UNANSWERED_LATE]: AFTER,
}

ReadMessage = Callable[[str], Message]


def message_reader(library: ToolLibrary, environment: Mapping[str, Any]) -> ReadMessage:
    """Return what turns the text of a recorded message into its meaning, under the options of a run's environment."""
    mode = environment.get("parameters", "lenient")
    answers = environment.get("world") is not None
    offers_wait = "law" in environment and Law.from_mapping(environment["law"]).waiting_can_help
    if environment.get("protocol") == "native":
        offered = (*NATIVE_FUNCTIONS, WAIT_FUNCTION) if offers_wait else NATIVE_FUNCTIONS
        return lambda text: read_native(decode_native(text), library, mode, offered, answers)
    return lambda text: read_text(text, library, mode, answers, offers_wait)


def rejudged(
    record: EpisodeRecord, library: ToolLibrary, read: ReadMessage | None = None, best: bool = False
) -> EpisodeRecord:
    """Return a record with everything computed again that follows from what happened.

    These are the score, how the episode ended, and all values, regrets, lucks, labels and their sums. The record that
    is handed in is left as it is. Messages are read as under the text protocol if `read` is omitted. With `best` each
    step says what would have been best, as those of a record do that says it already.

    Raises:
        InvalidInputError: The record contradicts itself, the law or its luck, or does not fit the library.
        ExactLimitError: The task is too large to be solved exactly.
    """
    world = _WorldOf(record) if "world" in record else None
    goal = Goal.recorded(record["required_tools"], record.get("goal", {})) if world is None else world_goal(world.task)
    problem = build_problem(library, goal, *law_and_rules(record), world is not None)
    judge = Judge(problem)
    attribution = Attribution(judge.values, record["planner"], record["flaw"])
    read = read or message_reader(library, {"world": record.get("world")})
    grade = None if world is None else world.grade(read)
    is_right = grade is not None and grade["correct"] and record["ended_by"] in ("completion", "stopped")
    outcome = None if world is None else int(is_right)
    draws: Draws = (
        Branch.of_texts(record["branch"]) if "branch" in record else brought(record["steps"], library, only_forced=True)
    )
    episode = Episode(problem, record["instance_id"], record["seed"], record["salt"], draws=draws)
    builder = RecordBuilder()
    for recorded in record["steps"]:
        message, before = _message_of(recorded, read, problem), episode.state
        event = _again(episode, recorded, message)
        judgement = judge.judge(before, message, episode.state, outcome, event.is_real_failure)
        worth = attribution.worth(judgement, before, message, episode.state, event.is_real_failure)
        step = builder.add(
            recorded["message"], recorded["kind"], recorded["tool"], worth, **_happened(event, recorded["error"])
        )
        if best or "best" in recorded:
            better = judge.values.best_action(before)
            step["best"] = better.kind if better.tool is None else f"call {better.tool}"
    if episode.ended_by is None:
        raise InvalidInputError(f"the episode does not end with its last message, number {len(builder.steps)}")
    if isinstance(draws, Branch):
        _check_weight(record, draws)
    # Taken as it stands: records do not hold what was searched.
    searches = Searches(record.get("searches_needed"), record.get("no_search_ceiling"))
    outputs = library.outputs.intersection(record["required_tools"])
    happened = {"steps": builder.steps, "ended_by": episode.ended_by, "required_outputs": outputs}
    score = rescore({**record, **happened}, problem.dynamics.has_run_well(episode.state))
    mapping = score.to_mapping() if grade is None else graded_score(score, Grade(**grade))
    again = builder.judged(mapping, outputs, attribution.totals(builder.steps, searches))
    # What older records lack is not made up for them.
    return cast("EpisodeRecord", {name: again.get(name, value) for name, value in record.items()})


def _again(episode: Episode, step: StepRecord, message: Message) -> Event:
    """Let a recorded message happen again.

    Raises:
        InvalidInputError: It cannot have happened, or came to something else.
    """
    if episode.ended_by is not None:
        raise InvalidInputError(f"message {step['turn']} comes after the end of the episode")
    event = episode.draw(message)
    if event.success and step.get("real", False):
        event = episode.settle(event, failure=(step["error"] or "", "as recorded"))
    if event.executed != (step["success"] is not None):
        does = "executes a tool" if event.executed else "executes nothing"
        raise InvalidInputError(f"message {step['turn']} {does}, but its success is {step['success']}")
    now = (event.success, event.is_real_failure, event.result)
    if now != (step["success"], step.get("real", False), step.get("result")):
        drawn = event.result or ("success" if event.success or event.is_real_failure else "failure")
        raise InvalidInputError(f"the draw of message {step['turn']} ({event.tool}) is a {drawn}, the record denies it")
    return event


def brought(steps: Iterable[StepRecord], library: ToolLibrary, *, only_forced: bool = False) -> Forced:
    """Return what the calls of a record brought, or those of them that were forced, as it is said of forced ones.

    Errors by their codes, with the side of the run on which they came, and successes, sound or corrupt.
    """
    calls: dict[tuple[str, int], str] = {}
    for step in steps:
        tool, attempt, result = step["tool"], step["attempt"], step.get("result")
        if tool is None or attempt is None or (only_forced and not step.get("forced", False)):
            continue
        if step["success"] or step.get("real", False):
            calls[tool, attempt] = CORRUPTED if result == RESULTS[CORRUPT] else OK
            continue
        code = step["error"] or ""
        if code == DEPENDENCY_ERROR:  # a way of telling a failure, which cannot be asked for
            code = library[tool].failure_errors[0].code
        calls[tool, attempt] = f"{code}/{_SIDES[result]}" if result in _SIDES else code
    return Forced(calls)


def unused_force(force: Iterable[str], records: Iterable[EpisodeRecord]) -> list[str]:
    """Return what was forced of calls that none of some episodes has made, such as "network_fetcher#9=TIMEOUT"."""
    steps = (step for record in records for step in record["steps"] if step.get("forced", False))
    return Forced.of(force).unused({(step["tool"] or "", step["attempt"] or 0) for step in steps})


def _check_weight(record: EpisodeRecord, branch: Branch) -> None:
    """Refuse a record whose branch is not what happened, or whose weight is not its probability."""
    weight, probability = weight_of(record), branch.probability / record.get("dice", 1)
    if len(branch.points) != len(branch.results) or not math.isclose(weight, probability, rel_tol=WEIGHT_TOLERANCE):
        raise InvalidInputError(f"the weight is {weight:.9g}, and its branch has the probability {probability:.9g}")


def _happened(event: Event, error: str | None) -> Happened:
    """Return what an event came to; why messages were refused, and how agents broke, records alone say."""
    happened = Happened(
        attempt=event.attempt,
        success=event.success,
        error=error,
        success_probability=event.success_probability,
        real=event.is_real_failure,
        forced=event.forced,
    )
    if event.result is not None:
        happened["result"] = event.result
    if event.seconds is not None:
        happened["seconds"] = event.seconds
    return happened


class _WorldOf:
    """The world of a recorded episode, which grades it again from what the record holds."""

    def __init__(self, record: EpisodeRecord) -> None:
        self._world = load_world(record["world"])
        self._record = record
        self.task = world_task(self._world, record["instance_id"])

    def grade(self, read: ReadMessage) -> Mapping[str, Any]:
        """Return the grade: computed again where the replies were kept, else as it stands."""
        record = opened(self._record)
        spoken = spoken_texts(record)
        if spoken is None:
            return cast("Mapping[str, Any]", self._record["score"]["grade"])
        calls = []
        for step, reply in zip(record["steps"], replies_of(record), strict=True):
            if step["success"] is not None:
                tool, output = step["tool"] or "", output_in(reply or "") if step["success"] else None
                injected = not step["success"] and not step.get("real", False)
                calls.append(DoneCall(tool, read(step["message"]).parameters, output, step["error"], injected))
        return graded(self._world, self.task, record.get("answer"), calls).to_mapping()


def law_and_rules(record: EpisodeRecord) -> tuple[Law, EndRules]:
    """Return law and end rules of a record; InvalidInputError if they are not known."""
    law = record["law"]
    try:
        is_plain = law.keys() <= set(CONSTANTS)
        return Law(**law) if is_plain else Law.from_mapping(law), EndRules(**record["rules"])
    except TypeError as error:
        raise InvalidInputError(f"law or end rules of the record are not known: {error}") from error


def _message_of(step: StepRecord, read: ReadMessage, problem: Problem) -> Message:
    """Return the message of a step; its kind is that of the record, which knows how the run read it.

    It is read again where parameters and words decide what repeats another message, or what an answer is.
    """
    kind, in_world = cast("MessageKind", step["kind"]), problem.arguments_matter
    if kind in ("stop", "wait", "agent_error") or (kind == "finish" and not in_world):
        return Message(kind)
    if kind == "execute" and not problem.dynamics.reads_parameters:
        return Message(kind, tool=step["tool"])
    if kind not in ("execute", "finish", "search", "info", "format_error", "rejected"):
        raise InvalidInputError(f"message {step['turn']} is of the unknown kind {kind!r:.60}")
    message = read(step["message"])
    if message.kind == kind and (kind == "search" or message.tool == step["tool"]):
        return message
    if in_world and kind in ("execute", "finish"):
        raise InvalidInputError(f"message {step['turn']} is no {kind} of {step['tool']} any more")
    if kind == "execute":
        return Message(kind, tool=step["tool"])
    return Message(kind, tool=step["tool"], query=step["message"], text=step["message"])


def compare_records(
    record: EpisodeRecord, again: EpisodeRecord, tolerance: float = IDENTITY_TOLERANCE
) -> tuple[Verdict, str | None]:
    """Say whether two records of one episode agree, and where they differ first.

    Other reasons of losses than today's are told apart from other numbers: what a loss is called may change with a new
    version. Left out is what calls cost, since prices are no part of a run, and fields that older records lack. So are
    the environment's words where one of the two has not kept them.

    Args:
        record: The record.
        again: What was computed from it, or came of playing the episode again.
        tolerance: By how much numbers may differ.
    """
    if record == again:  # by far the most, and the same to the last bit
        return "agreeing", None
    one, other = _comparable(record, again)
    compared = {name: value for name, value in other.items() if name in one or name not in CEILING_FIELDS}
    found = [
        each for each in differences(one, compared) if not (_is_near(*each, tolerance) or _is_left_out(each[0], one))
    ]
    if not found:
        return "agreeing", None
    numbers = [each for each in found if not _is_reason(each[0])]
    where, then, now = (numbers or found)[0]
    words = f"is {then!r:.80} in the record and {now!r:.80} now"
    if isinstance(then, list | tuple) and isinstance(now, list | tuple):
        words = f"is a list of {len(then)} in the record and of {len(now)} now"
    return ("differing" if numbers else "other_labels"), f"{where} {words}"


def _comparable(record: EpisodeRecord, again: EpisodeRecord) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two records with what they hold of words in one form, or without, where one of them holds none."""
    if record.get("texts") == again.get("texts"):
        return dict(record), dict(again)
    one, other = dict(opened(record)), dict(opened(again))
    if "texts" not in one or "texts" not in other:
        one.pop("texts", None)
        other.pop("texts", None)
    return one, other


def _is_near(where: str, then: Any, now: Any, tolerance: float) -> bool:
    if _is_reason(where):  # a label that is not there has cost nothing
        then, now = then or 0.0, now or 0.0
    return isinstance(then, float) and isinstance(now, float) and abs(then - now) <= tolerance


def _is_reason(where: str) -> bool:
    return where.startswith("losses") or where.endswith("].label")


def _is_left_out(where: str, record: Mapping[str, Any]) -> bool:
    """Tell whether a place is not compared.

    That is a cost, a best message, of which there may be several, or why a message was refused where an older record
    lacks it.
    """
    if where.rpartition(".")[2] in ("cost", "best"):
        return True
    place = re.fullmatch(r"steps\[(\d+)\]\.error", where)
    step = record["steps"][int(place[1])] if place else {}
    return step.get("kind") in ("rejected", "format_error") and step.get("error") is None
