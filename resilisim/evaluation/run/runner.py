"""Playing a run: what is not finished is played and written down, until all is there or a limit is reached."""

from __future__ import annotations

import contextlib
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, cast

from resilisim.chat.under_way import UNDER_WAY
from resilisim.errors import InfrastructureError, InvalidInputError, count_of
from resilisim.evaluation.episode.record import EpisodeRecord, FailureRecord, is_failure
from resilisim.evaluation.run.plan import PlannedEpisodes, RunPlan, RunSettings
from resilisim.evaluation.run.player import Players, play_here
from resilisim.evaluation.run.progress import LiveTable, Progressing
from resilisim.evaluation.run.ray_cluster import play_on_cluster
from resilisim.evaluation.run.store import JournalFolder, RunStore
from resilisim.evaluation.table.facts import RunCollector, RunFacts
from resilisim.options import check_options, option

MOST_USED = 10**15  # of episodes, tokens and dollars
LONGEST_RUN = 1e9  # seconds; the system's clocks take no much longer waits


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Where a run stops before it is finished; None sets no limit.

    What is under way when a limit is reached is given up, its replies are kept, and the same call with a higher limit
    goes on from there. Episodes, tokens and dollars count for the folder, those of earlier calls included: money that
    is spent is spent. Seconds count for one call.

    Raises:
        InvalidInputError: A limit is no number above 0.

    Example:
        >>> from resilisim import evaluate
        >>> from resilisim.evaluation import RunLimits
        >>> result = evaluate("plan-follower", tasks=20, limits=RunLimits(episodes=5))
        >>> result.num_episodes, result.call.stopped_by
        (5, 'the limit of 5 episodes')
    """

    episodes: int | None = option(
        None, "Stop once this many episodes are finished in OUT.", least=1, most=MOST_USED, flag="--max-episodes"
    )
    tokens: int | None = option(
        None, "Stop once models have used this many tokens in OUT.", least=1, most=MOST_USED, flag="--token-budget"
    )
    cost: float | None = option(
        None,
        "Stop once this many dollars are spent in OUT; needs --prices for models that cost something.",
        above=0.0,
        most=MOST_USED,
        flag="--max-cost",
    )
    seconds: float | None = option(
        None, "Stop after this many seconds.", above=0.0, most=LONGEST_RUN, flag="--max-seconds"
    )

    def __post_init__(self) -> None:
        """Refuse numbers that are none."""
        check_options(self, "limit of ")


class RunInterrupted(KeyboardInterrupt):
    """Somebody stopped a run with Ctrl-C; its text says how many episodes are on disk."""

    def __init__(self, num_kept: int, num_planned: int) -> None:
        super().__init__(f"interrupted: {num_kept:,} of {count_of(num_planned, 'episode')} kept")


@dataclass(frozen=True, slots=True)
class AgentErrors:
    """In how many episodes of a folder an agent broke, which has lost it these, and how it did first."""

    policy: str
    num_episodes: int
    first: str


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What one call of `evaluate` did to a folder.

    Attributes:
        num_already_there: Episodes that an earlier call had left in the folder; they were not played again.
        num_failures: Episodes that broke in this call, and not by the agent's fault as far as can be told; they are
            unfinished, and the same call tries them again.
        last_error: What the last of them broke on.
        stopped_by: The limit that ended the call before everything was played; None if none did.
        agent_errors: Agents that broke in episodes of the folder, which are lost.
        silent_policies: Policies that ask no model and ended every episode in the folder by returning None at once.
    """

    num_already_there: int = 0
    num_failures: int = 0
    last_error: str = ""
    stopped_by: str | None = None
    silent_policies: tuple[str, ...] = ()
    agent_errors: tuple[AgentErrors, ...] = ()


class _Tally:
    """Takes in what the episodes of a run come to as they end: for its results, for those who watch, for its limits."""

    def __init__(self, limits: RunLimits, give_up_after: int) -> None:
        self.collector = RunCollector()
        self.live = LiveTable(self.collector)
        # The moment of the monotonic clock at which the run stops, if there is one.
        self.until = None if limits.seconds is None else time.monotonic() + limits.seconds
        self.num_unpriced = 0  # episodes of which nobody knows what they cost
        self._limits = limits
        self._give_up_after = give_up_after
        self._num_episodes = 0
        self._tokens = 0
        self._cost = 0.0
        self._num_failures = 0
        self._failures_in_a_row = 0
        self._last_error = ""
        self._agent_errors: dict[str, AgentErrors] = {}
        self._speaks: dict[str, bool] = {}  # policy -> whether any of its episodes began with more than silence

    def add(self, record: EpisodeRecord) -> None:
        """Take in an episode that came to its end."""
        self.collector.add(record)
        self._num_episodes += 1
        self._failures_in_a_row = 0
        components = record.get("agent", {}).get("components", {}).values()
        self.num_unpriced += any(used["cost"] is None for used in components)
        for used in components:
            self._tokens += used["prompt_tokens"] + used["completion_tokens"]
            self._cost += used["cost"] or 0.0
        if record["ended_by"] == "agent_error":
            known = self._agent_errors.get(record["policy"])
            first = record["steps"][-1]["error"] or "" if known is None else known.first
            count = 1 if known is None else known.num_episodes + 1
            self._agent_errors[record["policy"]] = AgentErrors(record["policy"], count, first)
        stopped_at_once = "agent" not in record and [step["kind"] for step in record["steps"]] == ["stop"]
        self._speaks[record["policy"]] = self._speaks.get(record["policy"], False) or not stopped_at_once

    def lose(self, failure: FailureRecord) -> None:
        """Take in an episode that broke.

        Raises:
            InfrastructureError: One too many broke in a row, so the endpoint will not come back.
        """
        self.live.fail(failure)
        self._num_failures += 1
        self._failures_in_a_row += 1
        self._last_error = failure["error"]
        if self._failures_in_a_row >= self._give_up_after:
            count = f"{self._failures_in_a_row} episodes in a row" if self._failures_in_a_row > 1 else "an episode"
            raise InfrastructureError(
                f"{count} broke, the last because {failure['error']}; "
                "what is finished is kept, and the same command resumes it"
            )

    def reached(self) -> str | None:
        """Return which limit is reached, or None."""
        limits = self._limits
        if limits.episodes is not None and self._num_episodes >= limits.episodes:
            return f"the limit of {limits.episodes:,} episodes"
        if limits.tokens is not None and self._tokens >= limits.tokens:
            return f"the limit of {limits.tokens:,} tokens ({self._tokens:,} used)"
        if limits.cost is not None and self._cost >= limits.cost:
            return f"the limit of {limits.cost:g} dollars ({self._cost:.4g} spent)"
        if self.until is not None and time.monotonic() >= self.until:
            return f"the limit of {limits.seconds:g} seconds"
        return None

    def outcome(self, already_there: int, stopped_by: str | None) -> CallOutcome:
        """Return what this call did; a policy that never sent anything may lack a `return`."""
        silent = tuple(policy for policy, speaks in self._speaks.items() if not speaks)
        errors = tuple(self._agent_errors.values())
        return CallOutcome(already_there, self._num_failures, self._last_error, stopped_by, silent, errors)


# The folder, what is known of its episodes, what the call did; and what keeps a folder alive that nobody asked for.
PlayedRun: TypeAlias = "tuple[Path, RunFacts, CallOutcome, tempfile.TemporaryDirectory[str] | None]"


def play_run(
    plan: RunPlan, out: Path | str | None, limits: RunLimits, players: Players, progress: bool | None
) -> PlayedRun:
    """Play what is not finished of a run's shard, and write it down (`evaluation.results.evaluate`).

    Without a folder one is taken that vanishes with the result.
    """
    temporary = None
    if out is None:
        temporary = tempfile.TemporaryDirectory(prefix="resilisim-")
        out = temporary.name
    # Replies are only kept where somebody can come back for them: a later call, or another machine of a cluster.
    comes_back = temporary is None or players.ray is not None
    kept_in = str(out) if comes_back and players.wait_for_models else None
    settings, episodes = replace(plan.settings, directory=kept_in), plan.episodes
    tally = _Tally(limits, settings.models.give_up_after)
    with RunStore(out, plan.arguments, len(episodes), on_record=tally.add) as store:
        already_there = store.num_finished
        if limits.cost is not None and tally.num_unpriced:
            raise InvalidInputError(
                f"a limit of dollars needs the prices of all models: {tally.num_unpriced:,} episodes in {out} "
                "were played without, so nobody knows what was spent"
            )
        try:
            stopped_by = _play_pending(settings, episodes, store, tally, players, progress)
        except KeyboardInterrupt as error:
            raise RunInterrupted(store.num_finished if temporary is None else 0, len(episodes)) from error
        if kept_in is not None and store.num_finished == len(episodes):
            JournalFolder(kept_in).remove()
        call = tally.outcome(already_there, stopped_by)
        return store.directory, tally.collector.facts(store.manifest), call, temporary


def _play_pending(
    settings: RunSettings,
    planned: PlannedEpisodes,
    store: RunStore,
    tally: _Tally,
    players: Players,
    progress: bool | None,
) -> str | None:
    """Play what is not finished, and return the limit that kept something from being played."""
    num_pending = sum(1 for _ in planned.pending(store.is_finished))
    stopped_by = tally.reached()
    if not num_pending or stopped_by is not None:
        return stopped_by if num_pending else None
    sent = store.sent_before() if num_pending else {}
    episodes = map(planned.__getitem__, planned.pending(store.is_finished))
    pending = (replace(each, sent=sent[each.index]) if each.index in sent else each for each in episodes)
    players = replace(players, until=tally.until)
    play = play_here if players.ray is None else play_on_cluster
    playing = play(settings, pending, num_pending, players)
    journals = None if settings.directory is None else JournalFolder(settings.directory)
    shown = Progressing(
        "episodes", planned.part_size, planned.part_size - num_pending, progress, tally.live, UNDER_WAY.told
    )
    with shown, contextlib.closing(playing) as outcomes:
        for outcome, line in outcomes:
            if is_failure(outcome):
                store.append_failure(line)
                tally.lose(outcome)
                continue
            record = cast("EpisodeRecord", outcome)
            store.append_encoded(line, record["index"])
            if journals is not None:
                journals.discard(record["index"])
            tally.add(record)
            shown.advance()
            if tally.reached() is not None:
                break
    # A limit that the last episode reaches has stopped nothing.
    return tally.reached() if any(True for _ in planned.pending(store.is_finished)) else None
