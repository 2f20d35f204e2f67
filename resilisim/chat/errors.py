"""Two ways in which an endpoint leaves a request unanswered: it cannot, or it will not."""

from __future__ import annotations

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
