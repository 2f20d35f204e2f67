"""What each message of an episode cost, by the exact optimum, and what to call it.

For a message a in state s, followed by state s':

    regret = V*(s) - Q*(s, a) >= 0     what the choice gave away, whatever the luck
    luck   = V*(s') - Q*(s, a)         what the draw brought, with mean zero; exactly 0 where nothing is drawn

Summed over an episode: 1 - outcome = (1 - V*(start)) + sum of regret - sum of luck.

Where V* is only a lower bound (`Values.gap` says how far it may be below), a message can look better than the best by
up to that gap. Its regret is then kept as it is, below 0, because the sum would not be right without it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from resilisim.errors import InvalidInputError
from resilisim.evaluation.episode.record import (
    NO_REFERENCE,
    REGRET_TOLERANCE,
    EpisodeRecord,
    StepRecord,
    Totals,
    Worth,
)
from resilisim.simulator.exact import solve
from resilisim.simulator.exact.judging import Judgement
from resilisim.simulator.exact.values import Values
from resilisim.simulator.messages import Message
from resilisim.simulator.problem import Problem, is_done
from resilisim.simulator.rulebook.dynamics import Dynamics
from resilisim.simulator.rulebook.lost_answers import DOUBT
from resilisim.simulator.rulebook.rules import CLOSED, OPEN, UNCHECKED, UNSOUND, is_refused, messages_until_free
from resilisim.simulator.state import NEXT_PLACE, RAN_AGAIN, SPOILT, EpisodeState, has_succeeded, loop_count_of
from resilisim.simulator.tool_status import SUCCEEDED
from resilisim.tasks.searches import Searches
from resilisim.tool_library import ToolLibrary
from resilisim.tool_library.parameters import accepts, check_parameters
from resilisim.workflows.flaws.flaw import as_json
from resilisim.workflows.workflow import PlannedStep, Step

IDENTITY_TOLERANCE = 1e-9


def identity_error(record: EpisodeRecord) -> float:
    """Return by how much a record misses 1 - outcome = (1 - optimum) + sum of regret - sum of luck."""
    regret = sum(step["regret"] for step in record["steps"])
    luck = sum(step["luck"] for step in record["steps"])
    return abs((1 - record["outcome"]) - (1.0 - record["optimum"]) - regret + luck)


_QUESTIONS = ("search", "info")
RAN_TWICE = "ran_again"  # what is lost by running what may run only once


def runs_again(before: EpisodeState, after: EpisodeState) -> bool:
    """Return whether a message has surely run a tool again that may run only once."""
    return bool(after.counters[SPOILT] & ~before.counters[SPOILT] & RAN_AGAIN)


class Attribution:
    """Says of the messages of one episode, as they come, why each cost what it did.

    In a world messages are measured by the task's reference solution (`Goal.program`).

    Args:
        values: The solved task, by which a `Judge` judges the messages.
        planner: Who made the plan in the prompt; None without one.
        flaw: What is wrong with that plan, as it stands in records. Without its part `plan` nothing is put down to it.
    """

    def __init__(self, values: Values, planner: str | None, flaw: Mapping[str, Any] | None) -> None:
        self._values, self._problem = values, values.problem
        self._is_world = self._problem.goal.program is not None
        self._has_hidden_state = self._problem.law.has_hidden_state
        self._plan_in_prompt = has_sound_plan(planner, flaw)
        self._asked: set[int] = set()
        self._flawed_plan: FlawedPlan | None = None
        if flaw is not None and "plan" in flaw:
            self._flawed_plan = FlawedPlan(flaw, self._problem.library)

    def __getstate__(self) -> dict[str, Any]:
        # What is solved is locked while it is searched, and remembered by the problem: a copy solves it, or finds it.
        return {name: value for name, value in self.__dict__.items() if name != "_values"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._values = solve(self._problem)

    def fork(self) -> Attribution:
        """Return a copy that goes on by itself."""
        fork = object.__new__(type(self))
        fork.__dict__.update(self.__dict__, _asked=set(self._asked))
        fork._flawed_plan = None if self._flawed_plan is None else self._flawed_plan.fork()
        return fork

    @property
    def memory(self) -> Hashable:
        """What reasons depend on besides the state."""
        return frozenset(self._asked), None if self._flawed_plan is None else self._flawed_plan.memory

    def worth(
        self,
        judgement: Judgement,
        state: EpisodeState,
        message: Message,
        after: EpisodeState,
        refused: bool = False,
    ) -> Worth:
        """Say what the next message was worth, which was sent in one state and led to another.

        In worlds that also hangs on whether the tool itself `refused` the call.
        """
        label = None
        if judgement.regret > REGRET_TOLERANCE:
            label = RAN_TWICE if runs_again(state, after) else self._reason(state, message, refused)
        if message.kind in _QUESTIONS:
            self._asked.add(message.signature)
        if self._flawed_plan is not None:
            self._flawed_plan.note(message, has_succeeded(state, message, after))
        return worth_of(judgement, label)

    def totals(self, steps: Sequence[StepRecord], searches: Searches) -> Totals:
        """Return what a record says of its steps together."""
        values, after_search = self._values, None
        if searches.fewest is not None and not self._is_world:
            after_search = values.after_search(searches.fewest)
        totals = totals_of(steps, values.gap, searches, after_search)
        if self._is_world and not self._problem.goal.program:
            totals["no_ceiling"] = NO_REFERENCE
        if self._has_hidden_state:
            totals["optimum_knowledge"] = values.knowledge
        return totals

    def _reason(self, state: EpisodeState, message: Message, refused: bool) -> str:
        asked_before = message.kind in _QUESTIONS and message.signature in self._asked
        obeys_flaw = self._flawed_plan is not None and self._flawed_plan.is_obeyed_by(message)
        if self._is_world and obeys_flaw:
            return "obeyed_flaw"
        if self._is_world:
            return world_loss_label(self._values, state, message, refused, asked_before)
        return loss_label(self._problem, state, message, self._plan_in_prompt, asked_before, obeys_flaw)


def worth_of(judgement: Judgement, label: str | None) -> Worth:
    """Return a judgement as a step holds it, with the reason for its regret."""
    return Worth(
        value=judgement.value,
        action_value=judgement.action_value,
        regret=judgement.regret,
        luck=judgement.luck,
        label=label,
    )


def totals_of(
    steps: Sequence[StepRecord],
    gap: float = 0.0,
    searches: Searches = Searches(None),  # noqa: B008 - it cannot be changed
    after_searches: float | None = None,
) -> Totals:
    """Return what steps come to together.

    Args:
        steps: The steps of an episode, at least one.
        gap: By how much V* may be too low.
        searches: The searches that the task needs, where its tools are not told.
        after_searches: V* after them.
    """
    return Totals(
        optimum=steps[0]["value"],
        optimum_gap=gap,
        optimum_after_searches=after_searches,
        searches_needed=searches.fewest,
        no_search_ceiling=searches.reason,
        regret=sum(step["regret"] for step in steps),
        luck=sum(step["luck"] for step in steps),
        losses=losses_of(steps),
    )


def losses_of(steps: Iterable[StepRecord]) -> dict[str, float]:
    """Return the regret by what it was lost to; labels stand in the order in which they first occur."""
    losses: dict[str, float] = {}
    for step in steps:
        if step["label"] is not None:
            losses[step["label"]] = losses.get(step["label"], 0.0) + step["regret"]
    return losses


def has_sound_plan(planner: str | None, flaw: Mapping[str, Any] | None) -> bool:
    """Return whether a prompt says what to do: looking for it is information without a plan, and under a flawed one."""
    return planner is not None and flaw is None


def loss_label(
    problem: Problem,
    state: EpisodeState,
    message: Message,
    plan_in_prompt: bool,
    asked_before: bool = False,
    obeys_flaw: bool = False,
) -> str:
    """Name the reason for the regret of a message that was sent in a state: the first that applies.

    A plan in the prompt names the tools to use, so that looking for them is no longer needed. What was asked just now
    is seen in the state, what was asked before that is told.
    """
    if message.kind == "agent_error":
        return "agent_error"  # whatever was done before: it broke
    if problem.dynamics.rules.at_lost >= 0:
        state = replace(state, hidden=())  # what had run nobody could know
    if is_done(problem, state):
        return "no_completion_signal"  # whatever was sent instead: the signal alone was missing
    if obeys_flaw:
        return "obeyed_flaw"  # whatever it led to: the agent did as it was told
    if message.kind in ("finish", "stop"):
        # Everything has reported success, so it was an output that was not sound.
        is_unsound = problem.dynamics.rules.counts_sound and _has_run_all(problem, state)
        return "believed_corrupt_data" if is_unsound else "gave_up_early"
    if message.kind == "wait":
        return "waited_in_vain"
    if message.kind in _QUESTIONS:
        # What was asked once is known, so asking it again is no information.
        if asked_before or loop_count_of(state, message.signature) > 0:
            return "repeated_search"
        return "wasted_turn" if plan_in_prompt and not _explains_refusal(problem, state, message) else "information"
    if message.kind == "format_error":
        return "format_error"
    if message.kind == "rejected":
        return "rejected_call"
    tool = problem.library.index(message.tool or "")
    refused = _why_refused(problem.dynamics, state, tool, message)
    if refused is not None:
        return refused
    if problem.once[tool] and _may_have_run(problem, state, tool):
        return "called_again_in_doubt"
    if tool not in problem.closure:
        return "unneeded_tool"
    if (missed := _what_was_better(problem, state, tool)) is not None:
        return missed
    if state.status[tool] == SUCCEEDED:
        return "repeated_success"
    if problem.goal.ordered and problem.place[tool] > state.counters[NEXT_PLACE]:
        return "wrong_order"  # before a missing dependency: its success would already decide the episode
    if any(state.status[dependency] != SUCCEEDED for dependency in problem.dependencies[tool]):
        return "missing_dependency_first"
    return "suboptimal_choice"


def _may_have_run(problem: Problem, state: EpisodeState, tool: int) -> bool:
    """Return whether a failed call of a tool may have run it, which nobody knows."""
    at_ran = problem.dynamics.rules.at_ran
    return at_ran >= 0 and state.status[tool] != SUCCEEDED and state.parts[at_ran + tool] >= DOUBT


def _explains_refusal(problem: Problem, state: EpisodeState, message: Message) -> bool:
    """Return whether a question is about the parameters of a tool whose input was refused."""
    dynamics = problem.dynamics
    if dynamics.rules.at_block < 0 or message.kind != "info" or message.problems:
        return False
    tool = problem.library.index(message.tool or "")
    return state.parts[dynamics.rules.at_block + tool] not in (OPEN, CLOSED)


def _has_run_all(problem: Problem, state: EpisodeState) -> bool:
    return state.counters[NEXT_PLACE] == len(problem.required) and not state.counters[SPOILT]


def _why_refused(dynamics: Dynamics, state: EpisodeState, tool: int, message: Message) -> str | None:
    """Name the part of the law that surely refuses a call."""
    rules = dynamics.rules
    if messages_until_free(rules, state.parts, tool) > 0:
        return "rate_limited_call"
    if rules.at_block < 0 or not is_refused(rules, state.status, state.parts, tool, dynamics.digest(tool, message)):
        return None
    return "call_without_access" if state.parts[rules.at_block + tool] == CLOSED else "repeated_invalid_call"


def _what_was_better(problem: Problem, state: EpisodeState, tool: int) -> str | None:
    """Name what the law's parts made better than a call, if it is that which was missed."""
    rules = problem.dynamics.rules
    if not rules.waiting_is_productive and rules.at_evidence < 0 and rules.at_sound < 0:
        return None
    best = solve(problem).best_action(state)
    if best.kind == "wait":
        return "did_not_wait"
    if best.kind != "execute":
        return None
    better = problem.library.index(best.tool or "")
    if better == tool:
        return None
    if rules.at_evidence >= 0 and rules.broken_prior[tool] > 0.0 and state.parts[rules.at_evidence + tool] > 0:
        same_place = problem.place[tool] >= 0 and problem.place[better] == problem.place[tool]
        return "kept_at_broken_tool" if same_place else None
    if rules.at_sound >= 0:
        checks = rules.is_validator[better] and not rules.shows_payload
        if checks or state.parts[rules.at_sound + better] in (UNSOUND, UNCHECKED):
            return "believed_corrupt_data"
    return None


def world_loss_label(values: Values, state: EpisodeState, message: Message, refused: bool, asked_before: bool) -> str:
    """Name the reason for the regret of a message in a world: the first that applies.

    `values` are those of the reference solution.
    """
    if message.kind == "agent_error":
        return "agent_error"
    if message.kind in ("finish", "stop"):
        return "gave_up_early" if message.answer is None else "wrong_answer"
    if message.kind in _QUESTIONS:
        return "repeated_search" if asked_before else "information"
    if message.kind == "format_error":
        return "format_error"
    if message.kind == "rejected":
        return "rejected_call"
    if message.kind == "wait":
        return "waited_in_vain"
    if refused:
        return "refused_call"
    tool = values.problem.library.index(message.tool or "")
    if messages_until_free(values.problem.dynamics.rules, state.parts, tool) > 0:
        return "rate_limited_call"
    if values.best_action(state).kind == "wait":
        return "did_not_wait"
    return "suboptimal_choice" if values.tells_apart(tool) else "unneeded_tool"


class FlawedPlan:
    """A flawed plan that an agent was shown, and how far it has come in it.

    Two readers follow an episode, one in the plan that was shown and one in the sound plan that it was made from. Both
    have the same rule: a tool's success takes a reader behind the tool's next place in its plan, a tool that does not
    stand there any more leaves it where it is, and where a step's limits say to go on it goes on. A message obeys the
    flaw where it does what the shown plan says next and the sound plan says something else. So nothing is put down to a
    flaw that a sound plan would have asked for as well, nor what an agent does of its own accord after it left the plan
    (docs/decisions).

    Raises:
        InvalidInputError: The edits of the flaw (`FlawRecord`) are none of its plan.
    """

    def __init__(self, flaw: Mapping[str, Any], library: ToolLibrary) -> None:
        try:
            edits = flaw["edits"]
            limits = flaw.get("limits") or [(None, None)] * len(flaw["plan"])
            shown = [_limited(tool, *pair) for tool, pair in zip(flaw["plan"], limits, strict=True)]
            self._sound = _Reader(sound_steps(shown, edits))
            # Whoever does the plan to the letter passes over what cannot be done.
            undone = {edit["where"]["step"] - 1 for edit in edits if edit["what"] == "undone"}
            places = [place for place in range(len(shown)) if place not in undone]
            shown = [shown[place] for place in places]
            # Of each parameter that was changed: place of the step, name, value before, JSON text now (None: dropped).
            self._changes = [
                (
                    places.index(edit["where"]["step"] - 1),
                    edit["where"]["parameter"],
                    json.loads(edit["before"]),
                    edit["after"],
                )
                for edit in edits
                if edit["what"] in ("parameter_changed", "parameter_dropped") and edit["where"]["step"] - 1 in places
            ]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise InvalidInputError(f"the edits of a flawed plan cannot be undone: {error!r}") from error
        self._shown = _Reader(shown)
        self._unfinished = {step.tool for step in shown}
        self._library = library
        self._num_messages = 0

    def fork(self) -> FlawedPlan:
        """Return a copy that reads on by itself."""
        fork = object.__new__(type(self))
        fork.__dict__.update(self.__dict__, _sound=copy.copy(self._sound), _shown=copy.copy(self._shown))
        fork._unfinished = set(self._unfinished)
        return fork

    @property
    def memory(self) -> Hashable:
        """How far it has come."""
        return self._sound.memory, self._shown.memory, frozenset(self._unfinished), self._num_messages

    def is_obeyed_by(self, message: Message) -> bool:
        """Return whether a message does what the shown plan says next, and what the sound one would not have said."""
        if message.kind == "execute":
            return self._shown.next == message.tool != self._sound.next
        if message.kind in ("finish", "stop"):
            return not self._unfinished and self._sound.next is not None
        return message.kind == "rejected" and self._shown.next == message.tool and self._is_refused_for_edits(message)

    def note(self, message: Message, succeeded: bool) -> None:
        """Note a message, and whether it was an execution that succeeded."""
        self._num_messages += 1
        called = message.tool if message.kind in ("execute", "rejected") else None
        self._sound.note(called, succeeded, self._num_messages)
        left = self._shown.note(called, succeeded, self._num_messages)
        self._unfinished -= {called, *left} if succeeded else left

    def _is_refused_for_edits(self, message: Message) -> bool:
        """Return whether a call was refused for values that a flaw put into its step, and for nothing else."""
        parameters, restored = message.parameters, dict(message.parameters)
        for place, name, before, after in self._changes:
            if place == self._shown.place and after == (as_json(parameters[name]) if name in parameters else None):
                restored[name] = before
        tool = self._library[message.tool or ""]
        for mode in ("lenient", "strict"):
            if tuple(check_parameters(tool, parameters, mode)) == message.problems:
                return accepts(tool, restored, mode)
        return False  # refused for another reason than the schema


class _Reader:
    """Reads a plan along with what is run."""

    def __init__(self, steps: Sequence[PlannedStep]) -> None:
        self._steps = steps
        self._tries = 0  # of the next step, none of which succeeded
        self.place = 0
        self._leave(1)

    @property
    def memory(self) -> Hashable:
        """Where it is, and how often it was tried there."""
        return self.place, self._tries

    @property
    def next(self) -> str | None:
        """The tool that the plan says to run next, None at its end."""
        return self._steps[self.place].tool if self.place < len(self._steps) else None

    def note(self, called: str | None, succeeded: bool, num_messages: int) -> set[str]:
        """Read on behind the step that has succeeded; return the tools of steps that are left for their limits.

        `called` is the tool of the message, None if it was no call; `num_messages` counts it.
        """
        places = [place for place in range(self.place, len(self._steps)) if self._steps[place].tool == called]
        if succeeded and places:
            self.place, self._tries = places[0] + 1, 0
        elif called is not None and called == self.next:
            self._tries += 1
        return self._leave(num_messages + 1)

    def _leave(self, message: int) -> set[str]:
        left = set()
        while self.place < len(self._steps) and self._steps[self.place].is_left(self._tries, message):
            left.add(self._steps[self.place].tool)
            self.place, self._tries = self.place + 1, 0
        return left


def _limited(tool: str, max_tries: object, skip_from: object) -> PlannedStep:
    step = Step.from_mapping({"tool": tool, "max_tries": max_tries, "skip_from": skip_from})
    return PlannedStep(step.tool, max_tries=step.max_tries, skip_from=step.skip_from)


def sound_steps(shown: Sequence[PlannedStep], edits: Sequence[Mapping[str, Any]]) -> list[PlannedStep]:
    """Return the steps of the plan that a flawed one was made from, by its edits (`workflows.flaws.Edit.to_mapping`).

    A step that was removed comes back without limits.
    """
    steps = list(shown)
    elsewhere: set[int] = set()  # places in the flawed plan of steps that stood elsewhere, or nowhere
    returning: list[tuple[int, PlannedStep]] = []  # places in the sound plan, and the steps that go back there
    for edit in edits:
        what, place, original = edit["what"], edit["where"]["step"] - 1, edit["where"]["original_step"]
        if what == "replaced":
            steps[place] = replace(steps[place], tool=edit["before"])
        elif what == "swapped":
            steps[place], steps[place + 1] = steps[place + 1], steps[place]
        elif what == "removed":
            returning.append((original - 1, PlannedStep(edit["before"])))
        elif what == "moved":
            elsewhere.add(place)
            returning.append((original - 1, steps[place]))
        elif what in ("inserted", "duplicated"):
            elsewhere.add(place)
    sound = [step for place, step in enumerate(steps) if place not in elsewhere]
    for place, step in sorted(returning, key=lambda entry: entry[0]):
        sound.insert(place, step)
    return sound
