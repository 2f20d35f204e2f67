"""When to ask an endpoint again: exponential backoff with jitter, and the time that the endpoint itself names."""

from __future__ import annotations

import email.utils
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

from resilisim.errors import MAX_COUNT, InvalidInputError
from resilisim.options import option
from resilisim.seeding import Draws

PASSING_STATUSES = frozenset({408, 409, 425, 429})  # timeouts, conflicts and limits go by; so does any status from 500


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and after which waits to ask again.

    Attributes:
        first_wait: Seconds before the first retry, before jitter; each later wait is twice as long.
        longest_wait: Seconds that a wait of our own choice is at most.
        longest_demand: Seconds that an endpoint may make us wait; one that asks for more has failed.
    """

    retries: int = option(4, "How often a failed request is sent again.", least=0, most=MAX_COUNT)
    first_wait: float = 0.5
    longest_wait: float = 30.0
    longest_demand: float = 120.0

    def __post_init__(self) -> None:
        """Refuse a number of retries that is none."""
        if self.retries < 0:
            raise InvalidInputError(f"retries {self.retries!r}: expected 0 or more")

    def wait_before_retry(self, retry: int, demanded: float | None, draws: Draws) -> float | None:
        """Return the seconds to wait before a retry, or None if the endpoint demands too long a wait.

        Args:
            retry: 1 before the first retry.
            demanded: What the endpoint asked for in seconds, or None. Less is never waited; the jitter is added, so
                that many who were told the same do not come back at once.
            draws: Source of the jitter, half to the whole of the wait.
        """
        own = min(self.longest_wait, self.first_wait * 2.0 ** min(retry - 1, 60)) * (0.5 + 0.5 * draws.uniform())
        if demanded is None:
            return own
        if demanded > self.longest_demand:
            return None
        return demanded + min(own, self.first_wait)


def is_passing(status: int) -> bool:
    """Tell whether the same request may succeed later although it failed with this HTTP status."""
    return status in PASSING_STATUSES or status >= 500


def demanded_wait(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Return the seconds that an endpoint asks to wait, 0 or more, or None if it does not say so intelligibly.

    Args:
        headers: Of the response, names in lower case or in a mapping that does not care.
        now: Seconds since 1970, for dates; None takes the clock.
    """
    for name, seconds_per_unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        wait = _number(headers.get(name, ""))
        if wait is not None:
            return max(0.0, wait * seconds_per_unit)
    parsed = email.utils.parsedate_tz(headers.get("retry-after", ""))
    if parsed is None:
        return None
    try:
        moment = email.utils.mktime_tz(parsed)
    except (ValueError, OverflowError):  # a date that no calendar has
        return None
    return max(0.0, moment - (time.time() if now is None else now))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) else value
