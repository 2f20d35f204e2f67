"""How an endpoint leaves a request unanswered: it cannot, it will not, or its model cannot read that much."""

from __future__ import annotations

import re

from resilisim.errors import InfrastructureError, InvalidInputError


class EndpointError(InfrastructureError):
    """An endpoint did not answer, also not after the last retry.

    Attributes:
        status: The last HTTP status; None if there was none (no connection, no answer in time).
        attempts: How often it was asked.
    """

    def __init__(self, message: str, status: int | None = None, attempts: int = 1) -> None:
        super().__init__(message)
        self.status = status
        self.attempts = attempts


class RequestRefusedError(InvalidInputError):
    """An endpoint refuses a request, and would again: a wrong key, an unknown model, a parameter it does not take.

    Attributes:
        status: The HTTP status.
    """

    # Who asks is unknown, not permitted, or asks at a wrong address: no other request would fare better.
    _STATUSES_OF_ALL = frozenset({401, 403, 404, 405})

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status

    @property
    def concerns_all_requests(self) -> bool:
        """Whether every other request would be refused as well."""
        return self.status in self._STATUSES_OF_ALL


class ContextOverflowError(RequestRefusedError):
    """A request is longer than the model can read: a shorter one would be answered."""

    @property
    def concerns_all_requests(self) -> bool:
        """False: only requests as long as this one are refused."""
        return False


# What endpoints say then; their words differ, and few give a code.
_OVERFLOW_WORDS = re.compile(
    r"context[_ ]length|maximum context|context window|context[_ ]size|available context|too many (?:input )?tokens"
    r"|(?:prompt|input|request|message)s? (?:is|are) too long|prompt too long|maximum (?:input|prompt) length"
    r"|reduce the length of|input length .{0,60}exceed|string_above_max_length",
    re.IGNORECASE,
)
_OVERFLOW_STATUSES = frozenset({400, 413, 422})


def tells_context_overflow(status: int, words: str) -> bool:
    """Tell whether an endpoint refuses a request because it is too long.

    Args:
        status: The HTTP status.
        words: What it says, a code included if it gives one.
    """
    if status == 413 and "too large" in words.lower():
        return True
    return status in _OVERFLOW_STATUSES and _OVERFLOW_WORDS.search(words) is not None
