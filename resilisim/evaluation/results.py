"""The results of a run: summaries by policy and prompt type, and the folder with every episode."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resilisim.errors import unknown_name
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.episode.texts import opened
from resilisim.evaluation.report import write_report
from resilisim.evaluation.run.store import read_records
from resilisim.evaluation.table.agents import AgentSums
from resilisim.evaluation.table.facts import RunFacts, read_facts
from resilisim.evaluation.table.summary import GroupSummary, SummaryTable


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What one call of `evaluate` did to a folder.

    Attributes:
        num_already_there: Episodes that an earlier call had left in the folder; they were not played again.
        num_failures: Episodes that broke in this call for reasons of infrastructure; they are unfinished, and the same
            call tries them again.
        last_error: What the last of them broke on.
        stopped_by: The limit that ended the call before everything was played; None if none did.
        silent_policies: Policies that ask no model and ended every episode in the folder by returning None at once.
    """

    num_already_there: int = 0
    num_failures: int = 0
    last_error: str = ""
    stopped_by: str | None = None
    silent_policies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class EvaluationResult:
    """The results of a run.

    Attributes:
        directory: The folder.
        facts: What is known of its episodes.
        call: What the call that returned this did; of results that were only read, nothing.

    Example:
        >>> from resilisim import evaluate
        >>> result = evaluate("plan-follower", tasks=10, prompts="optimal", seeds=3)
        >>> result.row("plan-follower", "optimal").num_episodes
        30
        >>> next(result.records())["instance_id"]
        'task_c64444cae27fab46'
    """

    directory: Path
    facts: RunFacts
    call: CallOutcome = field(default_factory=CallOutcome)
    # Keeps a folder that nobody asked for until the result is gone.
    _temporary: tempfile.TemporaryDirectory[str] | None = None

    def __eq__(self, other: object) -> bool:
        """Return whether both tell the same of one folder; what calls did is left out."""
        if not isinstance(other, EvaluationResult):
            return NotImplemented
        return (self.directory, self.manifest, self.rows) == (other.directory, other.manifest, other.rows)

    def __repr__(self) -> str:
        """Return the folder, how much of the run is there, and its policies: a manifest would fill pages."""
        policies = ", ".join(dict.fromkeys(row.policy for row in self.rows))
        return (
            f"EvaluationResult({str(self.directory)!r}, {self.num_episodes} of {self.num_planned} episodes, "
            f"policies: {policies or 'none'})"
        )

    @property
    def manifest(self) -> dict[str, Any]:
        """The run's manifest: arguments, versions, hashes."""
        return dict(self.facts.manifest)

    @property
    def rows(self) -> tuple[GroupSummary, ...]:
        """One summary per policy and prompt type."""
        return tuple(self.facts.rows)

    @property
    def num_episodes(self) -> int:
        """Episodes that are finished."""
        return self.facts.table.num_episodes

    @property
    def num_planned(self) -> int:
        """How many episodes the run has when it is finished."""
        return self.facts.num_planned

    def row(self, policy: str, prompt_type: str = "baseline") -> GroupSummary:
        """Return the summary of one policy under one prompt type.

        Raises:
            InvalidInputError: The run has none of that name.
        """
        for row in self.rows:
            if (row.policy, row.prompt_type) == (policy, prompt_type):
                return row
        names = [f"{row.policy} under {row.prompt_type}" for row in self.rows]
        raise unknown_name("result", f"{policy} under {prompt_type}", names)

    def records(self) -> Iterator[EpisodeRecord]:
        """Yield the record of every episode with its texts unpacked, in the order in which they ended.

        Raises:
            StoreError: The folder is gone, or cannot be read.
        """
        # A generator of this object's own: it keeps a temporary folder alive while somebody reads.
        yield from map(opened, read_records(self.directory))

    def table(self) -> SummaryTable:
        """Return the summary as a table for the terminal (`rich.print` shows it)."""
        return SummaryTable(self.rows)

    def write_report(self, path: Path | str | None = None) -> Path:
        """Write the HTML report, `report.html` in the folder if no path is given, and return its path.

        Raises:
            StoreError: It cannot be written.
        """
        return write_report(self.directory, path)

    def agents(self) -> tuple[AgentSums, ...]:
        """Return what the LLM agents used and where they gave up, in the order of the rows."""
        sums = self.facts.agents
        keys = [(row.policy, row.prompt_type) for row in self.rows]
        return tuple(sums[key] for key in keys if key in sums)

    def to_mapping(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return {
            "directory": str(self.directory),
            "manifest": self.manifest,
            "num_episodes": self.num_episodes,
            "num_planned": self.num_planned,
            "num_failures": self.call.num_failures,
            "last_error": self.call.last_error or None,
            "stopped_by": self.call.stopped_by,
            "results": [row.to_mapping() for row in self.rows],
            "agents": [sums.to_mapping() for sums in self.agents()],
        }


def read_results(directory: Path | str) -> EvaluationResult:
    """Return the results in a folder, finished or not, reading its episodes once.

    Raises:
        StoreError: It is no folder of results, or cannot be read.

    Example:
        >>> import tempfile
        >>> from resilisim import evaluate, read_results
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = evaluate("plan-follower", tasks=3, out=folder)
        ...     read_results(folder).rows == result.rows
        True
    """
    return EvaluationResult(Path(directory), read_facts(directory))
