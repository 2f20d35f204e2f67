"""Writing shards, in this process or in several."""

from __future__ import annotations

import pickle
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from resilisim.datasets.shards import Format, Shard, ShardFacts
from resilisim.datasets.sources import RecordSource, SourceSpec
from resilisim.datasets.writing import ShardWriter
from resilisim.errors import InvalidInputError, ResiliSimError, StoreError
from resilisim.processes import Jobs, answers_of_processes
from resilisim.tool_library.library import ToolLibrary, default_library


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """What a process needs to know to write any shard of a dataset.

    Attributes:
        spec: Where the records come from.
        library: The tool library as JSON, or None for the default one.
        data: The folder of the shards.
        file_format: "jsonl" or "parquet".
    """

    spec: SourceSpec
    library: str | None
    data: Path
    file_format: Format

    def make_source(self) -> RecordSource:
        """Return the source of the records."""
        library = default_library() if self.library is None else ToolLibrary.from_json(self.library, source="library")
        return self.spec.make(library)


class ShardMaker:
    """Writes shards one after the other.

    Args:
        settings: What the dataset is.
        source: Where the records come from; made if it is not given.
    """

    def __init__(self, settings: ShardSettings, source: RecordSource | None = None) -> None:
        self._settings = settings
        self._source = source or settings.make_source()

    def __call__(self, shard: Shard) -> Iterator[int | ShardFacts]:
        """Write a shard; yield 1 after each task, and at the end what the file holds.

        Raises:
            StoreError: The disk is full, or the like.
            ResiliSimError: The source refused the task, or a record does not fit; the text names the task.
            Exception: Whatever else the source raises, with a note that names the task.
        """
        settings = self._settings
        path = settings.data / shard.file_name(settings.file_format)
        with ShardWriter(path, settings.file_format, self._source.schema) as writer:
            for task in shard.tasks:
                try:
                    for record in self._source.records(task):
                        writer.write(record)
                except StoreError:
                    raise
                except ResiliSimError as error:
                    raise type(error)(f"task {task.instance_id}: {error}") from error
                except Exception as error:
                    error.add_note(f"ResiliSim: this was raised for task {task.instance_id}")
                    raise
                yield 1
            yield writer.commit()


def write_shards(
    settings: ShardSettings, source: RecordSource, shards: Sequence[Shard], workers: int
) -> Generator[int | ShardFacts, None, None]:
    """Write shards and yield numbers of tasks as they are done, and the facts of each shard that is whole.

    Args:
        settings: What the dataset is.
        source: Where the records come from, as far as this process writes.
        shards: What to write.
        workers: Number of processes; 1 is this one.

    Raises:
        InvalidInputError: The source cannot travel to other processes.
        InfrastructureError: A worker process died.
        Exception: Whatever a shard raises; the others are stopped.
    """
    workers = min(workers, len(shards))
    if workers <= 1:
        maker = ShardMaker(settings, source)
        for shard in shards:
            yield from maker(shard)
        return
    try:
        pickle.dumps(settings)
    except Exception as error:
        raise InvalidInputError(
            f"the source of the records cannot be handed to other processes ({error}): use one worker"
        ) from error
    yield from answers_of_processes(ShardMaker, settings, Jobs(iter(shards)), workers)
