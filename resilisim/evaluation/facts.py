"""What a run's results rest on: its manifest, the sums over its episodes, one episode per policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resilisim.errors import StoreError
from resilisim.evaluation.accumulate import RunSums
from resilisim.evaluation.breakdown import Breakdown
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.run.store import read_manifest, read_own_records
from resilisim.evaluation.summary import GroupSummary, summarise


class ExamplePicker:
    """Keeps, for each policy, the episode in which its calls cost most (if none cost anything, the unluckiest one)."""

    def __init__(self) -> None:
        self.chosen: dict[str, EpisodeRecord] = {}

    def add(self, record: EpisodeRecord) -> None:
        """Look at one episode; ties go to the lower index, so that the choice does not hang on the order of arrival."""
        best = self.chosen.get(record["policy"])
        if best is None or _interest(record) > _interest(best):
            self.chosen[record["policy"]] = record


def _interest(record: EpisodeRecord) -> tuple[float, float, int]:
    # Rounded, so that sums that differ in the last bit count as equal.
    return (round(record["regret"], 9), -round(record["luck"], 9), -record["index"])


class RunCollector:
    """Takes in the episodes of a run one by one; memory grows with tasks and policies, never with episodes."""

    def __init__(self) -> None:
        self.sums = RunSums()
        self.breakdown = Breakdown(self.sums)
        self._examples = ExamplePicker()

    def add(self, record: EpisodeRecord) -> None:
        """Take in one episode."""
        self.sums.add(record)
        self.breakdown.add(record)
        self._examples.add(record)

    def facts(self, manifest: Mapping[str, Any]) -> RunFacts:
        """Return what there is to say of the episodes so far."""
        return RunFacts(manifest, self.sums, self._examples.chosen, self.breakdown)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What results are made of, the report and all others.

    Attributes:
        manifest: The run's manifest.
        sums: Sums over its episodes.
        examples: One episode per policy.
        breakdown: Where the points went, by policy, prompt, flaw, task type and tool.
        rows: Summary of each policy under each prompt type, in the order of the command that made them.
    """

    manifest: Mapping[str, Any]
    sums: RunSums
    examples: Mapping[str, EpisodeRecord]
    breakdown: Breakdown
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


def read_facts(directory: Path | str, on_record: Callable[[EpisodeRecord], None] | None = None) -> RunFacts:
    """Return the facts of a folder of results, finished or not, reading its episodes once, one at a time.

    Args:
        directory: Folder of the results.
        on_record: Called with every episode, for those who want more of them than facts.

    Raises:
        StoreError: It is no folder of results, cannot be read, or holds an episode of another run.
    """
    manifest = read_manifest(directory)
    collector = RunCollector()
    for record in read_own_records(directory, manifest):
        try:
            collector.add(record)
        except (KeyError, TypeError, AttributeError) as error:  # the part of an LLM agent is not whole
            problem = f"lacks the field {error}" if isinstance(error, KeyError) else f"cannot be read: {error}"
            raise StoreError(f"episode {record['index']} of {directory} {problem}") from error
        if on_record is not None:
            on_record(record)
    return collector.facts(manifest)
