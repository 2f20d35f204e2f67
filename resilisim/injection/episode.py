"""One episode of a program whose functions stand under a law: draws, state, and what is written down of it."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, get_args

from resilisim.envs.session import EpisodeEnded
from resilisim.errors import Fault, InvalidInputError, StoreError, count_of, one_line, unknown_name
from resilisim.evaluation.episode.attribution import loss_label, totals_of
from resilisim.evaluation.episode.record import (
    FAILURE_SCHEMA,
    REGRET_TOLERANCE,
    EpisodeRecord,
    FailureRecord,
    StepRecord,
    Worth,
)
from resilisim.evaluation.episode.record_builder import EpisodeFacts, Happened, RecordBuilder
from resilisim.injection.call import (
    GONE,
    NO_END,
    DrawnCall,
    InjectedCall,
    InjectedFailure,
    OpenCall,
    Outcome,
    Raiser,
)
from resilisim.injection.call_arguments import LONGEST_ARGUMENTS, CallArguments
from resilisim.injection.folder import CALL_SCHEMA, UNKNOWN_END, InjectionFolder
from resilisim.policies.base import call_message
from resilisim.provenance import content_hash
from resilisim.run_folder import OpenLine
from resilisim.seeding import episode_key
from resilisim.simulator import (
    BenchmarkLaw,
    EndRules,
    EpisodeState,
    Message,
    Problem,
    build_problem,
    next_state,
    score_episode,
    start_state,
    success_probability,
)
from resilisim.simulator.compiled import tool_luck_key
from resilisim.simulator.draws import KEYED
from resilisim.simulator.exact.goal import Fail, Goal, GoalJudge, JudgedCall
from resilisim.simulator.failure_model import Law
from resilisim.simulator.law import FAILED
from resilisim.simulator.outcomes import Errors
from resilisim.simulator.rulebook.play import Draw
from resilisim.simulator.state import NUM_FAILURES
from resilisim.tasks.task import complexity_of
from resilisim.tool_library import ErrorSpec, Tool, ToolLibrary
from resilisim.tool_library.tool import standard_error_specs

TASK_TYPE: Final = "own_program"
PROMPT_TYPE: Final = "own program"


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
    step: int | None  # where its step stands, and what it did to the state in `_history`, if there is a goal
    change: int  # the last change of the state then
    opened: OpenCall | None = None  # once it is being made


@dataclass(frozen=True, slots=True)
class InjectionSettings:
    """What `inject` was asked for."""

    law: BenchmarkLaw | Law
    seed: int
    directory: Path | None
    required: tuple[str, ...]
    ordered: bool
    turns: int
    check: Callable[[], object] | None
    fail: Fail
    once: tuple[str, ...]
    raises: Raiser
    dependencies: Mapping[str, Sequence[str]] = field(hash=False)
    name: str
    salt: str

    def with_dependencies(self, tools: Mapping[str, Tool]) -> list[Tool]:
        """Return the tools, each with what it depends on, and with the errors that the law draws if it says which."""
        depended_on = itertools.chain(*self.dependencies.values())
        for name in (*self.dependencies, *self.required, *self.once, *depended_on):
            if name not in tools:
                raise unknown_name("function", name, tools)
        known, codes = standard_error_specs(), self.law.errors if isinstance(self.law, Law) else {}
        errors = tuple(known.get(code) or ErrorSpec(code, code, f"The call failed with {code}") for code in codes)
        return [
            replace(tool, dependencies=tuple(self.dependencies.get(name, ())), errors=errors or tool.errors)
            for name, tool in tools.items()
        ]

    def exception(self, tool: str, code: str, words: str) -> BaseException:
        """Return the exception that an injected failure is raised as."""
        return self.raises(InjectedFailure(tool, code, words))


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
        goal: What is to be reached; None if nothing is.
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
        rules = EndRules(settings.turns, max_consecutive_failures=0, loop_length=0)
        required = settings.required or library.names[:1]
        self._problem: Problem = build_problem(library, required, settings.law, rules)
        # The draws are the same whatever is asked of the functions, so that modes and goals can be compared.
        self._instance_id = f"task_{content_hash(['inject', sorted(library.names)])[:16]}"
        self._begin_law()
        once = tuple(library.index(name) for name in settings.once)
        self.goal: Goal | None = None
        if settings.required:
            self.goal = Goal(self._problem, settings.ordered, once, settings.fail)
            self._judge = GoalJudge(self.goal)
            self._optima = {fail: Goal(self._problem, settings.ordered, once, fail).value(self._state)
                            for fail in get_args(Fail)}  # fmt: skip
        told = {"required": list(settings.required), "ordered": settings.ordered, "once": list(settings.once)}
        self._told = {**told, "fail": settings.fail, "check": settings.check is not None}
        self._law_says_errors = isinstance(settings.law, Law) and bool(settings.law.errors)
        self._attempts = Counter[str]()
        self._answers = Counter[str]()  # calls of each function that are taken to have answered
        self._builder = RecordBuilder()
        self._steps = self._builder.steps
        self._history: list[JudgedCall] = []  # what led to the state, if there is a goal
        self._changes = 0  # of the state
        self._under_way: dict[int, _Begun] = {}
        self._given_up: dict[int, InjectedCall] = {}
        self.score: dict[str, Any] | None = None
        self.record: EpisodeRecord | None = None
        self._broken: StoreError | None = None
        self._is_own = folder is None and settings.directory is not None
        self._folder = InjectionFolder(settings.directory) if self._is_own and settings.directory else folder
        self._index, self._manifest, self._calls, self._num_drawn = 0, "", 0, 0
        if self._folder is not None:
            self._index, self._manifest = self._folder.begin(self._arguments())
            if self._is_own and self._folder.has_played(settings.seed):
                directory = self._folder.directory
                self.close()
                raise StoreError(
                    f"{directory} has the episode of seed {settings.seed} already, which would count twice: expected "
                    "another seed, or another folder"
                )

    def _begin_law(self, number: int = 0) -> None:
        """Let the law begin, or begin anew, with draws of its own."""
        again = f"/{number}" if number else ""
        self._key = episode_key(self._settings.salt, self._settings.seed, self._instance_id + again)
        self._tool_keys = {name: tool_luck_key(*self._key, name) for name in self._library.names}
        self._state = start_state(self._problem, self._key)

    def draw(self, name: str, arguments: CallArguments) -> DrawnCall:
        """Draw a call, and let the law's state take it in as if the function itself will work.

        Raises:
            EpisodeEnded: There are no more calls.
        """
        self._check_open()
        dynamics = self._problem.dynamics
        if dynamics.has_sections and self._state.turns_used == self._settings.turns:
            self._begin_law(self._attempts.total())
        tool, key, attempt = self._library.index(name), self._tool_keys[name], self._attempts[name]
        text = "" if self.goal is None else call_message(name, _as_parameters(arguments.shown))
        message = Message("execute", tool=name, text=text, parameters=_as_parameters(arguments.digest, arguments.shown))
        before = self._state
        errors: Errors = "documented" if self._law_says_errors else "transient"
        probability = success_probability(self._problem, before, tool, message)
        now = before
        if not dynamics.has_sections:  # whose state stays where its table ends, while calls go on
            now = replace(before, executions=(*before.executions[:tool], attempt, *before.executions[tool + 1 :]))
        draw, failure = KEYED.draw(self._problem, now, tool, message, key, errors)
        told = None if failure is None else (failure.code, failure.message)
        self._num_drawn += 1
        drawn = DrawnCall(message, before, attempt + 1, probability, told, self._num_drawn, draw)
        self._attempts[name] += 1
        self._answers[name] += told is None
        self._go_on(message, draw)
        step = None if self.goal is None else self._judged(message, before, drawn)
        self._under_way[drawn.number] = _Begun(name, arguments, drawn, time.perf_counter(), step, self._changes)
        return drawn

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
            arguments.shown,
            arguments.digest,
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
    ) -> InjectedCall:
        """Write down what became of a call; `failure` is the function's own, its kind and its words.

        `opened` is what `open_call` returned, if the call was written down before it was made. A call that was given up
        when the episode ended stays given up.
        """
        begun = self._under_way.pop(drawn.number, None)
        if begun is None:
            return self._given_up[drawn.number]
        outcome: Outcome = "real" if failure is not None else "injected" if drawn.failure is not None else "ok"
        error, words = drawn.failure or (None, None)
        if failure is not None:
            error, words = failure[0], one_line(failure[1], LONGEST_ARGUMENTS)
        call = InjectedCall(
            name,
            outcome,
            drawn.attempt,
            drawn.probability,
            ran,
            error,
            words,
            round(seconds, 6),
            arguments.shown,
            arguments.digest,
        )
        refused = failure is not None and drawn.failure is None
        if begun.step is not None:
            step = self._steps[begun.step]
            step["success"], step["error"] = outcome == "ok", error
        if refused:
            self._refuse(begun)
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
        before = self._state
        self._go_on(message, False)
        call = InjectedCall(name, "misuse", None, None, ran, error, words, 0.0, arguments.shown, arguments.digest)
        if self.goal is not None:
            self._steps[self._judged(message, before, None)]["error"] = words
        self.calls.append(call)
        self._write(call, opened)
        return call

    def give_up_calls(self) -> None:
        """End the calls that are under way: what has not answered by now has not answered."""
        for number, begun in list(self._under_way.items()):
            runs = begun.drawn.failure is None or self._settings.fail == "after"
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
            if self.goal is not None and self.score is None and self._state.ended_by is None:
                before = self._state
                self._state = next_state(self._problem, before, message)
                step = self._steps[self._judged(message, before, None, veto)]
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
            if self._folder is not None and self.goal is not None and fault in ("infrastructure", "unclear"):
                self._folder.write_failure(
                    FailureRecord(
                        schema=FAILURE_SCHEMA,
                        index=self._index,
                        policy=self._settings.name,
                        prompt_type=PROMPT_TYPE,
                        instance_id=self._instance_id,
                        seed=self._settings.seed,
                        error=words,
                        reason=reason,
                        calls=0,
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
        if problem.dynamics.has_sections:
            raise InvalidInputError(
                f"{new[0].name!r} has come by: expected all functions at the beginning under a law with parts"
            )
        self._library = ToolLibrary([*self._library, *new])
        required = [self._library.names[tool] for tool in problem.required]
        self._problem = build_problem(self._library, required, problem.law, problem.rules)
        more = start_state(self._problem)
        known = len(self._state.status)
        self._state = replace(
            self._state,
            status=self._state.status + more.status[known:],
            executions=self._state.executions + more.executions[known:],
        )
        self._tool_keys |= {tool.name: tool_luck_key(*self._key, tool.name) for tool in new}
        if self.goal is not None:
            self.goal = self._judge.goal = replace(self.goal, problem=self._problem, _values={})

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The functions that the law covers."""
        return self._library.names

    @property
    def is_over(self) -> bool:
        """Whether no call is left for the goal; without one there always is."""
        return self.goal is not None and (self.score is not None or self._state.turns_used >= self._settings.turns)

    def _check_open(self) -> None:
        if self._broken is not None:
            raise self._broken
        if self.is_over:
            turns = count_of(self._settings.turns, "call")
            raise CallsEnded(self, f"the episode is over: it had {turns}, and all of them are used up")

    def _go_on(self, message: Message, success: bool | Draw) -> None:
        # Without a goal calls never end; the law's counts then stay where its table ends.
        if self._state.turns_used >= self._settings.turns:
            return
        self._changes += 1
        if self.goal is not None:
            self._history.append(JudgedCall(message, success.passes if isinstance(success, Draw) else success))
        tool = self._library.index(message.tool or "") if message.kind == "execute" else -1
        dynamics = self._problem.dynamics
        self._state = dynamics.after(self._state, message, tool, success, dynamics.next_down(self._key, self._state))

    def _refuse(self, begun: _Begun) -> None:
        """Take it back that a call has answered, since the function itself has failed."""
        drawn, name = begun.drawn, begun.name
        self._answers[name] -= 1
        self._changes += 1
        if begun.step is not None:
            self._history[begun.step] = JudgedCall(drawn.message, success=False, refused=True)
            self._state, price = self._judge.correct(self._state, start_state(self._problem), self._history)
            self._book(self._steps[begun.step], price)
        elif begun.change == self._changes:  # nothing has happened since
            self._state = drawn.before
            self._go_on(drawn.message, replace(drawn.draw, refused=True))
        else:
            counters, status = list(self._state.counters), list(self._state.status)
            counters[NUM_FAILURES] = min(counters[NUM_FAILURES] + 1, self._settings.turns)
            if not self._answers[name]:
                status[self._library.index(name)] = FAILED
            self._state = replace(self._state, counters=tuple(counters), status=tuple(status))

    def _book(self, step: StepRecord, price: float) -> None:
        """Add to the regret of a call what the function's own failure cost."""
        step["action_value"] -= price
        step["regret"] += price
        if step["regret"] <= REGRET_TOLERANCE:
            step["label"] = None
        elif step["label"] != "ran_again":
            step["label"] = "refused_call"
        step["real"] = True

    def _judged(self, message: Message, before: EpisodeState, drawn: DrawnCall | None, veto: str | None = None) -> int:
        """Add the step of a message to the record, and return its place there."""
        was_spoilt = self._judge.is_spoilt
        found = self._judge.judge(before, message, self._state, veto is None)
        label = None
        if found.regret > REGRET_TOLERANCE:
            label = self._reason(before, message, self._judge.is_spoilt and not was_spoilt, veto)
        worth = Worth(
            value=found.value, action_value=found.action_value, regret=found.regret, luck=found.luck, label=label
        )
        happened = (
            Happened() if drawn is None else Happened(attempt=drawn.attempt, success_probability=drawn.probability)
        )
        self._builder.add(message.text, message.kind, message.tool, worth, **happened)
        return len(self._steps) - 1

    def _reason(self, before: EpisodeState, message: Message, spoils: bool, veto: str | None) -> str:
        if spoils:
            return "ran_again"
        if veto is not None and self.goal is not None and self.goal.is_reached(before):
            return veto
        label = loss_label(self._problem, before, message, plan_in_prompt=True)
        return "suboptimal_choice" if label == "wrong_order" and not self._settings.ordered else label

    def _scored(self, veto: str | None) -> None:
        settings, state = self._settings, self._state
        executions = [
            (step["tool"] or "", bool(step["success"])) for step in self._steps if step["attempt"] is not None
        ]
        required: Sequence[str] = settings.required
        if not settings.ordered:  # in the order in which they came
            came = dict.fromkeys(name for name, success in executions if success and name in required)
            required = [*came, *(name for name in required if name not in came)]
        ended_by = state.ended_by or "completion"
        score = score_episode(required, (), TASK_TYPE, executions, ended_by).to_mapping()
        reached = self.goal is not None and self.goal.is_reached(state) and not self._judge.is_spoilt
        if score["level"] == "full_success" and not (reached and veto is None):
            score["level"] = "partial_success"
        score["grade"] = {
            "correct": score["level"] == "full_success",
            "score": score["coverage"],
            "criteria": {"check": veto != "wrong_end_state", "ran_once": not self._judge.is_spoilt},
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
            instance_id=self._instance_id,
            task_type=TASK_TYPE,
            complexity=complexity_of(len(settings.required)),
            required_tools=list(settings.required),
            seed=settings.seed,
            salt=settings.salt,
            goal={**self._told, "optimum_before": self._optima["before"], "optimum_after": self._optima["after"]},
            manifest=self._manifest,
        )
        self.record = self._builder.record(facts, self._problem, score, (), totals_of(self._steps))
        if self._folder is not None:
            self._folder.write_episode(self.record)

    def _arguments(self) -> dict[str, Any]:
        settings = self._settings
        return {
            "inject": {"functions": [tool.to_mapping() for tool in self._library], **self._told},
            "environment": {
                **({"law": self._problem.law.to_mapping()} if isinstance(self._problem.law, Law) else
                   self._problem.law.to_mapping()),
                **self._problem.rules.to_mapping(),
                "salt": settings.salt,
            },
            "library": self._library.content_hash,
            "policies": [settings.name],
            "policy_names": [settings.name],
            "prompts": [PROMPT_TYPE],
        }  # fmt: skip

    def _write(self, call: InjectedCall, opened: OpenCall | None) -> None:
        if opened is None:
            self._calls += 1
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
