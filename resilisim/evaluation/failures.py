"""Episodes that broke for reasons outside of agent and simulator: written down apart, never scored, tried again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypedDict, TypeGuard

from resilisim.errors import InfrastructureError
from resilisim.provenance import read_json_lines

FAILURE_SCHEMA: Final = "resilisim-failure-1"
FAILURES_NAME: Final = "failures.jsonl"


class FailureRecord(TypedDict):
    """One try at an episode that did not come to its end.

    `calls` is how many calls of the model were answered before; their replies are kept, so that the next try goes on
    from there.
    """

    schema: str
    index: int
    policy: str
    prompt_type: str
    instance_id: str
    seed: int
    error: str
    reason: str
    calls: int


def is_failure(value: Mapping[str, Any]) -> TypeGuard[FailureRecord]:
    """Tell whether a JSON value is the record of a failure."""
    return value.get("schema") == FAILURE_SCHEMA


def read_failures(directory: Path | str) -> Iterator[FailureRecord]:
    """Yield the failures that a run's folder tells of, also those of episodes that were finished later.

    Raises:
        StoreError: The file cannot be read.
    """
    path = Path(directory) / FAILURES_NAME
    if path.exists():
        for value in read_json_lines(path):
            if isinstance(value, Mapping) and is_failure(value):
                yield value


class Patience:
    """Counts episodes that break one after the other, until it is clear that the endpoint will not come back.

    Args:
        most: Failures in a row after which the run stops.

    Attributes:
        num_failures: Failures so far.
        last_error: What the last one was; empty if there was none.
    """

    def __init__(self, most: int) -> None:
        self._most = most
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
