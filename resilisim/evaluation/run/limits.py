"""What a run may use: episodes, tokens, dollars, seconds. Nothing is lost at a limit; the same call goes on later."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from resilisim.errors import InfrastructureError, InvalidInputError
from resilisim.evaluation.episode.record import EpisodeRecord, FailureRecord
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
        None, "Stop when so many are finished in OUT.", least=1, most=MOST_USED, flag="--max-episodes"
    )
    tokens: int | None = option(
        None, "Stop when models have used so many in OUT.", least=1, most=MOST_USED, flag="--max-tokens"
    )
    cost: float | None = option(
        None,
        "Stop when so many dollars are spent in OUT; needs --prices for models that cost something.",
        least=0.0,
        flag="--max-cost",
    )
    seconds: float | None = option(None, "Stop after so many.", least=0.0, flag="--max-seconds")

    def __post_init__(self) -> None:
        """Refuse numbers that are none."""
        check_options(self, "limit of ")
        for name, most in (("cost", MOST_USED), ("seconds", LONGEST_RUN)):
            value = getattr(self, name)
            if value is not None and not 0.0 < value <= most:
                raise InvalidInputError(
                    f"limit of {name} is {value}: expected a number above 0 and at most {most:,.0f}"
                )


class Budget:
    """Counts what a run has used, and says when a limit is reached."""

    def __init__(self, limits: RunLimits) -> None:
        self._limits = limits
        self._episodes = 0
        self._tokens = 0
        self._cost = 0.0
        self.num_unpriced = 0  # episodes of which nobody knows what they cost
        # The moment of the monotonic clock at which the run stops, if there is one.
        self.until = None if limits.seconds is None else time.monotonic() + limits.seconds

    def count(self, record: EpisodeRecord) -> None:
        """Count a finished episode."""
        self._episodes += 1
        components = record.get("agent", {}).get("components", {}).values()
        self.num_unpriced += any(used["cost"] is None for used in components)
        for used in components:
            self._tokens += used["prompt_tokens"] + used["completion_tokens"]
            self._cost += used["cost"] or 0.0

    def reached(self) -> str | None:
        """Return which limit is reached, or None."""
        limits = self._limits
        if limits.episodes is not None and self._episodes >= limits.episodes:
            return f"the limit of {limits.episodes:,} episodes"
        if limits.tokens is not None and self._tokens >= limits.tokens:
            return f"the limit of {limits.tokens:,} tokens ({self._tokens:,} used)"
        if limits.cost is not None and self._cost >= limits.cost:
            return f"the limit of {limits.cost:g} dollars ({self._cost:.4g} spent)"
        if time.monotonic() >= (math.inf if self.until is None else self.until):
            return f"the limit of {limits.seconds:g} seconds"
        return None


class Patience:
    """Counts episodes that break one after the other, until it is clear that the endpoint will not come back."""

    def __init__(self, most: int) -> None:
        self._most = most  # failures in a row after which the run stops
        self._in_a_row = 0
        self.num_failures = 0
        self.last_error = ""

    def lose(self, failure: FailureRecord) -> None:
        """Count a failure.

        Raises:
            InfrastructureError: It was one too many in a row.
        """
        self.num_failures += 1
        self._in_a_row += 1
        self.last_error = failure["error"]
        if self._in_a_row >= self._most:
            count = f"{self._in_a_row} episodes in a row" if self._in_a_row > 1 else "an episode"
            raise InfrastructureError(
                f"{count} broke, the last because {failure['error']}; "
                "what is finished is kept, and the same command goes on"
            )

    def restore(self) -> None:
        """Count an episode that came to its end."""
        self._in_a_row = 0
