"""One episode of a program whose functions stand under a law: draws, state, and what is written down of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, get_args

from resilisim.envs.session import EpisodeEnded, NotRepeatedError, difference_to
from resilisim.errors import ExactLimitError, Fault, InvalidInputError, StoreError, count_of, one_line
from resilisim.evaluation.episode.attribution import RAN_TWICE, loss_label, runs_again, totals_of, worth_of
from resilisim.evaluation.episode.record import (
    REGRET_TOLERANCE,
    EpisodeFacts,
    EpisodeRecord,
    StepRecord,
    failure_record,
)
from resilisim.evaluation.episode.record_builder import Happened, RecordBuilder
from resilisim.injection.call import (
    GONE,
    NO_END,
    DrawnCall,
    InjectedCall,
    OpenCall,
    Outcome,
)
from resilisim.injection.call_arguments import LONGEST_ARGUMENTS, CallArguments
from resilisim.injection.folder import CALL_SCHEMA, UNKNOWN_END, InjectionFolder
from resilisim.injection.inject_options import PROMPT_TYPE, Fail, InjectionSettings, with_lost_answers
from resilisim.policies.base import call_message
from resilisim.provenance import content_hash
from resilisim.run_folder import OpenLine
from resilisim.seeding import PURPOSE_PAYLOAD
from resilisim.simulator import Episode, Event, Goal, Message, Problem, build_problem
from resilisim.simulator.compiled import draw_bits, episode_luck_key, tool_luck_key
from resilisim.simulator.draws import KEYED, Forced
from resilisim.simulator.exact import Judge
from resilisim.simulator.exact.optimum import start_optimum
from resilisim.simulator.failures import Errors
from resilisim.simulator.problem import is_awaiting_closing, is_done, outcome
from resilisim.simulator.rulebook.lost_answers import has_run
from resilisim.simulator.rulebook.rules import CORRUPT, FAILURE, RESULTS
from resilisim.simulator.scoring import score_episode
from resilisim.simulator.state import EpisodeState
from resilisim.tasks.task import complexity_of
from resilisim.tool_library import Tool, ToolLibrary

_TASK_TYPE: Final = "own_program"


class CallsEnded(EpisodeEnded):
    """A function was called after the episode of its program; no retrying loop catches it.

    Attributes:
        episode: The episode that is over.
    """

    def __init__(self, episode: InjectedEpisode, words: str) -> None:
        super().__init__()
        self.episode = episode
        self.words = words

    def __str__(self) -> str:
        """Return why no more calls can be made."""
        return self.words


@dataclass(slots=True)
class _Begun:
    """A call that has begun and not ended yet."""

    name: str
    arguments: CallArguments
    drawn: DrawnCall
    since: float
    episode: Episode  # the one in which it was drawn, as the law may have begun anew since
    event: Event
    step: int | None  # where its step stands, if there is a goal
    opened: OpenCall | None = None  # once it is being made


class InjectedEpisode:
    """One episode of a program: its state, its draws, and what is written down.

    Calls count in the order in which they begin: a call that another one makes comes after it, and so does one that
    begins while another is under way. A call is taken to answer until it is known that it did not; what the function's
    own failure costs is booked when it is known.

    Nothing here runs code of the user's, so whoever shares an episode between threads can lock around every method.

    Args:
        settings: What was asked for.
        library: The functions.
        folder: Where to write, if other episodes are written there at the same time.

    Attributes:
        calls: The calls that have ended, in that order.
        instance_id: What episodes of these functions are told apart from those of others by.
        has_goal: Whether something is to be reached.
        score: How good the episode was, once it has ended; None without a goal.
        record: Its record, likewise.

    Raises:
        StoreError: The folder is another run's, or has an episode of this seed that has ended.
    """

    def __init__(
        self, settings: InjectionSettings, library: ToolLibrary, folder: InjectionFolder | None = None
    ) -> None:
        self.calls: list[InjectedCall] = []
        self._settings = settings
        self._library = library
        self._attempts = Counter[str]()
        self.has_goal = bool(settings.required)
        goal = Goal(settings.required or library.names[:1], settings.ordered, settings.once, settings.counts)
        self._problem: Problem = build_problem(library, goal, settings.law, settings.rules)
        # The draws are the same whatever is asked of the functions, so that modes and goals can be compared.
        self.instance_id = f"task_{content_hash(['inject', sorted(library.names)])[:16]}"
        self._errors: Errors = "documented" if settings.law.errors else "transient"
        self._forced = Forced.of(settings.force)
        self._forced.check_results(self._problem, self._errors)
        self._begin_law()
        if self.has_goal:
            self._judge = Judge(self._problem)
            self._optima = {fail: self._optimum(fail) for fail in get_args(Fail)}
        self._builder = RecordBuilder()
        self._steps = self._builder.steps
        self._messages: dict[str, Message] = {}  # of calls whose arguments decide nothing
        self._under_way: dict[int, _Begun] = {}
        self._given_up: dict[int, InjectedCall] = {}
        self.score: dict[str, Any] | None = None
        self.record: EpisodeRecord | None = None
        self._broken: StoreError | NotRepeatedError | None = None
        self._is_own = folder is None and settings.directory is not None
        self._folder = InjectionFolder(settings.directory) if self._is_own and settings.directory else folder
        self._index, self._manifest, self._calls, self._num_drawn = 0, "", 0, 0
        if self._folder is not None:
            self._index, self._manifest = self._folder.begin(settings.arguments(library))
            if self._is_own and self._folder.has_played(settings.seed):
                directory = self._folder.directory
                self.close()
                raise StoreError(
                    f"{directory} has the episode of seed {settings.seed} already, which would count twice: expected "
                    "another seed, or another folder"
                )

    def _begin_law(self) -> None:
        """Let the law begin, or begin anew, with draws of its own."""
        settings, number = self._settings, self._attempts.total()
        instance_id = f"{self.instance_id}/{number}" if number else self.instance_id
        is_forced = self._forced.calls and not number  # what is forced is of the first time
        self._draws = settings.draws or (self._forced if is_forced else KEYED)
        self._key = episode_luck_key(settings.salt, settings.seed, instance_id)
        self._episode = Episode(
            self._problem, instance_id, settings.seed, settings.salt, errors=self._errors, draws=self._draws
        )

    def _optimum(self, fail: Fail) -> float | None:
        """Return V* of the start if failures came before the functions run, or after; None where it is not known."""
        problem, law = self._problem, self._problem.law
        if problem.goal.once or problem.goal.counts == "effects":
            law = with_lost_answers(law, fail)
        try:
            return start_optimum(build_problem(self._library, problem.goal, law, problem.rules))
        except ExactLimitError:  # of the other one, which decides nothing here
            return None

    @property
    def _state(self) -> EpisodeState:
        return self._episode.state

    def draw(self, name: str, arguments: CallArguments) -> DrawnCall:
        """Draw a call, and let the law's state take it in as if the function itself will work.

        Raises:
            EpisodeEnded: There are no more calls.
        """
        self._check_open()
        event, step = self._sent(self._message(name, arguments))
        self._attempts[name] += 1
        self._num_drawn += 1
        failure = None if event.failure is None else (event.failure.code, event.failure.message)
        runs = event.failure is None or (event.result is not None and has_run(RESULTS.index(event.result)))
        attempt = event.attempt or 1
        is_corrupt = event.result == RESULTS[CORRUPT]
        drawn = DrawnCall(
            self._attempts[name],
            event.success_probability or 0.0,
            failure,
            runs,
            self._num_drawn,
            event.forced,
            is_corrupt,
            (self._draws.said(name, attempt) or "").partition(":")[2] or None if is_corrupt else None,
            draw_bits(*tool_luck_key(*self._key, name), attempt - 1, PURPOSE_PAYLOAD) if is_corrupt else 0,
            event.seconds,
        )
        if step is not None:
            step["attempt"] = drawn.attempt
        place = None if step is None else len(self._steps) - 1
        self._under_way[drawn.number] = _Begun(name, arguments, drawn, time.perf_counter(), self._episode, event, place)
        return drawn

    def _message(self, name: str, arguments: CallArguments) -> Message:
        """Return the message that a call is; arguments are looked at where a goal or the law asks for them."""
        if self.has_goal or self._problem.dynamics.reads_parameters:
            text = call_message(name, _as_parameters(arguments.shown)) if self.has_goal else ""
            parameters = _as_parameters(arguments.digest, arguments.shown)
            return Message("execute", tool=name, text=text, parameters=parameters)
        if name not in self._messages:
            self._messages[name] = Message("execute", tool=name)
        return self._messages[name]

    def _sent(self, message: Message, veto: str | None = None) -> tuple[Event, StepRecord | None]:
        """Let a message happen, and judge it if there is a goal.

        Where there is none calls do not end: after as many as there are turns the law begins anew.
        """
        if not self.has_goal and self._state.turns_used == self._settings.turns:
            self._begin_law()
        if self._settings.sent:
            self._broken = difference_to(self._settings.sent, len(self._steps), message.text, "the program")
            if self._broken is not None:
                raise self._broken
        before = self._state
        event = self._episode.draw(message)
        return event, self._judged(before, event, veto) if self.has_goal else None

    def open_call(self, name: str, arguments: CallArguments, drawn: DrawnCall | None) -> OpenCall:
        """Write down that a call is about to be made: if nothing more is ever written, it may have run.

        Args:
            name: The tool.
            arguments: What it is called with.
            drawn: What the law says of it; None if nothing was drawn.

        Raises:
            StoreError: It cannot be written down, so it must not be made.
        """
        self._calls += 1
        if self._folder is None:
            return OpenCall(self._calls, None)
        attempt, probability = (None, None) if drawn is None else (drawn.attempt, drawn.probability)
        call = InjectedCall(
            name,
            "misuse" if drawn is None else "real",
            attempt,
            probability,
            True,
            UNKNOWN_END,
            NO_END,
            0.0,
            arguments,
            drawn is not None and drawn.forced,
        )
        opened = OpenCall(self._calls, self._written(call, self._calls, is_open=True))
        if drawn is not None:
            self._under_way[drawn.number].opened = opened
        return opened

    def settle(
        self,
        name: str,
        arguments: CallArguments,
        drawn: DrawnCall,
        failure: tuple[str, str] | None,
        ran: bool,
        seconds: float,
        opened: OpenCall | None = None,
        corruption: str | None = None,
        undone: bool = True,
    ) -> InjectedCall:
        """Write down what became of a call; `failure` is the function's own, its kind and its words.

        `corruption` says in which way its answer was made wrong, if it was; `undone` whether the function's own failure
        means that it has done nothing.

        `opened` is what `open_call` returned, if the call was written down before it was made. A call that was given up
        when the episode ended stays given up.
        """
        begun = self._under_way.pop(drawn.number, None)
        if begun is None:
            return self._given_up[drawn.number]
        became: Outcome = "real" if failure is not None else "injected" if drawn.failure is not None else "ok"
        error, words = drawn.failure or (None, None)
        if failure is not None:
            error, words = failure[0], one_line(failure[1], LONGEST_ARGUMENTS)
        call = InjectedCall(
            name,
            became,
            drawn.attempt,
            drawn.probability,
            ran,
            error,
            words,
            round(seconds, 6),
            arguments,
            drawn.forced,
            corruption if became == "ok" else None,
            drawn.duration,
        )
        if begun.step is not None:
            step = self._steps[begun.step]
            step["success"], step["error"] = became == "ok", error
        is_own = drawn.failure is None or (drawn.runs and self._is_tracked(name))
        if failure is not None and undone and is_own:
            self._refuse(begun, failure)
        self.calls.append(call)
        self._write(call, opened or begun.opened)
        return call

    def misused(
        self,
        name: str,
        arguments: CallArguments,
        error: str,
        words: str,
        opened: OpenCall | None = None,
        ran: bool = False,
    ) -> InjectedCall:
        """Write down a call that cannot be made, with the kind and the words of the mistake; it uses up one call."""
        self._check_open()
        words = one_line(words, LONGEST_ARGUMENTS)
        text = call_message(name, _as_parameters(arguments.shown))
        message = Message("rejected", tool=name, problems=(words,), text=text)
        _, step = self._sent(message)
        if step is not None:
            step["error"] = words
        call = InjectedCall(name, "misuse", None, None, ran, error, words, 0.0, arguments)
        self.calls.append(call)
        self._write(call, opened)
        return call

    def give_up_calls(self) -> None:
        """End the calls that are under way: what has not answered by now has not answered."""
        for number, begun in list(self._under_way.items()):
            runs = begun.drawn.runs
            seconds = time.perf_counter() - begun.since
            failure = GONE if runs else None
            self._given_up[number] = self.settle(begun.name, begun.arguments, begun.drawn, failure, runs, seconds)

    def end(self, message: Message, veto: str | None = None, words: str | None = None) -> None:
        """End the episode: score it if there is a goal, and release the folder.

        Args:
            message: Whether the program has finished or stopped.
            veto: Why the outcome is not right all the same, a key of `REAL_LOSS_LABELS`; None if nothing says so.
            words: What else is known of that, for the record.

        Raises:
            StoreError: The record cannot be written.
        """
        try:
            if self._broken is not None:
                raise self._broken
            self.give_up_calls()
            if self.has_goal and self.score is None and self._state.ended_by is None:
                _, step = self._sent(message, veto)
                if step is not None:
                    step["error"] = None if words is None else one_line(words, LONGEST_ARGUMENTS)
                self._scored(veto)
        finally:
            self.close()

    def break_off(self, reason: str, words: str, fault: Fault) -> None:
        """Leave the episode without a score, because something outside broke, or may have, and release the folder.

        Args:
            reason: What was raised, by name.
            words: What it says.
            fault: Whose fault that is.
        """
        try:
            self.give_up_calls()
            if self._folder is not None and self.has_goal and fault in ("infrastructure", "unclear"):
                self._folder.write_failure(
                    failure_record(
                        self._index,
                        self._settings.name,
                        PROMPT_TYPE,
                        self.instance_id,
                        self._settings.seed,
                        error=words,
                        reason=reason,
                        fault=fault,
                    )
                )
        except StoreError:  # that is what broke, or the same disk
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Release the folder, if it is this episode's alone; an episode that has not ended has no score."""
        if self._folder is not None and self._is_own:
            self._folder.close()
        self._folder = None

    def add_tools(self, tools: Iterable[Tool]) -> None:
        """Take in functions that have come by; those that are known stay as they are.

        Raises:
            InvalidInputError: The law has parts, whose state covers the functions of the beginning.
        """
        new = [tool for tool in tools if tool.name not in self._library]
        if not new:
            return
        problem = self._problem
        if set(problem.law.parts) - {"lost_answer"} or problem.law.equivalents:
            raise InvalidInputError(
                f"{new[0].name!r} has come by: expected all functions at the beginning under a law with parts"
            )
        self._library = ToolLibrary([*self._library, *new])
        self._problem = build_problem(self._library, problem.goal, problem.law, problem.rules)
        self._episode.extend(self._problem)
        if self.has_goal:
            self._judge.extend(self._problem)

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The functions that the law covers."""
        return self._library.names

    @property
    def is_over(self) -> bool:
        """Whether no call is left for the goal; without one there always is."""
        if not self.has_goal:
            return False
        return self._state.ended_by is not None or is_awaiting_closing(self._problem, self._state)

    @property
    def why_over(self) -> str:
        """Why no call is left, for whoever makes another one."""
        if self._state.turns_used < self._settings.turns and self.score is None:
            return "the episode is over: its time is up"
        turns = count_of(self._settings.turns, "call")
        return f"the episode is over: it had {turns}, and all of them are used up"

    def _check_open(self) -> None:
        if self._broken is not None:
            raise self._broken
        if self.is_over:
            raise CallsEnded(self, self.why_over)

    def _refuse(self, begun: _Begun, failure: tuple[str, str]) -> None:
        """Take it back that a call has answered, since the function itself has failed."""
        begun.episode.settle(begun.event, failure=failure)
        if begun.step is not None:
            step = self._steps[begun.step]
            self._book(step, self._judge.correct(self._state))
            if "result" in step:
                step["result"] = RESULTS[FAILURE]

    def _book(self, step: StepRecord, price: float) -> None:
        """Add to the regret of a call what the function's own failure cost."""
        step["action_value"] -= price
        step["regret"] += price
        if step["regret"] <= REGRET_TOLERANCE:
            step["label"] = None
        elif step["label"] != RAN_TWICE:
            step["label"] = "refused_call"
        step["real"] = True

    def _judged(self, before: EpisodeState, event: Event, veto: str | None = None) -> StepRecord:
        """Add the step of a message to the record, and return it."""
        message, after = event.message, self._state
        judgement = self._judge.judge(before, message, after, self._decided(after, veto))
        label = None
        if judgement.regret > REGRET_TOLERANCE:
            label = RAN_TWICE if runs_again(before, after) else self._reason(before, message, veto)
        happened = Happened(success_probability=event.success_probability, forced=event.forced)
        if event.result is not None:
            happened["result"] = event.result
        if event.seconds is not None:
            happened["seconds"] = event.seconds
        return self._builder.add(message.text, message.kind, message.tool, worth_of(judgement, label), **happened)

    def _decided(self, after: EpisodeState, veto: str | None) -> int | None:
        """Return how an episode has come out, if somebody else says so than its state."""
        if after.ended_by is None or (veto is None and not self._settings.check_decides):
            return None
        decided = int(veto is None)
        return None if decided == outcome(self._problem, after) else decided

    def _is_tracked(self, name: str) -> bool:
        """Return whether it makes a difference that a function has run whose answer is lost."""
        return bool(self._problem.dynamics.rules.is_tracked[self._library.index(name)])

    def _reason(self, before: EpisodeState, message: Message, veto: str | None) -> str:
        if veto is not None and is_done(self._problem, before):
            return veto
        return loss_label(self._problem, before, message, plan_in_prompt=True)

    def _scored(self, veto: str | None) -> None:
        settings, state = self._settings, self._state
        executions = [
            (step["tool"] or "", bool(step["success"]), step.get("result"))
            for step in self._steps
            if step["attempt"] is not None
        ]
        ended_by, law = state.ended_by or "completion", self._problem.law.to_mapping()
        reached, ran_once = outcome(self._problem, state), self._problem.dynamics.has_run_well(state)
        judged = score_episode(self._problem.goal, (), _TASK_TYPE, executions, ended_by, law, ran_once)
        score = judged.to_mapping()
        if veto is None and (reached or settings.check_decides):
            score["level"] = "full_success"
        elif score["level"] == "full_success":
            score["level"] = "partial_success"
        score["grade"] = {
            "correct": score["level"] == "full_success",
            "score": score["coverage"],
            "criteria": {"check": veto != "wrong_end_state", "ran_once": ran_once},
        }
        self.score = score
        facts = EpisodeFacts(
            index=self._index,
            policy=settings.name,
            privileged=False,
            prompt_type=PROMPT_TYPE,
            planner=None,
            flaw=None,
            protocol="native",
            instance_id=self.instance_id,
            task_type=_TASK_TYPE,
            complexity=complexity_of(len(settings.required)),
            required_tools=list(settings.required),
            seed=settings.seed,
            salt=settings.salt,
            goal={**settings.told, **{f"optimum_failing_{side}": optimum for side, optimum in self._optima.items()}},
            manifest=self._manifest,
        )
        values = self._judge.values
        totals = totals_of(self._steps, values.gap)
        if settings.law.has_hidden_state:
            totals["optimum_knowledge"] = values.knowledge
        self.record = self._builder.record(facts, self._problem, score, (), totals)
        if self._folder is not None:
            self._folder.write_episode(self.record)

    def _write(self, call: InjectedCall, opened: OpenCall | None) -> None:
        if opened is None:
            self._calls += 1
        if self._folder is None:
            return
        number, place = (self._calls, None) if opened is None else (opened.number, opened.place)
        self._written(call, number, place)

    def _written(
        self, call: InjectedCall, number: int, place: OpenLine | None = None, is_open: bool = False
    ) -> OpenLine | None:
        """Write the line of a call; where that fails, nothing more can be done in the episode."""
        if self._folder is None:
            return None
        line = {"schema": CALL_SCHEMA, "episode": self._index, "seed": self._settings.seed, "call": number}
        line |= call.to_mapping()
        try:
            if is_open:
                return self._folder.write_open_call(line)
            if place is None:
                self._folder.write_call(line)
            else:
                self._folder.write_ended_call(place, line)
        except StoreError as error:
            self._broken = error
            raise
        return None


def _as_parameters(text: str, shown: str | None = None) -> dict[str, Any]:
    """Return what stands for the arguments of a call, among which there is nothing if nothing is shown."""
    return {"arguments": text} if (text if shown is None else shown) else {}
