"""`export_dataset`: the records of many tasks as a folder of shards that others load and train on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilisim.datasets.card import render_card
from resilisim.datasets.extras import require
from resilisim.datasets.folder import DatasetFolder, read_facts
from resilisim.datasets.lengths import describe_lengths, measure_lengths, token_counter
from resilisim.datasets.manifest import make_manifest
from resilisim.datasets.reading import facts_of_file, read_records
from resilisim.datasets.shards import FORMATS, Format, ShardFacts, plan_shards
from resilisim.datasets.sources import SourceSpec
from resilisim.datasets.workers import ShardSettings, write_shards
from resilisim.errors import MAX_COUNT, MAX_WORKERS, check_integer, unknown_name
from resilisim.evaluation.run.arguments import check_tasks
from resilisim.tool_library.library import ToolLibrary, default_library

TASKS_PER_SHARD = 50
DEFAULT_LICENSE = "apache-2.0"


class ExportInterrupted(KeyboardInterrupt):
    """Somebody stopped an export with Ctrl-C.

    Attributes:
        num_kept: Shards that are on disk.
        num_shards: Shards of the whole dataset.
    """

    def __init__(self, num_kept: int, num_shards: int) -> None:
        super().__init__(f"interrupted: {num_kept:,} of {num_shards:,} shards kept")
        self.num_kept = num_kept
        self.num_shards = num_shards


@dataclass(frozen=True, slots=True)
class ExportResult:
    """A finished dataset.

    Attributes:
        directory: Its folder.
        manifest: What it is: arguments, versions, schema.
        shards: What is in each of its files.
        num_already_there: Shards that an earlier call had left in the folder; they were not written again.
    """

    directory: Path
    manifest: dict[str, Any]
    shards: tuple[ShardFacts, ...]
    num_already_there: int

    @property
    def num_records(self) -> int:
        """Records of all shards."""
        return sum(facts.num_records for facts in self.shards)

    def records_per_split(self) -> dict[str, int]:
        """Return the number of records of each split that has files."""
        totals: dict[str, int] = {}
        for facts in self.shards:
            totals[facts.split] = totals.get(facts.split, 0) + facts.num_records
        return totals

    def to_mapping(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "directory": str(self.directory),
            "manifest": self.manifest,
            "records": self.records_per_split(),
            "shards": [facts.to_mapping() for facts in self.shards],
            "shards_already_there": self.num_already_there,
        }


def export_dataset(
    spec: SourceSpec,
    tasks: object,
    out: Path | str,
    *,
    library: ToolLibrary | None = None,
    format: Format = "jsonl",
    tasks_per_shard: int = TASKS_PER_SHARD,
    workers: int = 1,
    overwrite: bool = False,
    license: str = DEFAULT_LICENSE,
    tokenizer: str | Path | None = None,
    command: str = "",
    progress: Callable[[int], None] | None = None,
) -> ExportResult:
    """Write a dataset; the same arguments write the same bytes, and go on where an earlier call was stopped.

    The folder holds `README.md` (the dataset card), `manifest.json`, `shards.json` and `data/` with the shards of the
    splits train, validation and test. Records of one task are held in memory at a time, of Parquet 1,000 records. A
    call that fails before the first shard is whole leaves nothing behind.

    Args:
        spec: What the records are: `PromptSpec`, `ConversationSpec`, `PreferenceSpec`, or one of your own.
        tasks: Tasks, in any form that `evaluate` takes: "benchmark-v1", a number, a file, or a list.
        out: The folder.
        library: Tool library of the tasks; None is the default one.
        format: "jsonl" or "parquet" (needs the extra `datasets`).
        tasks_per_shard: Tasks of each shard; a shard is what is lost when a process is killed.
        workers: Number of processes.
        overwrite: Remove another dataset that is in the folder, and permit files there that no export wrote, which
            stay. The same dataset is not removed: it is gone on with.
        license: License of the records, as the card names it.
        tokenizer: What counts the lengths in tokens that the card states: a `tokenizer.json`, a folder that holds one,
            a GGUF file, or "none"; None takes the tokenizer of the SmolLM2 that ships, where it is installed.
        command: The command that made the dataset, for the card.
        progress: Called now and then with the number of tasks done since the last call.

    Raises:
        InvalidInputError: An argument makes no sense, or a record does not fit its schema.
        StoreError: The folder holds something else, or cannot be written; whole shards are kept.
        MissingExtraError: A package is not installed.
        InfrastructureError: A worker process died; whole shards are kept.
        ExportInterrupted: On Ctrl-C; whole shards are kept.
    """
    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    tasks_per_shard = check_integer("tasks_per_shard", tasks_per_shard, 1, MAX_COUNT)
    workers = check_integer("workers", workers, 1, MAX_WORKERS)
    chosen_library = default_library() if library is None else library
    shards = plan_shards(check_tasks(tasks, chosen_library), tasks_per_shard)
    if format == "parquet":
        require("pyarrow.parquet")
    counter = token_counter(tokenizer)
    source = spec.make(chosen_library)
    all_tasks = [task for shard in shards for task in shard.tasks]
    manifest = make_manifest(
        spec,
        all_tasks,
        source.schema,
        chosen_library,
        format,
        license=license,
        tasks_per_shard=tasks_per_shard,
        tokenizer=None if counter is None else counter.name,
    )
    with DatasetFolder(Path(out), manifest, overwrite=overwrite) as folder:
        kept = [shard for shard in shards if folder.holds(shard.file_name(format))]
        missing = [shard for shard in shards if not folder.holds(shard.file_name(format))]
        report = progress or _say_nothing
        report(sum(len(shard.tasks) for shard in kept))
        if not missing and folder.is_finished():
            return ExportResult(folder.directory, manifest, tuple(read_facts(folder.directory)), len(kept))
        library_text = None if chosen_library == default_library() else chosen_library.to_json()
        settings = ShardSettings(spec, library_text, folder.data, format)
        facts = {shard.file_name(format): facts_of_file(folder.data / shard.file_name(format)) for shard in kept}
        try:
            with contextlib.closing(write_shards(settings, source, missing, workers)) as written:
                for done in written:
                    if isinstance(done, ShardFacts):
                        facts[done.file] = done
                    else:
                        report(done)
            lengths = {} if counter is None else measure_lengths(read_records(out), all_tasks, counter)
        except KeyboardInterrupt:
            # Asked of the disk: a worker may have finished a shard that it could not tell of any more.
            num_kept = sum(folder.holds(shard.file_name(format)) for shard in shards)
            raise ExportInterrupted(num_kept, len(shards)) from None
        in_order = tuple(facts[shard.file_name(format)] for shard in shards)
        said = describe_lengths(lengths, counter)
        folder.finish(in_order, render_card(manifest, source.schema, in_order, license, command, said))
    return ExportResult(folder.directory, manifest, in_order, len(kept))


def _say_nothing(number: int) -> None:
    pass
