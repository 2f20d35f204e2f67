"""What results rest on: the table of a run, its calls, its agents, one episode of each policy; read in one pass."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from resilisim.envs.settings import LAW_NAMES
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.run.store import read_manifest, read_own_records
from resilisim.evaluation.table.agents import AgentSums
from resilisim.evaluation.table.breakdown import Breakdown, CallSums
from resilisim.evaluation.table.episodes import EpisodeTable, TableBuilder, taking_in
from resilisim.evaluation.table.summary import GroupSummary, summarise


@dataclass(frozen=True)
class RunFacts:
    """What results are made of, the report and all others."""

    table: EpisodeTable  # the table of sums of its episodes
    agents: Mapping[tuple[str, str], AgentSums]  # what its LLM agents used, by policy and prompt type
    # For each policy the episode in which its calls cost most, or the unluckiest one if none cost anything
    examples: Mapping[str, EpisodeRecord]
    breakdown: Breakdown  # where the points went, by policy, prompt, flaw, task type and tool

    @cached_property
    def rows(self) -> list[GroupSummary]:
        """Summary of each policy under each prompt type, in the order of the command that made them."""
        return summarise(self.table)

    @property
    def manifest(self) -> Mapping[str, Any]:
        """The run's manifest."""
        return self.table.manifest

    @property
    def world(self) -> str | None:
        """The world whose tools really work in this run; None where calls are simulated."""
        environment = self.manifest["arguments"].get("environment", {})
        world: str | None = environment.get("world")
        return world

    @property
    def fails_by_chance(self) -> bool:
        """Whether a law lets calls fail by chance: it does unless all its constants are 1."""
        environment = self.manifest["arguments"].get("environment", {})
        return any(environment.get(name) != 1.0 for name in LAW_NAMES[1:])

    @property
    def num_planned(self) -> int:
        """How many episodes the run has when it is finished."""
        return self.table.num_planned


class RunCollector:
    """Takes in the episodes of a run one by one; memory grows with tasks and policies, never with episodes."""

    def __init__(self) -> None:
        # Held while an episode is taken in; who looks at `table` and `agents` from another thread holds it, too.
        self.lock = threading.Lock()
        self.table = TableBuilder()
        self.agents: dict[tuple[str, str], AgentSums] = {}
        self._calls = CallSums()
        self._examples: dict[str, EpisodeRecord] = {}

    def add(self, record: EpisodeRecord) -> None:
        """Take in one episode."""
        names = (record["policy"], record["prompt_type"])
        with self.lock:
            self.table.add(record)
            if "agent" in record:
                self.agents.setdefault(names, AgentSums(*names)).add(record)
        self._calls.add(record)
        best = self._examples.get(names[0])
        if best is None or _interest(record) > _interest(best):
            self._examples[names[0]] = record

    def facts(self, manifest: Mapping[str, Any]) -> RunFacts:
        """Return what there is to say of the episodes so far."""
        table = self.table.table(manifest)
        return RunFacts(table, self.agents, self._examples, Breakdown(table, self._calls))


def _interest(record: EpisodeRecord) -> tuple[float, float, int]:
    """Rank an episode; ties go to the lower index, so that the choice does not hang on the order of arrival."""
    # Rounded, so that sums that differ in the last bit count as equal.
    return (round(record["regret"], 9), -round(record["luck"], 9), -record["index"])


def read_facts(directory: Path | str, on_record: Callable[[EpisodeRecord], None] | None = None) -> RunFacts:
    """Return the facts of a folder of results, finished or not, reading its episodes once; `on_record` gets each.

    Raises:
        StoreError: It is not a folder of results, cannot be read, or holds an episode of another run.
    """
    manifest = read_manifest(directory)
    collector = RunCollector()
    for record in read_own_records(directory, manifest):
        with taking_in(record, directory):
            collector.add(record)
        if on_record is not None:
            on_record(record)
    return collector.facts(manifest)
