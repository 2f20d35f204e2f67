"""Where an episode's draws come from: a key, a given branch, or a key but for calls whose results are forced.

An episode asks one object, which is handed in (`Draws`). All of them tell the same kind of thing, a `Draw` and the
failure that is shown; what an agent reads (which error code, which payload, which words) is a function of the episode's
key in any case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Literal, Protocol

from resilisim.errors import InvalidInputError, unknown_name
from resilisim.seeding import PURPOSE_SUCCESS
from resilisim.simulator.compiled import draw_bits
from resilisim.simulator.failures import (
    RATE_LIMIT_ERROR,
    SERVICE_UNAVAILABLE,
    TIMEOUT,
    Errors,
    Failure,
    PendingCall,
    filled_failure,
    possible_errors,
    shown_failure,
)
from resilisim.simulator.law import CORRUPTIONS, OVERSIZED
from resilisim.simulator.problem import Problem
from resilisim.simulator.rulebook.drawn_results import (
    OF_DEPENDENCIES,
    OTHER_ERROR,
    draw_duration,
    draw_error,
    draw_result,
    failing_bits,
    is_lost,
)
from resilisim.simulator.rulebook.dynamics import NOTHING, UNTIMED, Draw
from resilisim.simulator.rulebook.lost_answers import shown_result
from resilisim.simulator.rulebook.rules import (
    ACCESS_FAILURE,
    CORRUPT,
    DOWN,
    FAILURE,
    INPUT_FAILURE,
    LIMITED,
    REFUSED,
    RESULTS,
    SLOW,
    SUCCESS,
    UNANSWERED,
    UNANSWERED_LATE,
    UNCHECKED,
    clean_threshold,
    law_threshold,
    time_limit,
)
from resilisim.simulator.state import TURNS_USED
from resilisim.tool_library import ErrorSpec, ToolLibrary

Hidden = Literal["drawn", "kept", "open"]


class Draws(Protocol):
    """What an episode asks what luck brings to a call.

    Example:
        >>> from resilisim import default_library
        >>> from resilisim.simulator import Episode, build_problem, execution
        >>> from resilisim.simulator.draws import Keyed
        >>> class Luckless(Keyed):
        ...     def draw(self, call):
        ...         draw, _ = super().draw(call)
        ...         return draw, None
        >>> problem = build_problem(default_library(), ["network_fetcher"])
        >>> Episode(problem, "task_1", seed=0, draws=Luckless()).apply(execution("network_fetcher")).failure is None
        True
    """

    @property
    def hidden(self) -> Hidden:
        """Where what agents cannot see is told (what is down, broken, unsound, has run).

        If "drawn", in the state; if "kept", apart from it, as far as results tell it (`Episode.unseen`); else nowhere.
        """
        ...

    def draw(self, call: PendingCall) -> tuple[Draw, Failure | None]:
        """Return what a call brings, and the failure that is shown, if it is one."""
        ...

    def said(self, tool: str, attempt: int) -> str | None:
        """Return what somebody has said beforehand that a call brings (`Forced`); None if it is drawn."""
        ...


class Keyed:
    """Draws by the key of the episode: the same for every agent, each a function of tool and number of the call."""

    hidden: ClassVar[Hidden] = "drawn"

    def draw(self, call: PendingCall) -> tuple[Draw, Failure | None]:
        """Return what luck brings to a call (`Draws.draw`)."""
        problem, state, tool, message, key, _, _ = call
        dynamics, status, attempt = problem.dynamics, state.status, state.executions[tool]
        rules, numbers = dynamics.rules, dynamics.numbers
        threshold = law_threshold(rules, numbers.tables, status, state.counters, tool)
        bits = draw_bits(*key, attempt, PURPOSE_SUCCESS)
        clean = 0  # read of failures only
        if bits >= threshold or rules.at_broken >= 0:
            clean = clean_threshold(rules, numbers.tables, state.counters, tool)
        result, ticks, error = draw_result(
            rules,
            numbers.luck,
            status,
            state.parts or NOTHING,
            state.hidden or NOTHING,
            tool,
            dynamics.digest(tool, message) if rules.at_block >= 0 else 0,
            threshold,
            clean,
            *key,
            attempt,
            bits,
        )
        draw = Draw(result, ticks) if ticks else UNTIMED[result]
        if result != SUCCESS:
            return draw, shown_failure(call, draw, error)
        if (not rules.shows_payload and rules.is_validator[tool]) or rules.is_checker[tool]:
            draw = _told_draw(call, draw)
        return draw, None

    def said(self, tool: str, attempt: int) -> str | None:
        """Return what was said beforehand of a call (`Draws.said`)."""
        return None


def _told_draw(call: PendingCall, draw: Draw) -> Draw:
    """Return the draw of a success with what it tells, where that is known."""
    dynamics, state, tool = call.dynamics, call.state, call.tool
    findings = dynamics.true_findings(state) if dynamics.rules.is_validator[tool] else 0
    return replace(draw, findings=findings, told=dynamics.true_told(state, tool))


KEYED: Final = Keyed()


@dataclass(frozen=True, slots=True)
class BranchingPoint:
    """A call whose result was not certain by what an agent can know.

    Attributes:
        tool: Name of the tool.
        attempt: Which execution of the tool it was, from 1.
        turn: Number of the message that made the call, from 1.
        options: What it could bring, each with its probability.
        taken: Which of them it brought.
        has_unseen: Whether agents do not tell some of them apart.
    """

    tool: str
    attempt: int
    turn: int
    options: tuple[tuple[float, Draw], ...]
    taken: int
    has_unseen: bool = False

    @property
    def draw(self) -> Draw:
        """What it brought."""
        return self.options[self.taken][1]


def likeliest(options: Sequence[tuple[float, Draw]]) -> int:
    """Return the place of the likeliest of some options, the first of equals."""
    return max(range(len(options)), key=lambda option: options[option][0])


@dataclass(slots=True)
class Branch:
    """Draws that are given, call by call; behind their end the likeliest, or what else `beyond` chooses.

    A given one is asked for wherever more than one thing can happen by what an agent can know (`Dynamics.draws`);
    durations that count are told apart, too. Nothing is hidden: an episode on a branch is one as agents know it. But
    for what has run, and what is sound where only validators tell: a failure before the run and one after it are two
    results, which agents do not tell apart, and so are a sound answer and a corrupt one. What they are told of that
    later is what happened here.

    A branch `as_agents_know` leaves that open as well: what a validator finds, or a call tells of runs, is told apart
    instead, each as likely as agents can say.

    Attributes:
        results: What the first branching points bring.
        beyond: Chooses what later ones bring: the place of one of the options, each with its probability.
        as_agents_know: Whether what agents do not tell apart is one result.
        points: Branching points so far.
        tells_unseen_apart: Whether results were told apart that agents do not tell apart.

    Example:
        >>> from resilisim import default_library
        >>> from resilisim.simulator import Episode, build_problem, execution
        >>> from resilisim.simulator.draws import Branch
        >>> from resilisim.simulator.rulebook.dynamics import FAILS
        >>> branch = Branch([FAILS])
        >>> episode = Episode(build_problem(default_library(), ["network_fetcher"]), "task_1", seed=0, draws=branch)
        >>> [episode.apply(execution("network_fetcher")).success for _ in range(2)], round(branch.probability, 3)
        ([False, True], 0.144)
    """

    results: Sequence[Draw] = ()
    beyond: Callable[[Sequence[tuple[float, Draw]]], int] = likeliest
    as_agents_know: bool = False
    points: list[BranchingPoint] = field(default_factory=list)
    tells_unseen_apart: bool = field(default=False, init=False)

    @property
    def hidden(self) -> Hidden:
        """Whether what has run, and is sound, is left open even here."""
        return "open" if self.as_agents_know else "kept"

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> Branch:
        """Return the branch that a record holds (`to_texts`).

        Raises:
            InvalidInputError: A text is no result.
        """
        return cls([_draw_of(text) for text in texts])

    def to_texts(self) -> list[str]:
        """Return what the branching points have brought: "failure"; with ticks and findings "success 3 0"."""
        draws = (point.draw for point in self.points)
        return [" ".join(map(str, (RESULTS[draw.result], *_numbers_of(draw)))) for draw in draws]

    @property
    def probability(self) -> float:
        """Probability of what happened so far, given the messages that were sent."""
        product = 1.0
        for point in self.points:
            product *= point.options[point.taken][0]
        return product

    def draw(self, call: PendingCall) -> tuple[Draw, Failure | None]:
        """Return what a call brings (`Draws.draw`).

        Raises:
            InvalidInputError: What is given for it cannot happen.
        """
        options = self._options(call)
        taken = 0
        if len(options) > 1:
            name, attempt = call.name, call.executions + 1
            taken = self._chosen(options, f"call {attempt} of {name}")
            turn = call.state.counters[TURNS_USED] + 1
            hides = (UNANSWERED, UNANSWERED_LATE, *((CORRUPT,) if call.dynamics.rules.at_unsound >= 0 else ()))
            has_unseen = any(draw.result in hides for _, draw in options)
            self.points.append(BranchingPoint(name, attempt, turn, tuple(options), taken, has_unseen))
        draw = _timed(call, options[taken][1])
        return draw, shown_failure(call, draw, _error(call, draw))

    def said(self, tool: str, attempt: int) -> str | None:
        """Return what was said beforehand of a call (`Draws.said`)."""
        return None

    def _options(self, call: PendingCall) -> list[tuple[float, Draw]]:
        """Return what a call can bring, given what has run here and what is not sound."""
        dynamics, state, tool, unseen = call.dynamics, call.state, call.tool, call.unseen
        rules, is_validator = dynamics.rules, dynamics.rules.is_validator[tool]
        if self.as_agents_know or (rules.at_lost < 0 and rules.at_unsound < 0):
            return _with_all_findings(call, dynamics.draws(state, tool, call.message))
        self.tells_unseen_apart = True
        known = dynamics.told_of_runs(state, unseen) if rules.at_lost >= 0 else state
        truth = replace(state, hidden=tuple(unseen))
        told = dynamics.true_told(truth, tool)
        findings = dynamics.true_findings(truth) if is_validator else 0
        corrupt = float(rules.corrupt_chance[tool]) if rules.at_unsound >= 0 else 0.0
        options: dict[Draw, float] = {}

        def add(chance: float, draw: Draw) -> None:
            if chance > 0.0:
                options[draw] = options.get(draw, 0.0) + chance

        for chance, draw in dynamics.draws(known, tool, call.message):
            if draw.result == SUCCESS:
                add(chance * (1.0 - corrupt), replace(draw, told=told, findings=findings))
                add(chance * corrupt, replace(draw, result=CORRUPT, told=told, findings=0))
                continue
            share = dynamics.share_lost(known, tool, draw.result) if rules.is_tracked[tool] else 0.0
            add(chance * share, replace(draw, result=UNANSWERED if draw.result == FAILURE else UNANSWERED_LATE))
            add(chance * (1.0 - share), draw)
        return [(chance, draw) for draw, chance in options.items()]

    def _chosen(self, options: Sequence[tuple[float, Draw]], where: str) -> int:
        number = len(self.points)
        if number >= len(self.results):
            return self.beyond(options)
        for option, (_, draw) in enumerate(options):
            if draw == self.results[number]:
                return option
        wanted = self.results[number]
        there = ", ".join(dict.fromkeys(RESULTS[draw.result] for _, draw in options))
        raise InvalidInputError(f"{where} cannot bring {RESULTS[wanted.result]} ({wanted}): expected one of {there}")


def _with_all_findings(call: PendingCall, draws: list[tuple[float, Draw]]) -> list[tuple[float, Draw]]:
    """Return draws with what a validator can find of outputs that are not required: agents are told of them, too."""
    rules = call.dynamics.rules
    if not rules.is_validator[call.tool] or rules.shows_payload:
        return draws
    for other in range(rules.num_tools):
        if rules.place[other] < 0 and call.state.parts[rules.at_sound + other] == UNCHECKED:
            corrupt = float(rules.corrupt_chance[other])
            draws = [
                (chance * share, replace(draw, findings=draw.findings | bit << other))
                for chance, draw in draws
                for share, bit in ([(1.0 - corrupt, 0), (corrupt, 1)] if draw.result == SUCCESS else [(1.0, 0)])
                if share > 0.0
            ]
    return draws


def _draw_of(text: str) -> Draw:
    name, *numbers = text.split(" ")
    if name not in RESULTS or len(numbers) not in (0, 2, 3) or not all(map(str.isdecimal, numbers)):
        raise InvalidInputError(
            f"branch holds {text!r:.60}: expected one of {', '.join(RESULTS)}, perhaps with numbers"
        )
    ticks, findings, told = map(int, (*numbers, *["0"] * (3 - len(numbers))))
    return Draw(RESULTS.index(name), ticks, findings, told)


def _numbers_of(draw: Draw) -> tuple[int, ...]:
    """Return what a record holds of a draw beside its result."""
    if draw.told:
        return draw.ticks, draw.findings, draw.told
    return (draw.ticks, draw.findings) if draw.ticks or draw.findings else ()


OK: Final = "ok"
CORRUPTED: Final = "corrupt"  # also in one way, "corrupt:stale"
SLOWEST: Final = "slow"  # a success that takes as long as one can
BEFORE, AFTER = "before", "after"  # of the run of a tool, behind the code of a failure
_FORCED = re.compile(r"(?P<tool>.+)#(?P<attempt>[0-9]{1,9})=(?P<result>[^=]+)", re.DOTALL)
_EXPECTED = "TOOL#NUMBER=RESULT, such as network_fetcher#2=TIMEOUT or network_fetcher#1=ok"


@dataclass(frozen=True)
class Forced:
    """Draws by the key of the episode, but for calls of which it is said what they bring.

    Attributes:
        calls: By tool and number of the call, from 1: "ok", "corrupt" or "corrupt:KIND" (`law.Corrupt`), "slow", or the
            code of an error. "TIMEOUT/after" is one that comes after the tool has run, "TIMEOUT/before" one before;
            else the key says which.

    Example:
        >>> from resilisim import default_library
        >>> from resilisim.simulator import Episode, build_problem, execution
        >>> from resilisim.simulator.draws import Forced
        >>> library = default_library()
        >>> forced = Forced.of(["network_fetcher#1=TIMEOUT"], library)
        >>> episode = Episode(build_problem(library, ["network_fetcher"]), "task_1", seed=0, draws=forced)
        >>> [episode.apply(execution("network_fetcher")).failure for _ in range(2)][0].code, episode.events[0].forced
        ('TIMEOUT', True)
    """

    calls: Mapping[tuple[str, int], str]
    hidden: ClassVar[Hidden] = "drawn"

    @classmethod
    def of(cls, texts: Iterable[str], library: ToolLibrary | None = None) -> Forced:
        """Return what texts such as "network_fetcher#2=TIMEOUT" say.

        Raises:
            InvalidInputError: One of them says nothing, or names what the library lacks; the line gives the nearest.
        """
        calls: dict[tuple[str, int], str] = {}
        for text in texts:
            parts = _FORCED.fullmatch(text)
            if parts is None or int(parts["attempt"]) < 1:
                raise InvalidInputError(f"force is {text!r:.200}: expected {_EXPECTED}")
            call = parts["tool"], int(parts["attempt"])
            if calls.setdefault(call, parts["result"]) != parts["result"]:
                raise InvalidInputError(
                    f"force says {calls[call]} and {parts['result']} of call {call[1]} of {call[0]}: expected one"
                )
        forced = cls(calls)
        if library is not None:
            forced.check(library)
        return forced

    def check(self, library: ToolLibrary) -> None:
        """Refuse tools that a library lacks.

        Raises:
            InvalidInputError: The line gives the nearest name.
        """
        for tool, _ in self.calls:
            if tool not in library:
                raise unknown_name("tool", tool, library.names, "force")

    def check_results(self, problem: Problem, errors: Errors = "documented") -> None:
        """Refuse results that a tool cannot have under the law of a problem.

        Raises:
            InvalidInputError: The line gives the nearest name.
        """
        self.check(problem.library)
        for tool, attempt in self.calls:
            self._spec(problem, problem.library.index(tool), self.calls[tool, attempt], errors)

    def to_texts(self) -> list[str]:
        """Return what is forced, as `of` reads it."""
        return [f"{tool}#{attempt}={result}" for (tool, attempt), result in self.calls.items()]

    def unused(self, made: Collection[tuple[str, int]]) -> list[str]:
        """Return what is forced of other calls than those that were made (`calls`), as `of` reads it."""
        return Forced({call: result for call, result in self.calls.items() if call not in made}).to_texts()

    def draw(self, call: PendingCall) -> tuple[Draw, Failure | None]:
        """Return what a call brings (`Draws.draw`).

        Raises:
            InvalidInputError: The tool cannot have the result that is forced.
        """
        wanted = self.calls.get((call.name, call.executions + 1))
        if wanted is None:
            return KEYED.draw(call)
        spec = self._spec(call.problem, call.tool, wanted, call.errors)
        if spec is None:
            drawn = _told_draw(call, Draw(CORRUPT if wanted.partition(":")[0] == CORRUPTED else SUCCESS))
            if wanted == SLOWEST:
                drawn = replace(drawn, ticks=_most_ticks(call))
            return replace(_timed(call, drawn), forced=True), None
        code, _, side = wanted.partition("/")
        result = _result_of(call.problem, call.tool, code)
        if result in (FAILURE, SLOW):
            rules, hidden = call.dynamics.rules, call.state.hidden
            is_broken = rules.at_broken >= 0 and hidden and hidden[rules.at_broken + call.tool]
            by_key = not is_broken and is_lost(rules, call.tool, *call.key, call.executions)
            if side == AFTER or (by_key and side != BEFORE):
                result = UNANSWERED if result == FAILURE else UNANSWERED_LATE
        draw = replace(_timed(call, Draw(result)), forced=True)
        if draw.result in (LIMITED, DOWN, SLOW, UNANSWERED_LATE):
            return draw, shown_failure(call, draw, OTHER_ERROR)
        return draw, filled_failure(call, spec)

    def said(self, tool: str, attempt: int) -> str | None:
        """Return what was said beforehand of a call (`Draws.said`)."""
        return self.calls.get((tool, attempt))

    @staticmethod
    def _spec(problem: Problem, tool: int, result: str, errors: Errors) -> ErrorSpec | None:
        """Return the error that a result is, or None of a success."""
        described, dynamics = problem.library[tool], problem.dynamics
        specs = {one.code: one for one in (*described.failure_errors, *possible_errors(described, errors))}
        law_codes = [code for code in (RATE_LIMIT_ERROR, SERVICE_UNAVAILABLE, TIMEOUT)
                     if _result_of(problem, tool, code) in (LIMITED, DOWN, SLOW)]  # fmt: skip
        specs |= {code: ErrorSpec(code, code, code) for code in law_codes if code not in specs}
        successes = [OK, SLOWEST] if dynamics.numbers.law.latency is not None else [OK]
        if dynamics.rules.corrupt_chance[tool] > 0.0:
            successes += [CORRUPTED, *(f"{CORRUPTED}:{kind}" for kind in (*CORRUPTIONS, OVERSIZED))]
        code, slash, side = result.partition("/")
        if slash and (code in successes or side not in (BEFORE, AFTER)):
            raise InvalidInputError(
                f"force of {described.name} is {result!r:.80}: expected an error code with /{BEFORE} or /{AFTER}"
            )
        if code not in specs and code not in successes:
            raise unknown_name("result", code, [*successes, *specs], f"force of {described.name}")
        return specs.get(code)


def _result_of(problem: Problem, tool: int, code: str) -> int:
    """Return which failure an error code is under the law."""
    dynamics = problem.dynamics
    rules, law = dynamics.rules, dynamics.numbers.law
    if code == RATE_LIMIT_ERROR and rules.rate_key[tool] >= 0:
        return LIMITED
    if code == SERVICE_UNAVAILABLE and rules.group[tool] >= 0:
        return DOWN
    if code == TIMEOUT and (rules.timeout >= 0 or rules.budget >= 0):
        return SLOW
    if law.error_kinds is not None and code in law.error_kinds.input_codes:
        return INPUT_FAILURE
    if law.error_kinds is not None and code in law.error_kinds.access_codes:
        return ACCESS_FAILURE
    return FAILURE


def _most_ticks(call: PendingCall) -> int:
    """Return how long a success can take at most."""
    latency = call.dynamics.numbers.law.latency
    limit = time_limit(call.dynamics.rules, call.state.parts or NOTHING)
    ticks = [] if latency is None else [duration.ticks for duration in latency.distribution]
    return max((each for each in ticks if limit < 0 or each <= limit), default=0)


def _timed(call: PendingCall, draw: Draw) -> Draw:
    """Return a draw with the time that its call takes by the key, where the draw leaves that open."""
    rules = call.dynamics.rules
    if draw.ticks or draw.result in (LIMITED, DOWN, REFUSED) or call.dynamics.numbers.law.latency is None:
        return draw
    limit = time_limit(rules, call.state.parts or NOTHING)
    if draw.result in (SLOW, UNANSWERED_LATE):
        return replace(draw, ticks=limit)
    ticks = draw_duration(rules, *call.key, call.executions)
    return replace(draw, ticks=ticks if limit < 0 else min(ticks, limit))


def _error(call: PendingCall, draw: Draw) -> int:
    """Return the number of the error that a failure shows by the key, whose draw may have been another one."""
    result = shown_result(draw.result)
    if result not in (FAILURE, INPUT_FAILURE, ACCESS_FAILURE):
        return OTHER_ERROR
    dynamics, state, tool, key, attempt = call.dynamics, call.state, call.tool, call.key, call.executions
    rules, numbers = dynamics.rules, dynamics.numbers
    if result == FAILURE:
        threshold = law_threshold(rules, numbers.tables, state.status, state.counters, tool)
        bits = failing_bits(draw_bits(*key, attempt, PURPOSE_SUCCESS), threshold)
        if bits < clean_threshold(rules, numbers.tables, state.counters, tool):
            return OF_DEPENDENCIES
        if rules.at_block < 0:
            return OTHER_ERROR
    return draw_error(rules, numbers.luck, state.status, tool, *key, attempt, result)
