"""Why a message cost something: one reason out of `records.LOSS_LABELS`, told from the state it was sent in.

Most reasons stand in the state. Two do not: what was asked before in the episode, and where the agent is in a flawed
plan. `Course` keeps these along an episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resilisim.evaluation.flawed_plan import FlawedPlan
from resilisim.simulator.law import SUCCEEDED
from resilisim.simulator.messages import Message
from resilisim.simulator.problem import Problem
from resilisim.simulator.state import NEXT_PLACE, EpisodeState, is_done, loop_count_of

_QUESTIONS = ("search", "info")


class Course:
    """What an episode has seen so far that its state does not hold.

    Args:
        problem: The task's numbers.
        planner: Who made the plan in the prompt; None if there is none.
        flaw: What is wrong with that plan, as it stands in records; None for a sound plan or none. Without its part
            `plan` (the tools as shown, with `limits` where steps have any) nothing is put down to the flaw.
    """

    __slots__ = ("_asked", "_flawed_plan", "_plan_in_prompt", "_problem")

    def __init__(self, problem: Problem, planner: str | None, flaw: Mapping[str, Any] | None) -> None:
        self._problem = problem
        # A flawed plan does not say what to do, so looking for it is information there, as without a plan.
        self._plan_in_prompt = planner is not None and flaw is None
        self._asked: set[int] = set()
        self._flawed_plan: FlawedPlan | None = None
        if flaw is not None and "plan" in flaw:
            self._flawed_plan = FlawedPlan(flaw, problem.library)

    def reason(self, state: EpisodeState, message: Message) -> str:
        """Return why a message that comes now costs something."""
        asked_before = message.kind in _QUESTIONS and message.signature in self._asked
        obeys_flaw = self._flawed_plan is not None and self._flawed_plan.is_obeyed_by(message)
        return loss_label(self._problem, state, message, self._plan_in_prompt, asked_before, obeys_flaw)

    def advance(self, message: Message, succeeded: bool) -> None:
        """Note a message, and whether it was an execution that succeeded."""
        if message.kind in _QUESTIONS:
            self._asked.add(message.signature)
        if self._flawed_plan is not None:
            self._flawed_plan.note(message, succeeded)


def loss_label(
    problem: Problem,
    state: EpisodeState,
    message: Message,
    plan_in_prompt: bool,
    asked_before: bool = False,
    obeys_flaw: bool = False,
) -> str:
    """Name the reason for a message's regret: the first that applies, the most telling first.

    Args:
        problem: The task's numbers.
        state: The state in which the message was sent.
        message: The message.
        plan_in_prompt: Whether the prompt named the tools to use, so that looking for them was no longer needed.
        asked_before: Whether the same was asked earlier in the episode; asked just now is seen in the state.
        obeys_flaw: Whether the message did what a flaw in the plan of the prompt says.
    """
    if is_done(problem, state):
        return "no_completion_signal"  # whatever was sent instead: the signal alone was missing
    if obeys_flaw:
        return "obeyed_flaw"  # whatever it led to: the agent did as it was told
    if message.kind in ("finish", "stop"):
        return "gave_up_early"
    if message.kind in _QUESTIONS:
        # What was asked once is known, so asking it again is no information.
        if asked_before or loop_count_of(state, message.signature) > 0:
            return "repeated_search"
        return "wasted_turn" if plan_in_prompt else "information"
    if message.kind == "format_error":
        return "format_error"
    if message.kind == "rejected":
        return "rejected_call"
    tool = problem.library.index(message.tool or "")
    if tool not in problem.closure:
        return "unneeded_tool"
    if state.status[tool] == SUCCEEDED:
        return "repeated_success"
    if problem.place[tool] > state.counters[NEXT_PLACE]:
        return "wrong_order"  # before a missing dependency: its success would already decide the episode
    if any(state.status[dependency] != SUCCEEDED for dependency in problem.dependencies[tool]):
        return "missing_dependency_first"
    return "suboptimal_choice"
