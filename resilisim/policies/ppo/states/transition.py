"""States of Workflow-v0 as agents know them, and where an action leads from them, with the law's probabilities.

What is shown is a function of what an agent can know of a state, and so is how likely each result of a call is
(`rulebook.possible_results`). So episodes are not played here but branched: records of states are put into
environments, each result of an action is forced on them, and the records that come out are the states that follow. What
is hidden under a law with parts is not followed: its chance is in the probabilities.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from resilisim.envs.workflow.core import WorkflowCore
from resilisim.envs.workflow.env import WorkflowEnv
from resilisim.envs.workflow.kernels.batch_loops import LEAVE_ENDED
from resilisim.envs.workflow.kernels.records import WORD_BYTES, Floats, Int, Records
from resilisim.envs.workflow.options import WorkflowOptions
from resilisim.envs.workflow.spaces import (
    BLOCK_REFUSED,
    INVOKE_TOOL,
    PART_BLOCK,
    RETRY_TOOL,
    STATUS_DEPENDENCY_FAILED,
    STATUS_FAILED,
    STATUS_SUCCESS,
    STATUS_TIMEOUT,
)
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.errors import InvalidInputError
from resilisim.simulator.compiled import kernel, scalar
from resilisim.simulator.rulebook.entering import finish_value
from resilisim.simulator.rulebook.possible_results import CHANCE, NUM_OF_RESULT, RESULT, TICKS, list_results
from resilisim.simulator.rulebook.rules import (
    ACCESS_FAILURE,
    CORRUPT,
    FAILURE,
    INPUT_FAILURE,
    NUM_RESULTS,
    SLOW,
    SUCCESS,
    UNCHECKED,
    clean_probability,
    is_opened,
    law_probability,
)
from resilisim.simulator.state import COMPLETION, ENDED, NEXT_PLACE, SPOILT, TURNS_USED
from resilisim.tasks import Task

NUM_ENVS = 2048  # states that are stepped and shown to the network at once
_MEMORY = 2**27  # bytes that the states which are stepped at once may take
MOST_FINDINGS = 10  # outputs that a validator may tell of at once

# Columns of what a call can bring: the first four are an `Outcome` and its chance, then the state and its number.
OF_CHANCE, OF_RESULT, OF_TICKS, OF_SHOWN, OF_ROW, NUM_OUTCOME_COLUMNS = range(6)


@scalar
def timeout_share(world: Any, status: Any, tool: int, result: int, plain: float) -> float:
    """Return which share of a tool's failures with a result, and not of dependencies, shows a TIMEOUT."""
    if world.rules.at_block < 0:
        return plain
    opened = 1 if is_opened(world.rules, status) else 0
    total, timeout = 0.0, 0.0
    for number in range(world.luck.num_errors[tool, opened]):
        if world.luck.error_result[tool, opened, number] == result:
            total += world.luck.error_weight[tool, opened, number]
            if number == world.luck.timeout_error[tool, opened]:
                timeout += world.luck.error_weight[tool, opened, number]
    return timeout / total if total > 0.0 else 0.0


@kernel
def list_outcomes(
    actions: Int,
    tools: Int,
    episodes: Records,
    sections: Records,
    timeouts: Floats,
    worlds: Records,
    outcomes: Floats,
) -> int:
    """List what the calls of some episodes can bring, each with its chance; return how much that is.

    `tools`, (num_rows,), are those that are executed, -1 for none; `timeouts`, (num_tools,), the shares of failures for
    no reason of dependencies that show a TIMEOUT where errors have no kinds. `outcomes` is (most, NUM_OUTCOME_COLUMNS),
    with room for 3 x NUM_RESULTS x durations for each row.
    """
    world = worlds[0]
    rules, count = world.rules, 0
    chances, scratch = np.zeros(NUM_RESULTS), np.zeros(2 * rules.num_tools, dtype=np.int64)
    nobody, no_time = np.full(rules.num_tools, -1, dtype=np.int64), np.zeros(rules.num_tools, dtype=np.int64)
    listed = np.zeros((rules.num_durations * (1 + NUM_RESULTS), NUM_OF_RESULT))
    for row in range(len(tools)):
        tool, episode, own = tools[row], episodes[row], sections[row if world.has_sections else 0]
        digest, won, clean = 0, 0.0, 0.0
        if tool >= 0:
            if rules.at_block >= 0:
                variant = own.variant[tool]
                if world.action_type[actions[row]] == INVOKE_TOOL and own.tool_parts[tool, PART_BLOCK] == BLOCK_REFUSED:
                    variant = 1 - variant
                digest = world.digests[tool, variant]
            won = law_probability(rules, world.tables, episode.status, episode.counters, tool)
            clean = clean_probability(rules, world.tables, episode.counters, tool)
        num_listed = list_results(
            rules,
            nobody,
            no_time,
            False,
            world.tables,
            False,
            episode.status,
            episode.counters,
            own.parts,
            own.hidden,
            tool,
            digest,
            chances,
            scratch,
            listed,
        )
        # Of what fails in the draw, this share would have won it with all dependencies in place.
        of_dependencies = (clean - won) / (1.0 - won) if won < 1.0 else 0.0
        drawn = chances[FAILURE] + chances[INPUT_FAILURE] + chances[ACCESS_FAILURE]
        for place in range(num_listed):
            chance, result = listed[place, CHANCE], int(listed[place, RESULT])
            timeout, dependency = 0.0, 0.0
            if result == SLOW:
                timeout = 1.0
            elif result in (FAILURE, INPUT_FAILURE, ACCESS_FAILURE):
                if result == FAILURE:
                    dependency = min(of_dependencies * drawn / chances[FAILURE], 1.0)
                timeout = (1.0 - dependency) * timeout_share(world, episode.status, tool, result, timeouts[tool])
            is_success = result in (SUCCESS, CORRUPT)
            for shown in (STATUS_SUCCESS, STATUS_DEPENDENCY_FAILED, STATUS_TIMEOUT, STATUS_FAILED):
                share = 0.0
                if shown == STATUS_SUCCESS:
                    share = 1.0 if is_success else 0.0
                elif not is_success:
                    share = 1.0 - timeout - dependency
                    if shown == STATUS_DEPENDENCY_FAILED:
                        share = dependency
                    elif shown == STATUS_TIMEOUT:
                        share = timeout
                if chance * share > 0.0:
                    outcomes[count, OF_CHANCE] = chance * share
                    outcomes[count, OF_RESULT] = result
                    outcomes[count, OF_TICKS] = listed[place, TICKS]
                    outcomes[count, OF_SHOWN] = shown
                    outcomes[count, OF_ROW] = row
                    count += 1
    return count


@kernel
def write_success(episodes: Records, sections: Records, tasks: Records, worlds: Records, success: Floats) -> None:
    """Write how likely full success is of episodes that have ended, (num_rows,), as far as anybody can know."""
    world = worlds[0]
    for row in range(len(episodes)):
        episode, own = episodes[row], sections[row if world.has_sections else 0]
        success[row] = 0.0
        if episode.counters[ENDED] == COMPLETION:
            goal = tasks[episode.task]
            success[row] = finish_value(world.rules, goal, episode.counters, own.parts, own.hidden, False)


@dataclass(frozen=True, slots=True)
class States:
    """Some states, as the bytes of their records.

    Attributes:
        episodes: (num_states, bytes of an episode).
        sections: (num_states, bytes of its sections); (num_states, 0) under a law without.
    """

    episodes: NDArray[np.uint8]
    sections: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.episodes)

    def __getitem__(self, rows: Any) -> States:
        return States(self.episodes[rows], self.sections[rows])

    @classmethod
    def of(cls, envs: WorkflowVectorEnv | WorkflowEnv) -> States:
        """Return the states of environments, in their own memory."""
        core = envs.core
        episodes = core.episodes.view(np.uint8).reshape(len(core.episodes), -1)
        if not core.has_sections:
            return cls(episodes, np.zeros((len(episodes), 0), dtype=np.uint8))
        return cls(episodes, core.sections.view(np.uint8).reshape(len(core.sections), -1))

    def copy(self) -> States:
        """Return the states in memory of their own."""
        return States(self.episodes.copy(), self.sections.copy())

    @classmethod
    def joined(cls, several: Sequence[States]) -> States:
        """Return the states of several in one."""
        return cls(np.concatenate([one.episodes for one in several]), np.concatenate([one.sections for one in several]))


@dataclass(frozen=True, slots=True)
class Reached:
    """Where actions lead from some states.

    Attributes:
        states: The states that follow, all results of the first action and so on in no order.
        parents: (num_reached,) numbers of the states that they follow.
        chances: (num_reached,) how likely each is after its parent.
        ended: (num_reached,) bool, whether the episode ends there.
        success: (num_reached,) where it ends, how likely full success is.
        is_open: (num_reached,) bool, whether it goes on and success is not out of reach.
        left_out: (num_parents,) chance of what was too much to list.
    """

    states: States
    parents: NDArray[np.int64]
    chances: NDArray[np.float64]
    ended: NDArray[np.bool_]
    success: NDArray[np.float64]
    is_open: NDArray[np.bool_]
    left_out: NDArray[np.float64]


class Transition:
    """What actions lead to, for the tasks of one library under one law.

    Args:
        tasks: The tasks.
        options: Options of the environment besides tasks.
        patterns: Mined patterns, which it also shows.
        by_state: Whether nothing is read of what is shown but what decides what comes after; then states that differ
            only in how they were reached are one.
        num_envs: States that are stepped at once, if there is room for so many.

    Attributes:
        envs: The environments in which states are stepped.
        state_size: Bytes of a state.

    Raises:
        InvalidInputError: The law is the training law, or one under which it is in doubt what has run.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        options: WorkflowOptions | None = None,
        patterns: Mapping[tuple[str, ...], float] | None = None,
        *,
        by_state: bool = False,
        num_envs: int = NUM_ENVS,
    ) -> None:
        probe = _environment(1, tasks[:1], options).core
        self.state_size = probe.episodes.dtype.itemsize + probe.has_sections * probe.sections.dtype.itemsize
        self._num_envs = int(np.clip(_MEMORY // self.state_size, 16, num_envs))
        self.envs = _environment(self._num_envs, tasks, options)
        self.envs.set_patterns(patterns or {})
        self._core = core = self.envs.core
        world = core.worlds[0]
        if world.training_law or world.rules.at_ran >= 0:
            raise InvalidInputError(
                "the law is the training law, or one under which it is in doubt what has run: expected another one, "
                "else play episodes"
            )
        self._rules = world.rules
        self._timeouts = _timeout_shares(world, len(core.library))
        self._stage = States.of(self.envs)
        self._keys = _key_bytes(core, by_state)
        size = -(-sum(part.stop - part.start for parts in self._keys for part in parts) // WORD_BYTES)
        mixing = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, (size, 2), dtype=np.int64)
        self._mixing = mixing | 1
        self._outcomes = np.zeros(
            (3 * self._num_envs * NUM_RESULTS * int(self._rules.num_durations), NUM_OUTCOME_COLUMNS)
        )
        self._rewards, self._ended = np.zeros(self._num_envs), np.zeros(self._num_envs, dtype=np.uint8)

    @property
    def max_turns(self) -> int:
        """Messages that an episode has."""
        return int(self._rules.max_turns)

    def starts(self, tasks: NDArray[np.int64]) -> States:
        """Return the states in which episodes of some tasks begin, at most as many as are stepped at once."""
        numbers = np.resize(tasks, self._num_envs)
        self.envs.reset(seed=0, options={"tasks": numbers, "seeds": np.zeros(self._num_envs, dtype=np.int64)})
        return self._stage[: len(tasks)].copy()

    def task_of(self, states: States) -> NDArray[np.int64]:
        """Return the numbers of the tasks that states belong to."""
        tasks: NDArray[np.int64] = self._records(states)["task"]
        return tasks

    def parts(self, number: int) -> Iterator[slice]:
        """Yield parts of so many states that can be looked at at once."""
        for first in range(0, number, self._num_envs):
            yield slice(first, first + self._num_envs)

    def put(self, states: States) -> None:
        """Put states, at most as many as are stepped at once, into the first of the environments."""
        self._stage.episodes[: len(states)], self._stage.sections[: len(states)] = states.episodes, states.sections

    def show(self, states: States) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]:
        """Return what is shown in states, of `parts`, as views until others are put there; and what is legal."""
        self.put(states)
        shown = self._core.converted({name: array[: len(states)] for name, array in self._core.observation.items()})
        return shown, shown["action_mask"].astype(np.bool_)

    def after(self, states: States, actions: NDArray[np.int64]) -> Reached:
        """Return where an action in each state leads, (num_states,); one that is not legal uses a turn."""
        left_out = np.zeros(len(states))
        states_after, parents, chances, success = [], [], [], []
        for part in self.parts(len(states)):
            for reached, rows, share, won in self._after_some(states[part], actions[part], left_out[part]):
                states_after.append(reached)
                parents.append(rows + part.start)
                chances.append(share)
                success.append(won)
        reached = States.joined(states_after)
        records = self._records(reached)
        ended = records["needs_reset"] != 0
        return Reached(
            reached,
            np.concatenate(parents),
            np.concatenate(chances),
            ended,
            np.concatenate(success) * ended,
            ~ended & self._is_open(records),
            left_out,
        )

    def keys(self, states: States) -> NDArray[np.int64]:
        """Return what tells states apart, (num_states, 2): 128 bits."""
        columns = [states.episodes[:, part] for part in self._keys[0]]
        columns += [states.sections[:, part] for part in self._keys[1]]
        size = sum(column.shape[1] for column in columns)
        columns.append(np.zeros((len(states), WORD_BYTES * len(self._mixing) - size), dtype=np.uint8))
        words = np.ascontiguousarray(np.concatenate(columns, axis=1)).view(np.int64)
        with np.errstate(over="ignore"):
            hashes: NDArray[np.int64] = words @ self._mixing
        return hashes

    def _records(self, states: States) -> Records:
        return np.ascontiguousarray(states.episodes).reshape(-1).view(self._core.episodes.dtype)

    def _after_some(
        self, states: States, actions: NDArray[np.int64], left_out: NDArray[np.float64]
    ) -> Iterator[tuple[States, NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]]:
        """Yield states that follow, whom they follow, their chances, and that of success where they have ended."""
        core, number = self._core, len(states)
        self.put(states)
        mask = core.episodes["action_mask"][np.arange(number), actions] == 1
        world = core.worlds[0]
        executes = mask & np.isin(world.action_type[actions], (INVOKE_TOOL, RETRY_TOOL))
        tools = np.where(executes, world.action_tool[actions], -1).astype(np.int64)
        count = list_outcomes(
            actions, tools, core.episodes[:number], core.sections, self._timeouts, core.worlds, self._outcomes
        )
        outcomes = self._outcomes[:count].copy()
        kinds, place = np.unique(outcomes[:, OF_RESULT:OF_ROW], axis=0, return_inverse=True)
        for which, (result, ticks, status) in enumerate(kinds.astype(np.int64).tolist()):
            of_kind = outcomes[place.reshape(-1) == which]
            rows, chances = of_kind[:, OF_ROW].astype(np.int64), of_kind[:, OF_CHANCE]
            told: Iterator[tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64] | None]]
            told = iter([(rows, chances, None)])
            if result == SUCCESS and self._rules.at_unsound >= 0:
                told = self._by_findings(states, tools, rows, chances, left_out)
            for chosen, share, unsound in told:
                for part in self.parts(len(chosen)):
                    of_part = None if unsound is None else unsound[part]
                    reached = self._stepped(
                        states[chosen[part]], actions[chosen[part]], (result, ticks, status), of_part
                    )
                    yield reached, chosen[part], share[part], self._success(len(reached))

    def _stepped(
        self,
        states: States,
        actions: NDArray[np.int64],
        outcome: tuple[int, int, int],
        unsound: NDArray[np.int64] | None,
    ) -> States:
        """Return the states after some, whose actions bring an outcome; `unsound` is what a validator finds."""
        core, number = self._core, len(states)
        self.put(states)
        if unsound is not None:
            first = int(self._rules.at_unsound)
            core.sections["hidden"][:number, first : first + unsound.shape[1]] = unsound
        no_pool = np.zeros(1, dtype=np.int64)
        rewards, ended = self._rewards[:number], self._ended[:number]
        core.step(actions, outcome, LEAVE_ENDED, no_pool, rewards, ended, slice(number))
        return self._stage[:number].copy()

    def _success(self, number: int) -> NDArray[np.float64]:
        """Return how likely success is in the states that were just stepped to, where they have ended."""
        success = np.zeros(number)
        write_success(self._core.episodes[:number], self._core.sections, self._core.records, self._core.worlds, success)
        return success

    def _by_findings(
        self,
        states: States,
        tools: NDArray[np.int64],
        rows: NDArray[np.int64],
        chances: NDArray[np.float64],
        left_out: NDArray[np.float64],
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64] | None]]:
        """Yield rows with chances and flags of what validators that succeed find, the others as they are."""
        rules = self._rules
        checks = np.array([bool(rules.is_validator[tools[row]]) and tools[row] >= 0 for row in rows], dtype=np.bool_)
        yield rows[~checks], chances[~checks], None
        if not checks.any():
            return
        num_tools = len(self._core.library)
        sections = np.ascontiguousarray(states.sections[rows[checks]]).reshape(-1).view(self._core.sections.dtype)
        first, corrupt = int(rules.at_sound), np.asarray(rules.corrupt_chance[:num_tools], dtype=np.float64)
        is_unchecked = sections["parts"][:, first : first + num_tools] == UNCHECKED
        numbers, found, shares = [], [], []
        for number, (row, chance) in enumerate(zip(rows[checks], chances[checks], strict=True)):
            unchecked = np.flatnonzero(is_unchecked[number])
            if len(unchecked) > MOST_FINDINGS:
                left_out[row] += chance
                continue
            subsets = np.arange(2 ** len(unchecked))[:, None] >> np.arange(len(unchecked)) & 1
            odds = np.where(subsets == 1, corrupt[unchecked], 1.0 - corrupt[unchecked]).prod(axis=1)
            flags = np.zeros((len(subsets), num_tools), dtype=np.int64)
            flags[:, unchecked] = subsets
            numbers.append(np.full(int((odds > 0).sum()), row))
            found.append(flags[odds > 0])
            shares.append(chance * odds[odds > 0])
        if numbers:
            yield np.concatenate(numbers), np.concatenate(shares), np.concatenate(found)

    def _is_open(self, records: Records) -> NDArray[np.bool_]:
        counters = records["counters"]
        missing = self._core.records["num_required"][records["task"]] - counters[:, NEXT_PLACE]
        open_: NDArray[np.bool_] = (counters[:, SPOILT] == 0) & (missing <= self.max_turns - counters[:, TURNS_USED])
        return open_


def merge_places(transition: Transition, states: States) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return numbers of states that hold each of some once, and which of these each is, (num_states,)."""
    _, first, place = np.unique(transition.keys(states), axis=0, return_index=True, return_inverse=True)
    return first, place.reshape(-1)


class ActsInStates(ABC):
    """What has to know where actions lead before it chooses one."""

    @abstractmethod
    def act_in(self, transition: Transition, states: States) -> NDArray[np.int64]:
        """Return an action for each state, (num_states,)."""


class Actor(Protocol):
    """What chooses actions for a batch of observations."""

    def act(self, observation: dict[str, NDArray[Any]], mask: NDArray[Any]) -> NDArray[np.int64]:
        """Return actions, (num_envs,), legal by `mask`, bool (num_envs, num_actions)."""
        ...


def actions_in(actor: Actor | ActsInStates, transition: Transition, states: States) -> NDArray[np.int64]:
    """Return what acts by observations, or by where actions lead, does in some states, (num_states,)."""
    if isinstance(actor, ActsInStates):
        return actor.act_in(transition, states)
    shown, mask = transition.show(states)
    return np.asarray(actor.act(shown, mask), dtype=np.int64)


def _key_bytes(core: WorkflowCore, by_state: bool) -> tuple[list[slice], list[slice]]:
    """Return which bytes of an episode and of its sections tell states apart."""
    fields: Mapping[str, Any] = core.episodes.dtype.fields or {}

    def place(names: Mapping[str, Any], name: str, length: int | None = None) -> slice:
        kind, first = names[name][:2]
        return slice(int(first), int(first) + (kind.itemsize if length is None else length))

    of_episode = [slice(0, int(fields["seed"][1]))]  # what is shown, what counts, and the task
    if by_state:
        of_episode = [place(fields, name) for name in ("counters", "status", "task")]
    if not core.has_sections:
        return of_episode, []
    sections: Mapping[str, Any] = core.sections.dtype.fields or {}
    num_parts, num_tools = int(core.worlds[0].rules.num_parts), len(core.library)
    return of_episode, [place(sections, "parts", WORD_BYTES * num_parts), place(sections, "variant", num_tools)]


def _environment(num_envs: int, tasks: Sequence[Task], options: WorkflowOptions | None) -> WorkflowVectorEnv:
    return WorkflowVectorEnv(
        num_envs, settings=options, autoreset_mode=AutoresetMode.DISABLED, copy=False, threads=1, tasks=tuple(tasks)
    )


def _timeout_shares(world: Any, num_tools: int) -> NDArray[np.float64]:
    """Return which share of a tool's failures shows a TIMEOUT, (num_tools,)."""
    weighed = world.timeout_below - world.timeout_from
    plain = np.where(world.timeout_error >= 0, 1.0 / np.maximum(world.num_errors, 1), 0.0)
    shares: NDArray[np.float64] = np.where(world.weighs_errors != 0, weighed, plain)[:num_tools].astype(np.float64)
    return shares
