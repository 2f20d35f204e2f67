"""The folder of a run: what it was asked for (manifest.json) and what is finished (episodes.jsonl).

The same command on the same folder goes on where it stopped. Anything else is refused, naming the first difference, so
that results of different laws, luck, tasks or benchmark versions can never stand in one file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from resilisim.errors import StoreError
from resilisim.evaluation.episode.record import EpisodeRecord, FailureRecord, checked_record, is_failure
from resilisim.run_folder import MANIFEST_NAME, JsonLinesWriter, RunFolder, load_manifest, read_json_lines

EPISODES_NAME = "episodes.jsonl"
FAILURES_NAME = "failures.jsonl"


class RunStore(RunFolder):
    """A run's folder, open for writing by one process.

    Args:
        directory: The folder; it is made if needed.
        arguments: Everything that decides what the episodes are (JSON values).
        num_episodes: Number of episodes of the whole run; their indices are 0 to num_episodes - 1.
        on_record: Called with every record that an earlier run left, while the folder is opened.

    Attributes:
        finished: (num_episodes bits) bitmap of the episodes that are in the file.
        num_finished: How many they are.

    Raises:
        StoreError: The folder holds another run's results, a broken file, or cannot be written.
    """

    def __init__(
        self,
        directory: Path | str,
        arguments: Mapping[str, Any],
        num_episodes: int,
        on_record: Callable[[EpisodeRecord], None] | None = None,
    ) -> None:
        super().__init__(directory, arguments, EPISODES_NAME)
        self.num_episodes = num_episodes
        self.finished = bytearray((num_episodes + 7) // 8)
        self.num_finished = 0
        self._failures: JsonLinesWriter | None = None
        try:
            for record in read_records(self.directory):
                self._check(record)
                self._mark(record["index"])
                if on_record is not None:
                    on_record(record)
        except BaseException:
            self.close()
            raise

    def is_finished(self, index: int) -> bool:
        """Return whether an episode is in the file."""
        return bool(self.finished[index >> 3] & (1 << (index & 7)))

    def append_encoded(self, line: bytes, index: int) -> None:
        """Append the record of episode `index`, encoded as one JSON line.

        Raises:
            StoreError: The line cannot be written, or the episode is already there.
        """
        if self.is_finished(index):
            raise StoreError(f"episode {index} is already in {self.directory / EPISODES_NAME}")
        self.lines.write_encoded(line)
        self._mark(index)

    def append_failure(self, line: bytes) -> None:
        """Append what kept an episode from its end, encoded as one JSON line; the episode stays unfinished.

        Raises:
            StoreError: The line cannot be written.
        """
        if self._failures is None:
            self._failures = JsonLinesWriter(self.directory / FAILURES_NAME)
        self._failures.write_encoded(line)

    def close(self) -> None:
        """Hand everything to the disk and release the folder."""
        super().close()
        if self._failures is not None:
            self._failures.close()

    def _mark(self, index: int) -> None:
        self.finished[index >> 3] |= 1 << (index & 7)
        self.num_finished += 1

    def _check(self, record: EpisodeRecord) -> None:
        place = self.directory / EPISODES_NAME
        index = record["index"]
        if record["manifest"] != self.manifest["hash"]:
            raise foreign_episode(self.directory, index)
        if not 0 <= index < self.num_episodes:
            raise StoreError(f"episode {index} in {place} is outside this run of {self.num_episodes} episodes")
        if self.is_finished(index):
            raise StoreError(f"episode {index} stands twice in {place}")


def read_manifest(directory: Path | str) -> dict[str, Any]:
    """Return the manifest of a run's folder.

    Raises:
        StoreError: There is none, or it cannot be read, or its hash does not fit its arguments.
    """
    if Path(directory).is_file():
        raise StoreError(f"{directory} is a file: expected the folder of a run")
    manifest = load_manifest(Path(directory) / MANIFEST_NAME)
    if manifest is None:
        raise StoreError(f"{directory} is no folder of results: it holds no {MANIFEST_NAME}")
    return manifest


def read_records(directory: Path | str) -> Iterator[EpisodeRecord]:
    """Yield the finished episodes of a run's folder one by one, in the order in which they ended.

    Raises:
        StoreError: It is no folder of results, or the file cannot be read or holds a line that is no episode of this
            schema.
    """
    path = Path(directory) / EPISODES_NAME
    if not path.exists():
        read_manifest(directory)  # a run that was stopped before its first episode has one; nothing else does
        return
    for number, record in enumerate(read_json_lines(path), start=1):
        yield checked_record(record, f"line {number} of {path}")


def read_own_records(directory: Path | str, manifest: Mapping[str, Any]) -> Iterator[EpisodeRecord]:
    """Yield the finished episodes of a run's folder (`read_records`), none of another run.

    Args:
        directory: The folder.
        manifest: Its manifest.

    Raises:
        StoreError: As for `read_records`, or an episode belongs to another run.
    """
    for record in read_records(directory):
        if record["manifest"] != manifest["hash"]:
            raise foreign_episode(Path(directory), record["index"])
        yield record


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


def foreign_episode(directory: Path, index: int) -> StoreError:
    """Return the refusal of an episode that belongs to another run than the folder's manifest describes."""
    return StoreError(
        f"episode {index} in {directory / EPISODES_NAME} belongs to another run than {MANIFEST_NAME} describes"
    )
