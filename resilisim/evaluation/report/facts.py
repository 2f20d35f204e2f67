"""What the report is about: a run's manifest, the sums over its episodes, one episode per policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from resilisim.evaluation.accumulate import RunSums
from resilisim.evaluation.records import EpisodeRecord
from resilisim.evaluation.summary import GroupSummary, summarise


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the report is about.

    Attributes:
        manifest: The run's manifest.
        sums: Sums over its episodes.
        examples: One episode per policy.
        rows: Summary of each policy under each prompt type, in the order of the command that made them.
    """

    manifest: Mapping[str, Any]
    sums: RunSums
    examples: Mapping[str, EpisodeRecord]
    rows: list[GroupSummary] = field(init=False)

    def __post_init__(self) -> None:
        """Summarise the groups."""
        object.__setattr__(self, "rows", summarise(self.sums, *self.order))

    @property
    def order(self) -> tuple[Sequence[str], Sequence[str]]:
        """Policies and prompt types in the order of the command."""
        arguments = self.manifest["arguments"]
        return arguments.get("policy_names", ()), arguments.get("prompts", ())

    @property
    def num_planned(self) -> int:
        """How many episodes the run has when it is finished."""
        return int(self.manifest["arguments"].get("num_episodes", self.sums.num_episodes))


def count_of(number: int, singular: str, plural: str | None = None) -> str:
    """Return a number with its noun ("1 task", "5,040 tasks")."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
