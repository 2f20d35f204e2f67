"""Episodes as ranks and comparisons count them: one that broke, nobody can tell why, is lost until it is finished.

Without this an agent that pretends to have lost its endpoint wherever a tool fails would be ranked by the episodes that
went well (docs/specification, section 9).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from resilisim.evaluation.episode.record import EpisodeRecord, FailureRecord
from resilisim.evaluation.run.store import read_failures, read_manifest, read_own_records
from resilisim.evaluation.table.episodes import EpisodeTable, TableBuilder, taking_in

UNKNOWN_OPTIMUM: Final = 1.0  # of a lost episode of a task of which no episode is finished


def unclear_failures(failures: Iterable[FailureRecord]) -> dict[int, FailureRecord]:
    """Return the last failure of each episode, finished or not, that the agent may have brought about."""
    return {failure["index"]: failure for failure in failures if failure.get("fault") != "infrastructure"}


def counted_records(
    directory: Path | str,
    manifest: Mapping[str, Any],
    failures: Iterable[FailureRecord] | None = None,
    places: dict[int, int] | None = None,
) -> Iterator[tuple[EpisodeRecord, bool]]:
    """Yield the episodes of a folder, and those that count as lost as they are not finished; True marks the latter.

    Args:
        directory: The folder.
        manifest: Its manifest.
        failures: Its failures, where somebody has read them already.
        places: Takes where episodes stand (`read_records`).

    Raises:
        StoreError: It is not a folder of results, or cannot be read, or a line is not an episode of this run.
    """
    unclear = unclear_failures(read_failures(directory) if failures is None else failures)
    if "inject" in manifest["arguments"]:  # a program that is run again plays the seed anew, under another number
        unclear = {failure["seed"]: failure for failure in unclear.values()}
        place = "seed"
    else:
        place = "index"
    examples: dict[tuple[str, str | None], EpisodeRecord] = {}
    wanted = {failure["instance_id"] for failure in unclear.values()}
    for record in read_own_records(directory, manifest, places):
        unclear.pop(int(cast("Any", record)[place]), None)
        if record["instance_id"] in wanted:
            examples.setdefault((record["instance_id"], record["prompt_type"]), record)
            examples.setdefault((record["instance_id"], None), record)
        yield record, False
    if manifest["arguments"].get("explored"):
        return  # branches that broke were not played, which the bracket holds already
    for failure in unclear.values():
        task = failure["instance_id"]
        example = examples.get((task, failure["prompt_type"])) or examples.get((task, None))
        yield lost_record(failure, example), True


def lost_record(failure: FailureRecord, example: EpisodeRecord | None) -> EpisodeRecord:
    """Return what counts for an episode that broke, given another of its task: lost, and all of V* is the agent's."""
    known: Mapping[str, Any] = example or {}
    optimum = failure.get("optimum", known.get("optimum", UNKNOWN_OPTIMUM))
    fields: dict[str, Any] = {
        "index": failure["index"],
        "policy": failure["policy"],
        "prompt_type": failure["prompt_type"],
        "instance_id": failure["instance_id"],
        "seed": failure["seed"],
        "privileged": False,
        "planner": known.get("planner"),
        "flaw": None,
        "task_type": known.get("task_type", ""),
        "complexity": known.get("complexity", ""),
        "required_tools": known.get("required_tools", []),
        "steps": [{"kind": "agent_error"}],
        "ended_by": "agent_error",
        "score": {"level": "failure"},
        "outcome": 0,
        "optimum": optimum,
        "optimum_gap": 0.0,
        "regret": optimum,
        "luck": 0.0,
        "losses": {"agent_error": optimum},
    }
    for name in ("optimum_after_searches", "no_search_ceiling", "optimum_knowledge", "no_ceiling"):
        if name in known:
            fields[name] = known[name]
    return cast("EpisodeRecord", fields)


def read_counted_table(directory: Path | str) -> EpisodeTable:
    """Return the table of the episodes in a run's folder as comparisons count them.

    Raises:
        StoreError: It is not a folder of results, or cannot be read, or a line is not an episode of this run.
    """
    manifest = read_manifest(directory)
    builder, num_lost = TableBuilder(sums=False), 0
    for record, counts_as_lost in counted_records(directory, manifest):
        with taking_in(record, directory):
            builder.add(record)
        num_lost += counts_as_lost
    return replace(builder.table(manifest), num_counted_as_lost=num_lost)
