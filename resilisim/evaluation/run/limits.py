"""Where a run stops before it is finished: limits of episodes, tokens, dollars and seconds, and what has been used."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le

from resilisim.errors import InfrastructureError
from resilisim.evaluation.episode.record import EpisodeRecord, FailureRecord
from resilisim.evaluation.run.progress import LiveTable
from resilisim.evaluation.table.facts import RunCollector
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
        InvalidInputError: A limit is not a number above 0.

    Example:
        >>> from resilisim import evaluate
        >>> from resilisim.evaluation import RunLimits
        >>> result = evaluate("plan-follower", tasks=20, limits=RunLimits(episodes=5))
        >>> result.num_episodes, result.call.stopped_by
        (5, 'the limit of 5 episodes')
    """

    episodes: Annotated[int, Ge(1), Le(MOST_USED)] | None = option(
        None, "Stop once this many episodes are finished in OUT.", flag="--max-episodes"
    )
    tokens: Annotated[int, Ge(1), Le(MOST_USED)] | None = option(
        None, "Stop once models have used this many tokens in OUT.", flag="--token-budget"
    )
    cost: Annotated[float, Gt(0.0), Le(MOST_USED)] | None = option(
        None,
        "Stop once this many dollars are spent in OUT; needs --prices for models that cost something.",
        flag="--max-cost",
    )
    seconds: Annotated[float, Gt(0.0), Le(LONGEST_RUN)] | None = option(
        None, "Stop after this many seconds.", flag="--max-seconds"
    )

    def __post_init__(self) -> None:
        """Refuse numbers that are none."""
        check_options(self, "limit of ")


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


class Tally:
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
