"""One episode of a program whose functions stand under a law: draws, state, and what is written down of it."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from resilisim.envs.session import EpisodeEnded
from resilisim.errors import InvalidInputError, one_line, unknown_name
from resilisim.evaluation.call_arguments import LONGEST_ARGUMENTS, CallArguments
from resilisim.evaluation.episode.attribution import loss_label, losses_of
from resilisim.evaluation.episode.record import RECORD_SCHEMA, REGRET_TOLERANCE, EpisodeRecord, StepRecord
from resilisim.evaluation.run.store import EPISODES_NAME, check_episode
from resilisim.policies.base import call_message
from resilisim.provenance import content_hash, encode_json_line
from resilisim.run_folder import MANIFEST_NAME, JsonLinesWriter, OpenLine, RunFolder, claim, own_file, run_manifest
from resilisim.seeding import PURPOSE_SUCCESS, episode_key
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
from resilisim.simulator.compiled import draw_bits, tool_luck_key
from resilisim.simulator.exact.goal import Fail, Goal, GoalJudge
from resilisim.simulator.failure_model import Law
from resilisim.simulator.outcomes import Errors, drawn_failure
from resilisim.simulator.parts.draws import draw_execution
from resilisim.simulator.parts.play import Draw
from resilisim.simulator.state import NUM_FAILURES, success_threshold_at
from resilisim.tasks.model import complexity_of
from resilisim.tool_library import ErrorSpec, Tool, ToolLibrary
from resilisim.tool_library.model import standard_error_specs

# What became of a call: it answered, was made to fail, failed by itself, or could not be made.
Outcome = Literal["ok", "injected", "real", "misuse"]

CALL_SCHEMA: Final = "resilisim-call-1"
CALLS_NAME: Final = "calls.jsonl"
TASK_TYPE: Final = "own_program"
PROMPT_TYPE: Final = "own program"
UNKNOWN_END: Final = "unknown"  # error of a call that was made, and of which nothing more was ever written
_NO_END: Final = "it was made, and whoever made it did not live to see its end"
_ROOM: Final = 640  # bytes of a line that are kept free for what becomes of a call


class InjectedFailure(Exception):
    """A call failed because the law said so.

    Attributes:
        tool: The function that was called.
        code: Code of the failure, such as TIMEOUT.
        message: Its words.
    """

    def __init__(self, tool: str, code: str, message: str) -> None:
        super().__init__(f"{tool}: {code}: {message}")
        self.tool, self.code, self.message = tool, code, message

    def __reduce__(self) -> tuple[type[InjectedFailure], tuple[str, str, str]]:
        """Travel between processes as tool, code and message."""
        return type(self), (self.tool, self.code, self.message)


# Which exception an injected failure is raised as: one class for all, or one for each code ("TIMEOUT").
Raises = type[Exception] | Mapping[str, type[Exception]]


@dataclass(frozen=True, slots=True)
class InjectedCall:
    """One call of a function under a law.

    Attributes:
        tool: The function's name.
        outcome: What became of it.
        attempt: Which call of the function it was, from 1; None for misuse, which draws nothing.
        probability: The law's probability that it would pass; None for misuse.
        ran: Whether the function ran.
        error: Code of an injected failure, or the class of an exception; None for an answer.
        message: Words of the failure.
        seconds: How long the function ran.
        arguments: What it was called with, shortened.

    Example:
        >>> import resilisim
        >>> tools = resilisim.inject([len], seed=3)
        >>> tools["len"]("abc")
        3
        >>> call = tools.calls[0]
        >>> call.outcome, call.attempt, call.probability
        ('ok', 1, 0.8)
    """

    tool: str
    outcome: Outcome
    attempt: int | None
    probability: float | None
    ran: bool
    error: str | None
    message: str | None
    seconds: float
    arguments: str

    @property
    def passed(self) -> bool:
        """Whether the law let it through."""
        return self.outcome in ("ok", "real")

    def to_mapping(self) -> dict[str, Any]:
        """Return the call as it stands in `calls.jsonl`."""
        return {"success": self.outcome == "ok", **{name: getattr(self, name) for name in self.__slots__}}


@dataclass(frozen=True, slots=True)
class DrawnCall:
    """What the law says of a call that is about to be made."""

    message: Message
    before: EpisodeState
    attempt: int
    probability: float
    failure: tuple[str, str] | None  # code and words


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call that was written down before it was made: its number, and where it stands (None: nowhere yet)."""

    number: int
    place: OpenLine | None


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
    raises: Raises
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

    def exception(self, tool: str, code: str, words: str) -> Exception:
        """Return the exception that an injected failure is raised as."""
        chosen = self.raises.get(code, InjectedFailure) if isinstance(self.raises, Mapping) else self.raises
        return chosen(tool, code, words) if issubclass(chosen, InjectedFailure) else chosen(f"{tool}: {code}: {words}")


class InjectionFolder:
    """The folder of the calls and the episodes of one program, of which several can be under way.

    Args:
        directory: Where; it is made, or added to, when the first episode begins.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._beginning = threading.Lock()
        self._folder: RunFolder | None = None
        self._episodes: JsonLinesWriter | None = None
        self._next = 0

    def begin(self, arguments: Mapping[str, Any]) -> tuple[int, str]:
        """Return the index of the next episode and the hash of the manifest.

        Raises:
            StoreError: The folder holds calls of other functions, or towards another goal.
        """
        with self._beginning:
            if self._folder is None:
                self._folder = RunFolder(self.directory, arguments, CALLS_NAME)
                self._episodes = JsonLinesWriter(own_file(self.directory, EPISODES_NAME), check_episode)
                indices: list[int] = [-1]
                self._folder.lines.resume(lambda line: indices.append(int(line["episode"])))
                self._episodes.resume(lambda line: indices.append(int(line["index"])))
                self._next = max(indices) + 1
            else:
                claim(self.directory / MANIFEST_NAME, run_manifest(arguments), self.directory, found=CALLS_NAME)
            self._next += 1
            return self._next - 1, self._folder.manifest["hash"]

    def write_call(self, line: Mapping[str, Any]) -> None:
        """Write a call to disk at once, so that whatever happens next, it is there."""
        if self._folder is not None:
            self._folder.lines.write_encoded(encode_json_line(line))

    def write_open_call(self, line: Mapping[str, Any]) -> OpenLine | None:
        """Write a call that is about to be made as one of which no more is known; return where it stands."""
        return None if self._folder is None else self._folder.lines.write_open(encode_json_line(line), _ROOM)

    def write_ended_call(self, place: OpenLine, line: Mapping[str, Any]) -> None:
        """Write a call that has ended in the place where it was written before it was made."""
        if self._folder is None:
            return
        message = str(line["message"] or "")
        encoded = encode_json_line(line)
        while len(encoded) > place.length and message:  # others have been written behind it, so there is no more room
            message = message[: -max(len(encoded) - place.length, 4) // 2]
            encoded = encode_json_line({**line, "message": f"{message}..."})
        self._folder.lines.write_in_place(place, encoded)

    def write_episode(self, record: EpisodeRecord) -> None:
        """Write an episode that has ended."""
        if self._episodes is not None:
            self._episodes.write(record)

    def close(self) -> None:
        """Release the folder."""
        for each in (self._folder, self._episodes):
            if each is not None:
                each.close()
        self._folder = self._episodes = None


class InjectedEpisode:
    """One episode of a program: its state, its draws, and what is written down.

    Args:
        settings: What was asked for.
        library: The functions.
        folder: Where to write, if other episodes are written there at the same time.
    """

    def __init__(
        self, settings: InjectionSettings, library: ToolLibrary, folder: InjectionFolder | None = None
    ) -> None:
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
        self._steps: list[StepRecord] = []
        self._asked_again = False
        self.score: dict[str, Any] | None = None
        self.record: EpisodeRecord | None = None
        self._is_own = folder is None and settings.directory is not None
        self._folder = InjectionFolder(settings.directory) if self._is_own and settings.directory else folder
        self._index, self._manifest, self._calls = 0, "", 0
        if self._folder is not None:
            self._index, self._manifest = self._folder.begin(self._arguments())

    def _begin_law(self, number: int = 0) -> None:
        """Let the law begin, or begin anew, with draws of its own."""
        again = f"/{number}" if number else ""
        self._key = episode_key(self._settings.salt, self._settings.seed, self._instance_id + again)
        self._tool_keys = {name: tool_luck_key(*self._key, name) for name in self._library.names}
        self._state = start_state(self._problem, self._key)

    def draw(self, name: str, arguments: CallArguments) -> DrawnCall:
        """Draw a call, and let the law's state take it in as if the function itself will work."""
        self._check_open()
        parts = self._problem.parts
        if parts is not None and self._state.turns_used == self._settings.turns:
            self._begin_law(self._attempts.total())
        tool, key, attempt = self._library.index(name), self._tool_keys[name], self._attempts[name]
        self._attempts[name] += 1
        text = "" if self.goal is None else call_message(name, _as_parameters(arguments.shown))
        message = Message("execute", tool=name, text=text, parameters=_as_parameters(arguments.digest, arguments.shown))
        before = self._state
        errors: Errors = "documented" if self._law_says_errors else "transient"
        probability = success_probability(self._problem, before, tool, message)
        found, drawn = None, None
        if parts is not None:
            drawn, found = draw_execution(self._problem, parts, before, tool, message, key, errors)
        else:
            bits = draw_bits(*key, attempt, PURPOSE_SUCCESS)
            if bits >= success_threshold_at(self._problem, before, tool):
                found = drawn_failure(self._problem, before, tool, bits, key, attempt, errors)
        self._go_on(message, found is None if drawn is None else drawn)
        failure = None if found is None else (found.code, found.message)
        return DrawnCall(message, before, attempt + 1, probability, failure)

    def open_call(self, name: str, arguments: CallArguments, drawn: DrawnCall | None) -> OpenCall:
        """Write down that a call is about to be made: if nothing more is ever written, it may have run.

        Args:
            name: The tool.
            arguments: What it is called with.
            drawn: What the law says of it; None if nothing was drawn.
        """
        self._calls += 1
        place = None
        if self._folder is not None:
            attempt, probability = (None, None) if drawn is None else (drawn.attempt, drawn.probability)
            outcome: Outcome = "misuse" if drawn is None else "real"
            call = InjectedCall(name, outcome, attempt, probability, True, UNKNOWN_END, _NO_END, 0.0, arguments.shown)
            place = self._folder.write_open_call(self._line(call, self._calls))
        return OpenCall(self._calls, place)

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

        `opened` is what `open_call` returned, if the call was written down before it was made.
        """
        outcome: Outcome = "real" if failure is not None else "injected" if drawn.failure is not None else "ok"
        error, words = drawn.failure or (None, None)
        refused = False
        if failure is not None:
            error, words = failure[0], one_line(failure[1], LONGEST_ARGUMENTS)
            refused = drawn.failure is None
            if refused and self.goal is not None:  # nobody else has called since
                self._state = next_state(self._problem, drawn.before, drawn.message, success=False)
            elif refused:
                self._count_failure()
        call = InjectedCall(
            name, outcome, drawn.attempt, drawn.probability, ran, error, words, round(seconds, 6), arguments.shown
        )
        self._write(call, opened)
        if self.goal is not None:
            self._judged(drawn.message, drawn.before, call, refused)
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
        call = InjectedCall(name, "misuse", None, None, ran, error, words, 0.0, arguments.shown)
        self._write(call, opened)
        if self.goal is not None:
            self._judged(message, before, call, False)
        return call

    def end(self, message: Message) -> None:
        """End the episode: score it if there is a goal, and release the folder."""
        if self.goal is not None and self.score is None and self._state.ended_by is None:
            before = self._state
            self._state = next_state(self._problem, before, message)
            check = self._settings.check
            approved = check is None or bool(check())
            self._judged(message, before, None, False, approved)
            self._scored(approved)
        self.close()

    def close(self) -> None:
        """Release the folder, if it is this episode's alone."""
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
        if problem.parts is not None:
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
        if self.is_over:
            raise EpisodeEnded

    def _go_on(self, message: Message, success: bool | Draw) -> None:
        # Without a goal calls never end; the law's counts then stay where its table ends.
        if self._state.turns_used >= self._settings.turns:
            return
        if (parts := self._problem.parts) is None:
            self._state = next_state(self._problem, self._state, message, success)
        else:
            tool = self._library.index(message.tool or "") if message.kind == "execute" else -1
            down = parts.next_down(self._key, self._state)
            self._state = parts.after(self._state, message, tool, success, down)

    def _count_failure(self) -> None:
        """Count a function's own failure, which calls since may have overtaken."""
        counters = list(self._state.counters)
        counters[NUM_FAILURES] = min(counters[NUM_FAILURES] + 1, self._settings.turns)
        self._state = replace(self._state, counters=tuple(counters))

    def _judged(
        self, message: Message, before: EpisodeState, call: InjectedCall | None, refused: bool, approved: bool = True
    ) -> None:
        spoilt = self._judge.is_spoilt
        found = self._judge.judge(before, message, self._state, refused, approved)
        label = None
        if found.regret > REGRET_TOLERANCE:
            label = self._reason(before, message, refused, self._judge.is_spoilt and not spoilt, approved)
        fields = {
            "turn": len(self._steps) + 1,
            "message": message.text,
            "kind": message.kind,
            "tool": message.tool,
            "attempt": None if call is None else call.attempt,
            "success": None if call is None or call.attempt is None else call.outcome == "ok",
            "error": None if call is None else call.message if call.outcome == "misuse" else call.error,
            "success_probability": None if call is None else call.probability,
            **({"real": True} if refused else {}),
            "value": found.value,
            "action_value": found.action_value,
            "regret": found.regret,
            "luck": found.luck,
            "label": label,
        }
        self._steps.append(cast("StepRecord", fields))

    def _reason(self, before: EpisodeState, message: Message, refused: bool, spoils: bool, approved: bool) -> str:
        if spoils:
            return "ran_again"
        if refused:
            return "refused_call"
        if not approved:
            return "wrong_end_state"
        label = loss_label(self._problem, before, message, plan_in_prompt=True)
        return "suboptimal_choice" if label == "wrong_order" and not self._settings.ordered else label

    def _scored(self, approved: bool) -> None:
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
        if score["level"] == "full_success" and not (reached and approved):
            score["level"] = "partial_success"
        score["grade"] = {
            "correct": score["level"] == "full_success",
            "score": score["coverage"],
            "criteria": {"check": approved, "ran_once": not self._judge.is_spoilt},
        }
        self.score = score
        outcome = int(score["level"] == "full_success")
        fields = {
            "schema": RECORD_SCHEMA,
            "index": self._index,
            "policy": settings.name,
            "privileged": False,
            "prompt_type": PROMPT_TYPE,
            "planner": None,
            "flaw": None,
            "protocol": "native",
            "instance_id": self._instance_id,
            "task_type": TASK_TYPE,
            "complexity": complexity_of(len(settings.required)),
            "required_tools": list(settings.required),
            "required_outputs": [],
            "seed": settings.seed,
            "steps": self._steps,
            "ended_by": ended_by,
            "score": score,
            "outcome": outcome,
            "optimum": self._steps[0]["value"],
            "optimum_gap": 0.0,
            "known_after_search": None,
            "searches_needed": None,
            "no_search_ceiling": None,
            "regret": sum(step["regret"] for step in self._steps),
            "luck": sum(step["luck"] for step in self._steps),
            "losses": losses_of(self._steps),
            "law": self._problem.law.to_mapping(),
            "rules": self._problem.rules.to_mapping(),
            "salt": settings.salt,
            "goal": {**self._told, "optimum_before": self._optima["before"], "optimum_after": self._optima["after"]},
            "manifest": self._manifest,
        }
        self.record = cast("EpisodeRecord", fields)
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

    def _write(self, call: InjectedCall, opened: OpenCall | None = None) -> None:
        if opened is None:
            self._calls += 1
        if self._folder is None:
            return
        line = self._line(call, self._calls if opened is None else opened.number)
        if opened is None or opened.place is None:
            self._folder.write_call(line)
        else:
            self._folder.write_ended_call(opened.place, line)

    def _line(self, call: InjectedCall, number: int) -> dict[str, Any]:
        line = {"schema": CALL_SCHEMA, "episode": self._index, "seed": self._settings.seed, "call": number}
        return {**line, **call.to_mapping()}


def _as_parameters(text: str, shown: str | None = None) -> dict[str, Any]:
    """Return what stands for the arguments of a call, among which there is nothing if nothing is shown."""
    return {"arguments": text} if (text if shown is None else shown) else {}
