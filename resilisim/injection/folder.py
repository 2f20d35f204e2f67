"""The folder in which calls of functions under a law are kept, and the episodes that they make."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from resilisim.errors import StoreError
from resilisim.evaluation.episode.record import EpisodeRecord, FailureRecord
from resilisim.evaluation.run.store import EPISODES_NAME, FAILURES_NAME, check_episode, check_failure
from resilisim.provenance import encode_json_line
from resilisim.run_folder import (
    MANIFEST_NAME,
    JsonLinesWriter,
    OpenLine,
    RunFolder,
    claim,
    own_file,
    read_json_lines,
    run_manifest,
    without_secrets_in_lines,
)

CALL_SCHEMA: Final = "resilisim-call-1"
CALLS_NAME: Final = "calls.jsonl"
UNKNOWN_END: Final = "unknown"  # error of a call that was made, and of which nothing more was ever written
_ROOM: Final = 640  # bytes of a line that are kept free for what becomes of a call


class InjectionFolder:
    """The folder of the calls and the episodes of one program, of which several can be under way.

    Args:
        directory: Where; it is made, or added to, when the first episode begins.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._beginning = threading.Lock()
        self._folder: RunFolder | None = None
        self._episodes: JsonLinesWriter | None = None
        self._played: set[int] = set()
        self._failed: set[int] = set()
        self._next = 0

    def open(self, arguments: Mapping[str, Any]) -> None:
        """Open the folder, as `begin` does, before there is an episode; what was played is known from then on.

        Raises:
            StoreError: The folder holds calls of other functions, or towards another goal.
        """
        with self._beginning:
            if self._folder is None:
                self._open(arguments)

    def begin(self, arguments: Mapping[str, Any]) -> tuple[int, str]:
        """Return the index of the next episode and the hash of the manifest.

        Raises:
            StoreError: The folder holds calls of other functions, or towards another goal.
        """
        with self._beginning:
            if self._folder is None:
                self._open(arguments)
            else:
                claim(self.directory / MANIFEST_NAME, run_manifest(arguments), self.directory, found=CALLS_NAME)
            self._next += 1
            assert self._folder is not None
            return self._next - 1, self._folder.manifest["hash"]

    def has_played(self, seed: int) -> bool:
        """Return whether an episode of a seed has ended here; playing it again would count it twice."""
        path = own_file(self.directory, EPISODES_NAME)
        if self._folder is None and not self._played and path.exists():  # what an earlier program has played
            self._played = {line["seed"] for line in read_json_lines(path) if isinstance(line, Mapping)}
        return seed in self._played

    def has_failed(self, seed: int) -> bool:
        """Return whether an episode of a seed broke since the folder was opened, and is written down as broken."""
        return seed in self._failed

    def write_call(self, line: Mapping[str, Any]) -> None:
        """Write a call to disk at once, so that whatever happens next, it is there."""
        if self._folder is not None:
            self._folder.lines.write_encoded(encode_json_line(line))

    def write_open_call(self, line: Mapping[str, Any]) -> OpenLine | None:
        """Write a call that is about to be made as one of which no more is known; return where it stands."""
        return None if self._folder is None else self._folder.lines.write_open(encode_json_line(line), _ROOM)

    def write_ended_call(self, place: OpenLine, line: Mapping[str, Any]) -> None:
        """Write a call that has ended in the place where it was written before it was made."""
        if self._folder is None:
            return
        message = str(line["message"] or "")
        encoded = without_secrets_in_lines(encode_json_line(line))
        while len(encoded) > place.length and message:  # others have been written behind it, so there is no more room
            message = message[: -max(len(encoded) - place.length, 4) // 2]
            encoded = without_secrets_in_lines(encode_json_line({**line, "message": f"{message}..."}))
        self._folder.lines.write_in_place(place, encoded)

    def write_episode(self, record: EpisodeRecord) -> None:
        """Write an episode that has ended."""
        if self._episodes is not None:
            self._episodes.write(record)
            self._played.add(record["seed"])

    def write_failure(self, failure: FailureRecord) -> None:
        """Write that an episode broke, and has no score."""
        with JsonLinesWriter(own_file(self.directory, FAILURES_NAME), check_failure) as failures:
            failures.write(failure)
        self._failed.add(failure["seed"])

    def close(self) -> None:
        """Release the folder."""
        _OPEN.discard(self)
        for each in (self._folder, self._episodes):
            if each is not None:
                each.close()
        self._folder = self._episodes = None

    def _open(self, arguments: Mapping[str, Any]) -> None:
        place = self.directory.resolve()
        if any(place == other.directory.resolve() for other in _OPEN):
            raise StoreError(
                f"{self.directory} is open in this program: an episode there has not ended; leave its `with` block, or "
                "call finish() or close()"
            )
        self._folder = RunFolder(self.directory, arguments, CALLS_NAME)
        try:
            self._episodes = JsonLinesWriter(own_file(self.directory, EPISODES_NAME), check_episode)
            self._folder.lines.resume(lambda line: self._take(line, "episode"))
            self._episodes.resume(lambda line: self._take(line, "index"))
        except BaseException:
            self.close()
            raise
        _OPEN.add(self)

    def _take(self, line: Any, index: str) -> None:
        """Take in a line of an earlier program."""
        if not (isinstance(line, Mapping) and isinstance(line.get(index), int) and isinstance(line.get("seed"), int)):
            raise StoreError(f"{self.directory} holds a line without {index} and seed, so nothing can be added there")
        self._next = max(self._next, line[index] + 1)
        if index == "index":
            self._played.add(line["seed"])


# Folders that are open in this process. A process that was forked off lets go of them: it is another writer, and would
# keep their locks.
_OPEN: Final[weakref.WeakSet[InjectionFolder]] = weakref.WeakSet()


def _let_go() -> None:
    for folder in tuple(_OPEN):
        folder.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
