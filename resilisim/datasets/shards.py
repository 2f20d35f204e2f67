"""How tasks are divided into shards: each a fixed run of tasks of one split, whoever writes it and when."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

from resilisim.tasks.model import SPLITS, Split, Task, split_of

Format: TypeAlias = Literal["jsonl", "parquet"]
FORMATS: tuple[Format, ...] = ("jsonl", "parquet")  # also the endings of the files' names

_FILE_NAME = re.compile(rf"({'|'.join(SPLITS)})-(\d{{5,}})-of-(\d{{5,}})\.({'|'.join(FORMATS)})")


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a dataset.

    Attributes:
        split: The part of the data that it belongs to.
        number: Its place among the shards of its split, from 0.
        count: Number of shards of its split.
        tasks: The tasks whose records it holds, in order.
    """

    split: Split
    number: int
    count: int
    tasks: tuple[Task, ...] = field(repr=False)

    def file_name(self, file_format: Format) -> str:
        """Return the name of its file, such as "train-00000-of-00012.jsonl"."""
        return f"{self.split}-{self.number:05d}-of-{self.count:05d}.{file_format}"


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """What is in the file of a shard.

    Attributes:
        file: Name of the file.
        num_records: Records in it.
        num_bytes: Its size.
        sha256: Hash of its bytes, in hex.
    """

    file: str
    num_records: int
    num_bytes: int
    sha256: str

    @property
    def split(self) -> Split:
        """The part of the data that it belongs to."""
        return cast("Split", self.file.partition("-")[0])

    def to_mapping(self) -> dict[str, Any]:
        """Return the facts as JSON values."""
        return {"file": self.file, "records": self.num_records, "bytes": self.num_bytes, "sha256": self.sha256}

    @classmethod
    def from_mapping(cls, mapping: dict[str, Any]) -> ShardFacts:
        """Build the facts from what `to_mapping` returned."""
        return cls(mapping["file"], mapping["records"], mapping["bytes"], mapping["sha256"])


def plan_shards(tasks: Sequence[Task], tasks_per_shard: int) -> list[Shard]:
    """Divide tasks into shards, splits in the order train, validation, test, tasks in theirs.

    Args:
        tasks: Any tasks; each goes to the split of its required tools.
        tasks_per_shard: Tasks of each shard but the last of a split, at least 1.
    """
    tasks_of: dict[Split, list[Task]] = {split: [] for split in SPLITS}
    for task in tasks:
        tasks_of[split_of(task.required_tools)].append(task)
    shards: list[Shard] = []
    for split, chosen in tasks_of.items():
        starts = range(0, len(chosen), tasks_per_shard)
        shards += [
            Shard(split, number, len(starts), tuple(chosen[start : start + tasks_per_shard]))
            for number, start in enumerate(starts)
        ]
    return shards


def is_shard_name(name: str) -> bool:
    """Tell whether a file name is one that a shard can have."""
    return _FILE_NAME.fullmatch(name) is not None
