"""The runs below a folder as far as they have been played: read while they grow, and never written to.

Episodes are read once, in the order in which they ended; kept of each is what lists show and where its line stands.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from resilisim.errors import ResiliSimError, StoreError
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.run.store import (
    EPISODES_NAME,
    foreign_episode,
    num_planned,
    read_failures,
    read_manifest,
    record_in_line,
)
from resilisim.evaluation.table.facts import RunCollector
from resilisim.evaluation.table.first_difference import did, said
from resilisim.evaluation.table.summary import GroupSummary
from resilisim.provenance import describe_os_error
from resilisim.reporting.run_words import begun_on, law_words
from resilisim.run_folder import MANIFEST_NAME, MANIFEST_SCHEMA, own_file

State = Literal["under way", "stopped", "finished", "broken"]

QUIET_SECONDS: Final = 120.0  # a run that has not finished and has written nothing for so long is not under way
MOST_FOLDERS: Final = 20_000  # that are looked into
_DEEPEST: Final = 8  # folders below the one that is shown
_BLOCK: Final = 1 << 22  # bytes that are read at once


class Episode(NamedTuple):
    """What is kept of an episode; the rest stands in its line."""

    place: int  # where its line begins, in bytes
    length: int
    number: int
    policy: str
    prompt: str
    task: str
    seed: int
    outcome: int
    optimum: float
    regret: float
    luck: float
    did: tuple[str, ...]  # what each message did, in few words (`first_difference.did`)
    said: tuple[int, ...]  # hashes of what makes messages the same (`first_difference.said`)


class ViewedRun:
    """A run's folder, as far as it has been read.

    Args:
        directory: The folder.
        name: Its path below the folder that is shown; "." for that folder itself.

    Attributes:
        problem: Why it cannot be shown, or not whole; None if it can.
        episodes: Its episodes, by their number in the run.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.directory, self.name = directory, name
        self.problem: str | None = None
        self.manifest: Mapping[str, Any] = {}
        self.episodes: dict[int, Episode] = {}
        self.written = 0.0  # when its episodes were last written to, in seconds since 1970
        self.num_broken = 0  # episodes that infrastructure, or nobody knows what, kept from their end
        self._lock = threading.Lock()
        self._collector = RunCollector()
        self._rows: tuple[int, list[GroupSummary]] = (0, [])
        self._read = 0  # bytes
        self._lines = 0
        self._file: tuple[int, int] | None = None  # device and number of the file, which another may replace
        self._size = 0

    @property
    def label(self) -> str:
        """What it is called."""
        return self.directory.name or str(self.directory) if self.name == "." else self.name

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments in its manifest."""
        arguments: Mapping[str, Any] = self.manifest.get("arguments", {})
        return arguments

    @property
    def policies(self) -> list[str]:
        """Who plays."""
        return [str(name) for name in self.arguments.get("policy_names", ())]

    @property
    def is_explored(self) -> bool:
        """Whether its episodes are branches, with weights, and no sample."""
        return bool(self.arguments.get("explored", False))

    @property
    def begun(self) -> str:
        """When it began."""
        return begun_on(self.manifest)

    @property
    def law(self) -> str:
        """Under which law it was played."""
        return law_words(self.arguments)

    @property
    def num_planned(self) -> int:
        """How many episodes it has when it is finished."""
        return num_planned(self.arguments, len(self.episodes))

    @property
    def is_read(self) -> bool:
        """Whether everything that stands in the folder has been read."""
        return self._read >= self._size

    @property
    def state(self) -> State:
        """How far it is."""
        if self.problem is not None:
            return "broken"
        is_written = time.time() - self.written < QUIET_SECONDS
        if len(self.episodes) >= self.num_planned and not (self.is_explored and is_written):
            return "finished"
        return "under way" if is_written else "stopped"

    @property
    def rows(self) -> list[GroupSummary]:
        """Summary of each policy under each prompt type, of the episodes that have been read."""
        number, rows = self._rows
        if number != len(self.episodes) and self.problem is None:
            with self._collector.lock:
                number = len(self.episodes)
                rows = self._collector.facts(self.manifest).rows
            self._rows = (number, rows)
        return rows

    def update(self) -> bool:
        """Read what has been written since the last time; return whether there was anything new."""
        with self._lock:
            try:
                return self._update()
            except (ResiliSimError, OSError) as error:
                self.problem = describe_os_error(error) if isinstance(error, OSError) else str(error)
                return False

    def _update(self) -> bool:
        path = own_file(self.directory, EPISODES_NAME)
        if not path.exists():
            self._begin(None)
            self.manifest = read_manifest(self.directory)
            self.written = (self.directory / MANIFEST_NAME).stat().st_mtime
            return False
        status = path.stat()
        file = (status.st_dev, status.st_ino)
        if file != self._file or status.st_size < self._read:
            self._begin(file)
            self.manifest = read_manifest(self.directory)
        self.written, self._size = status.st_mtime, status.st_size
        is_new = False
        with path.open("rb") as stream:
            for place, line in self._new_lines(stream, status.st_size):
                self._lines += 1
                if not line.isspace():
                    is_new |= self._take(place, line, path)
        self.num_broken = len({each["index"] for each in read_failures(self.directory)} - self.episodes.keys())
        return is_new

    def _begin(self, file: tuple[int, int] | None) -> None:
        self._file, self._read, self._lines, self._size = file, 0, 0, 0
        self.episodes, self._collector, self._rows, self.problem = {}, RunCollector(), (0, []), None

    def _new_lines(self, stream: Any, size: int) -> Iterator[tuple[int, bytes]]:
        """Yield the lines that are whole and new, each with its place; one that is being written comes next time."""
        rest = b""
        stream.seek(self._read)
        left = size - self._read
        while left > 0 and (block := stream.read(min(_BLOCK, left))):
            left -= len(block)
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                place = self._read
                self._read += len(line) + 1
                yield place, line + b"\n"
        self._size -= len(rest)

    def _take(self, place: int, line: bytes, path: Path) -> bool:
        record = record_in_line(line, self._lines, path)
        index = record["index"]
        if record["manifest"] != self.manifest["hash"]:
            raise foreign_episode(self.directory, index)
        if index in self.episodes:
            return False
        self._collector.add(record)
        self.episodes[index] = Episode(
            place,
            len(line),
            index,
            sys.intern(record["policy"]),
            sys.intern(record["prompt_type"]),
            sys.intern(record["instance_id"]),
            record["seed"],
            record["outcome"],
            record["optimum"],
            record["regret"],
            record["luck"],
            tuple(sys.intern(did(step)) for step in record["steps"]),
            tuple(hash(said(step)) for step in record["steps"]),
        )
        return True

    def record(self, index: int) -> EpisodeRecord:
        """Return the record of an episode.

        Raises:
            StoreError: There is none, or it cannot be read.
        """
        episode = self.episodes.get(index)
        if episode is None:
            raise StoreError(f"{self.name} has no episode {index}, or it is not finished")
        path = own_file(self.directory, EPISODES_NAME)
        try:
            with path.open("rb") as stream:
                stream.seek(episode.place)
                line = stream.read(episode.length)
        except OSError as error:
            raise StoreError(f"cannot read {path}: {describe_os_error(error)}") from error
        return record_in_line(line, 0, path)

    @property
    def sort_key(self) -> tuple[str, str]:
        """What lists are sorted by: the newest first, runs that do not say when they began last."""
        return (self.begun, self.name)


class RunWatch:
    """All runs below a folder; another thread keeps them up to date.

    Args:
        root: The folder; it may be one of a run itself.

    Raises:
        StoreError: It is not a folder.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).resolve()
        if not self.root.is_dir():
            raise StoreError(f"{root} is not a folder: expected one that holds runs")
        self.runs: dict[str, ViewedRun] = {}
        self.is_complete = False  # whether all runs have been read once
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_up, name="resilisim-view", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reading."""
        self._stop.set()
        self._thread.join()

    def update(self) -> None:
        """Look for runs, and read what is new in each."""
        there = dict(_run_folders(self.root))
        for name in self.runs.keys() - there.keys():
            del self.runs[name]
        for name, directory in there.items():
            run = self.runs.get(name)
            if run is None:
                run = self.runs[name] = ViewedRun(directory, name)
            run.update()
            if self._stop.is_set():
                return
        self.is_complete = True

    def _keep_up(self) -> None:
        while not self._stop.is_set():
            begin = time.monotonic()
            self.update()
            # A tenth of the time at most, however many runs there are.
            self._stop.wait(max(1.0, 9.0 * (time.monotonic() - begin)))


def _run_folders(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the folders of runs below a folder with their names; links are not followed."""
    for number, (folder, below, files) in enumerate(os.walk(root)):
        path = Path(folder)
        relative = path.relative_to(root)
        below[:] = sorted(name for name in below if not name.startswith(".")) if len(relative.parts) < _DEEPEST else []
        if number >= MOST_FOLDERS:
            return
        if _holds_run(path, files):
            yield relative.as_posix(), path
            below[:] = [name for name in below if name != "unfinished"]


def _holds_run(folder: Path, files: list[str]) -> bool:
    """Tell whether a folder is one of a run: by its manifest, or by episodes that lack one."""
    if MANIFEST_NAME not in files:
        return EPISODES_NAME in files
    try:
        manifest = json.loads((folder / MANIFEST_NAME).read_bytes())
    except (OSError, ValueError, RecursionError):
        return EPISODES_NAME in files
    if not isinstance(manifest, dict) or manifest.get("schema") != MANIFEST_SCHEMA:
        return False
    arguments = manifest.get("arguments")
    return not isinstance(arguments, dict) or "policy_names" in arguments or EPISODES_NAME in files
