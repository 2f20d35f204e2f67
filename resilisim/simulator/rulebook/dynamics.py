"""Where episodes start, what a message leads to, how likely, and what luck draws, under any law.

`Dynamics` is what a `Problem` carries of its law; `simulator.state` hands its questions on to it. A law without parts
is one whose rulebook has no sections. A state whose `hidden` is empty is a state as agents know it: what it leads to is
then as likely as they can say.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.provenance import arguments_text
from resilisim.seeding import hash_words
from resilisim.simulator.messages import Message
from resilisim.simulator.rulebook.build import Aims, LawNumbers, with_aims
from resilisim.simulator.rulebook.drawn_results import write_first_hidden, write_next_down
from resilisim.simulator.rulebook.entering import enter_execution, finish_value
from resilisim.simulator.rulebook.lost_answers import (
    AGAIN,
    DOUBT,
    MOST_RUNS,
    RUN_BITS,
    SURELY,
    chance_run_well,
    chance_told,
    has_run,
)
from resilisim.simulator.rulebook.rules import (
    ACCESS_FAILURE,
    CORRUPT,
    DOWN,
    FAILURE,
    INPUT_FAILURE,
    LIMITED,
    NONE,
    NUM_RESULTS,
    OF_THE_TOOL,
    OWN_FAILURE,
    REFUSED,
    SLOW,
    SUCCESS,
    UNANSWERED,
    UNANSWERED_LATE,
    UNCHECKED,
    WORKS,
    Rulebook,
    chance_broken,
    fill_chances,
    is_time_up,
    law_probability,
    pass_message,
    reported_chance,
    time_limit,
)
from resilisim.simulator.state import (
    COMPLETION,
    ENDED,
    LOOP_SIGNATURE,
    LOST,
    NO_LOOP,
    NUM_COUNTERS,
    RAN_AGAIN,
    RUNNING,
    SPOILT,
    STOPPED,
    TIME,
    TURNS,
    TURNS_USED,
    EpisodeState,
    record_turn,
)
from resilisim.tool_library import Tool
from resilisim.tool_library.parameters import defaults

NOTHING: Any = (0,)  # stands for a vector that nobody reads
# In this order what an execution can bring is told.
_IN_ORDER = (
    SUCCESS,
    FAILURE,
    CORRUPT,
    INPUT_FAILURE,
    ACCESS_FAILURE,
    LIMITED,
    DOWN,
    REFUSED,
    SLOW,
    UNANSWERED,
    UNANSWERED_LATE,
)


@dataclass(frozen=True, slots=True)
class Draw:
    """What luck brought to an execution.

    Attributes:
        result: One of the codes of `rulebook.rules`.
        ticks: How long it took.
        findings: What a validator found, see `enter_result`.
        told: What a call has told of runs, likewise.
        refused: Whether the tool itself failed then, as those of a world may: a failure from which the parts learn that
            it works.
        forced: Whether it was not luck: somebody said beforehand what this call brings.
    """

    result: int
    ticks: int = 0
    findings: int = 0
    told: int = 0
    refused: bool = False
    forced: bool = False

    @property
    def passes(self) -> bool:
        """Whether the law let the call through, whatever its work brought then."""
        return self.result in (SUCCESS, CORRUPT)

    @property
    def runs(self) -> bool:
        """Whether the tool runs: where its answer is lost, it does."""
        return has_run(self.result)


UNTIMED = tuple(Draw(result) for result in range(NUM_RESULTS))  # where nobody counts the time
SUCCEEDS, FAILS = UNTIMED[SUCCESS], UNTIMED[FAILURE]


def parameter_digest(tool: Tool, parameters: Mapping[str, Any]) -> int:
    """Return a number above 1 that tells parameters of a tool apart; giving a default changes nothing."""
    word0, word1 = hash_words("parameters", arguments_text({**defaults(tool), **parameters}))
    return (1 << 61) | (word0 << 29) ^ word1


class Dynamics:
    """A law and end rules, for one goal within a library; `arguments_matter` as in `Problem`.

    Attributes:
        numbers: The law in numbers.
        aims: The goal in numbers.
        rules: Its rulebook, of all tools of the library.
        has_sections: Whether more than one table of chances decides. Who chooses a solver asks it, and who writes what
            an execution brought into a record.
        groups: Names of the groups of outages.
    """

    def __init__(
        self,
        library: Sequence[Tool],
        numbers: LawNumbers,
        aims: Aims,
        arguments_matter: bool = False,
    ) -> None:
        self.numbers, self.aims = numbers, aims
        self.has_sections = numbers.law.has_sections
        self.groups = numbers.groups
        self._arguments_matter = arguments_matter
        self.rules: Rulebook = with_aims(numbers.rulebook, aims)
        self._tables = numbers.tables
        self._library = library
        counters = [0] * NUM_COUNTERS
        counters[LOOP_SIGNATURE] = NO_LOOP
        zeros = (0,) * len(library)
        self._first = EpisodeState(zeros, tuple(counters), zeros, (0,) * self.rules.num_parts)

    def start(self, key: tuple[int, int] | None) -> EpisodeState:
        """Return the state in which an episode with a luck key begins; None leaves what is hidden open."""
        if key is None or not self.rules.num_hidden:
            return self._first
        hidden = [0] * self.rules.num_hidden
        write_first_hidden(self.rules, self.numbers.luck, *key, hidden, self._scratch())
        return replace(self._first, hidden=tuple(hidden))

    def next_down(self, key: tuple[int, int], state: EpisodeState) -> tuple[int, ...]:
        """Return which groups are down at the message after the next; nothing where that is left open."""
        if self.rules.at_down < 0 or not state.hidden:
            return ()
        rules, hidden = self.rules, list(state.hidden)
        write_next_down(rules, self.numbers.luck, *key, state.counters[TURNS_USED], hidden, self._scratch())
        return tuple(hidden[rules.at_down : rules.at_down + rules.num_groups])

    def _scratch(self) -> NDArray[np.int64]:
        """Return room for what names draw."""
        return np.empty(max(len(self.numbers.luck.group_words), len(self.numbers.luck.broken_words)), dtype=np.int64)

    def chances(self, state: EpisodeState, tool: int, digest: int, informed: bool | None = None) -> list[float]:
        """Return how likely each result of an execution is, (NUM_RESULTS,); what is hidden counts where it is known."""
        chances = [0.0] * NUM_RESULTS
        known = bool(state.hidden) if informed is None else informed
        hidden = state.hidden or NOTHING
        tables, parts = self.numbers.tables, state.parts or NOTHING
        fill_chances(self.rules, tables, state.status, state.counters, parts, hidden, known, tool, digest, chances)
        return chances

    def chance_of_success(self, state: EpisodeState, tool: int, message: Message | None) -> float:
        """Return the chance that success is reported, by what an agent can know."""
        rules, digest = self.rules, 0
        if rules.at_block >= 0 and message is not None:
            digest = self.digest(tool, message)
        status, parts = state.status, state.parts or NOTHING
        return reported_chance(rules, self._tables, status, state.counters, parts, NOTHING, False, tool, digest)

    def digest(self, tool: int, message: Message) -> int:
        """Return what stands for the parameters of a call; 0 where they do not matter."""
        return parameter_digest(self._library[tool], message.parameters) if self.rules.at_block >= 0 else 0

    @property
    def reads_parameters(self) -> bool:
        """Whether the parameters of a call decide anything: what repeats another call, or is refused again."""
        return self._arguments_matter or self.rules.at_block >= 0

    def is_out_of_time(self, state: EpisodeState) -> bool:
        """Return whether the time of the episode is used up."""
        return self.rules.budget >= 0 and is_time_up(self.rules, state.parts)

    def chance_done(self, state: EpisodeState) -> float:
        """Return the chance that everything required is done, by what is known in a state."""
        hidden = state.hidden or NOTHING
        return finish_value(self.rules, self.rules, state.counters, state.parts or NOTHING, hidden, bool(state.hidden))

    def after(
        self, state: EpisodeState, message: Message, tool: int, draw: bool | Draw, down: Sequence[int] = ()
    ) -> EpisodeState:
        """Return the state after a message in a running state.

        Args:
            state: The state.
            message: The message.
            tool: The tool that it executes, or -1.
            draw: What luck brought to it, or whether it plainly succeeded.
            down: Which groups are down afterwards; as they are if not given.
        """
        rules, counters, parts, hidden = self.rules, list(state.counters), state.parts, state.hidden
        kind = message.kind
        if kind == "stop":
            counters[ENDED] = STOPPED
        elif kind == "agent_error":
            counters[ENDED] = LOST
        elif kind == "finish":
            counters[TURNS_USED] = min(counters[TURNS_USED] + 1, rules.max_turns)
            counters[ENDED] = COMPLETION
        elif counters[TURNS_USED] >= rules.max_turns:
            counters[ENDED] = TURNS
        elif rules.budget >= 0 and is_time_up(rules, parts):
            counters[ENDED] = TIME
        elif tool >= 0:
            if not isinstance(draw, Draw):
                draw = SUCCEEDS if draw else FAILS
            return self.after_execution(state, message, tool, draw, down)
        else:
            if parts:
                known = list(parts)
                pass_message(rules, known, NONE)
                parts = tuple(known)
            helps = kind == "wait" and rules.waiting_is_productive
            record_turn(counters, NO_LOOP if helps else message.signature, rules.loop_length)
            if down:
                hidden = self._with_down(hidden, counters, down)
        return EpisodeState(state.status, tuple(counters), state.executions, parts, hidden)

    def after_execution(
        self, state: EpisodeState, message: Message, tool: int, draw: Draw, down: Sequence[int]
    ) -> EpisodeState:
        """Return the state after an execution that happens, as no closing message is due; as in `after`."""
        rules, counters, parts, hidden = self.rules, list(state.counters), state.parts, state.hidden
        status, executions = list(state.status), list(state.executions)
        executions[tool] += 1
        result, signature = OWN_FAILURE if draw.refused else draw.result, OF_THE_TOOL
        if self._arguments_matter:
            signature = message.signature if result == SUCCESS else NO_LOOP
        known = list(parts) if parts else NOTHING
        unseen = list(hidden) if hidden else NOTHING
        enter_execution(
            rules,
            self._tables,
            status,
            counters,
            known,
            unseen,
            bool(hidden),
            tool,
            result,
            draw.ticks,
            self.digest(tool, message) if rules.at_block >= 0 else 0,
            draw.findings,
            draw.told,
            signature,
        )
        if parts:
            parts = tuple(known)
        if hidden:
            hidden = self._with_down(tuple(unseen), counters, down)
        return EpisodeState(tuple(status), tuple(counters), tuple(executions), parts, hidden)

    def _with_down(self, hidden: tuple[int, ...], counters: Sequence[int], down: Sequence[int]) -> tuple[int, ...]:
        """Return what is hidden, with the groups that are down after a message; nothing changes if it was the last."""
        if not down or counters[ENDED] != RUNNING or not hidden:
            return hidden
        at_down = self.rules.at_down
        return (*hidden[:at_down], *down, *hidden[at_down + len(down) :])

    def branches(self, state: EpisodeState, message: Message, tool: int) -> list[tuple[float, EpisodeState]]:
        """Return every state that a message can lead to, with its probability; `tool` as in `after`."""
        draws = [(1.0, SUCCEEDS)] if tool < 0 else self.draws(state, tool, message)
        found = [(chance, self.after(state, message, tool, draw)) for chance, draw in draws]
        if not state.hidden or self.rules.at_down < 0:
            return found
        steps = list(self._steps(state))
        return [
            (chance * step_chance, replace(after, hidden=self._with_down(after.hidden, after.counters, down)))
            for chance, after in found
            for step_chance, down in (steps if after.counters[ENDED] == RUNNING else [(1.0, ())])
        ]

    def _steps(self, state: EpisodeState) -> list[tuple[float, tuple[int, ...]]]:
        """Return which groups can be down at the next message, with probabilities."""
        rules = self.rules
        found: list[tuple[float, tuple[int, ...]]] = [(1.0, ())]
        for group in range(rules.num_groups):
            was_down = state.hidden[rules.at_down + group]
            chance = 1.0 - rules.ends if was_down else rules.begins
            options = [(chance, 1), (1.0 - chance, 0)]
            found = [(p * q, (*down, one)) for p, down in found for q, one in options if q > 0.0]
        return found

    def draws(self, state: EpisodeState, tool: int, message: Message) -> list[tuple[float, Draw]]:
        """Return everything that luck can bring to an execution, with its probability by what is known in a state."""
        rules, informed = self.rules, bool(state.hidden)
        chances = self.chances(state, tool, self.digest(tool, message))
        found: list[tuple[float, Draw]] = []
        for result in _IN_ORDER:
            chance = chances[result]
            if chance <= 0.0:
                continue
            if rules.at_time < 0 and not rules.is_validator[tool] and not rules.is_checker[tool]:
                found.append((chance, UNTIMED[result]))
                continue
            told = self._told(state, tool, informed) if result == SUCCESS else [(1.0, 0)]
            for share, ticks in self._durations(state, result):
                for again, runs in told:
                    if result == SUCCESS and rules.is_validator[tool] and not rules.shows_payload:
                        for odds, findings in self._findings(state, informed):
                            found.append((chance * share * again * odds, Draw(result, ticks, findings, runs)))
                    else:
                        found.append((chance * share * again, Draw(result, ticks, 0, runs)))
        return found

    def _told(self, state: EpisodeState, checker: int, informed: bool) -> list[tuple[float, int]]:
        """Return what a call can tell of runs."""
        rules, parts, hidden = self.rules, state.parts, state.hidden or NOTHING
        found = [(1.0, 0)]
        for number, tool in enumerate(self._checked_by(checker)):
            if parts[rules.at_ran + tool] >= DOUBT:
                chances = [chance_told(rules, parts, hidden, informed, tool, runs) for runs in range(MOST_RUNS + 1)]
                shift = RUN_BITS * number
                found = [
                    (p * q, told | runs << shift) for p, told in found for runs, q in enumerate(chances) if q > 0.0
                ]
        return found

    def _checked_by(self, checker: int) -> list[int]:
        """Return the tools of which a call tells how often they have run."""
        return [tool for tool, other in enumerate(self.rules.checker) if other == checker]

    def told_of_runs(self, state: EpisodeState, hidden: Sequence[int]) -> EpisodeState:
        """Return a state with what it says for a tool being broken that its doubts were runs, or were not."""
        rules, parts = self.rules, list(state.parts)
        for tool in range(rules.num_tools if rules.at_evidence >= 0 else 0):
            doubts = parts[rules.at_ran + tool] // DOUBT
            if doubts > 0 and hidden[rules.at_lost + tool] > 0:
                parts[rules.at_evidence + tool] = WORKS
            elif doubts > 0:
                parts[rules.at_evidence + tool] += doubts * rules.unseen_run[tool]
        return replace(state, parts=tuple(parts))

    def share_lost(self, state: EpisodeState, tool: int, result: int) -> float:
        """Return how likely it is that a failure came after the run, by what is known in a state."""
        rules = self.rules
        if result not in (FAILURE, SLOW):
            return 0.0
        works = 1.0 - chance_broken(rules, state.status, state.parts, tool) if rules.at_evidence >= 0 else 1.0
        if result == FAILURE:
            won = law_probability(rules, self._tables, state.status, state.counters, tool)
            works *= (1.0 - won) / (1.0 - works * won) if works * won < 1.0 else 0.0
        return float(rules.lost_share[tool] * works)

    def has_run_well(self, state: EpisodeState) -> bool:
        """Return whether nothing has run twice that may run only once, as far as a state tells."""
        rules, hidden = self.rules, state.hidden or NOTHING
        if state.counters[SPOILT] & RAN_AGAIN:
            return False
        tools = range(rules.num_tools if rules.at_ran >= 0 else 0)
        return all(chance_run_well(rules, state.parts, hidden, bool(state.hidden), tool) == 1.0 for tool in tools)

    def known_runs(self, state: EpisodeState, checker: int, told: int) -> dict[int, int]:
        """Return of each tool that a call tells of how often it has run: 0, 1, or 2 for more."""
        found, rules = {}, self.rules
        for number, tool in enumerate(self._checked_by(checker)):
            ran, mask = state.parts[rules.at_ran + tool], (1 << RUN_BITS) - 1
            runs = bool(ran & SURELY) + bool(ran & AGAIN) + (told >> RUN_BITS * number & mask if ran >= DOUBT else 0)
            found[tool] = min(runs, MOST_RUNS if rules.is_once[tool] else 1)
        return found

    def true_told(self, state: EpisodeState, checker: int) -> int:
        """Return what a call that succeeds tells of runs, where that is known."""
        if self.rules.at_lost < 0 or not state.hidden:
            return 0
        runs = [state.hidden[self.rules.at_lost + tool] for tool in self._checked_by(checker)]
        return sum(one << RUN_BITS * number for number, one in enumerate(runs))

    def _durations(self, state: EpisodeState, result: int) -> list[tuple[float, int]]:
        """Return how long an execution with a result can take; all the same where time is not counted."""
        rules = self.rules
        if rules.at_time < 0 or result in (LIMITED, DOWN, REFUSED):
            return [(1.0, 0)]
        limit = time_limit(rules, state.parts)
        if result in (SLOW, UNANSWERED_LATE):
            return [(1.0, limit)]
        pairs = zip(rules.duration_chance, rules.duration_ticks, strict=True)
        in_time = [(chance, ticks) for chance, ticks in pairs if ticks <= limit]
        total = sum(chance for chance, _ in in_time)
        return [(chance / total, ticks) for chance, ticks in in_time]

    def _findings(self, state: EpisodeState, informed: bool) -> list[tuple[float, int]]:
        """Return what a validator can find; of outputs that are not required it makes no difference."""
        rules = self.rules
        if informed:
            return [(1.0, self.true_findings(state))]
        unchecked = [
            tool
            for tool in range(rules.num_tools)
            if state.parts[rules.at_sound + tool] == UNCHECKED and rules.place[tool] >= 0
        ]
        found = []
        for subset in itertools.product((0, 1), repeat=len(unchecked)):
            chance, findings = 1.0, 0
            for tool, corrupt in zip(unchecked, subset, strict=True):
                chance *= rules.corrupt_chance[tool] if corrupt else 1.0 - rules.corrupt_chance[tool]
                findings |= corrupt << tool
            if chance > 0.0:
                found.append((chance, findings))
        return found

    def true_findings(self, state: EpisodeState) -> int:
        """Return what a validator that succeeds finds where outputs only look sound."""
        if self.rules.at_unsound < 0 or not state.hidden:
            return 0
        unsound = state.hidden[self.rules.at_unsound : self.rules.at_unsound + self.rules.num_tools]
        return sum(one << tool for tool, one in enumerate(unsound))
