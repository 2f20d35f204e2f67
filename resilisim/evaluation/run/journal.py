"""Replies of episodes under way, on disk: what was paid for is not asked for again after a kill or a broken endpoint.

One file for each episode, which goes when its record is written. Because tools, luck and agents are functions of what
was said before, an episode that is played again with the same replies comes to the same place.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO

from resilisim.chat import ChatReply, ChatRequest
from resilisim.chat.middleware import request_key
from resilisim.errors import StoreError
from resilisim.provenance import describe_os_error, encode_json_line
from resilisim.run_folder import write_file_atomically

JOURNALS_NAME = "unfinished"


class EpisodeJournal:
    """The replies of one episode.

    A reply that cannot be kept costs a warning, and another request if the episode breaks; never the episode.

    Args:
        path: The file; made with the first reply.
        identity: What models answer; replies of others are not taken.
        is_read_only: Whether the file stays as it is, whatever is asked.

    Attributes:
        num_recalled: Replies that were taken from the file.
    """

    def __init__(self, path: Path, identity: str, is_read_only: bool = False) -> None:
        self._path = path
        self._identity = identity
        self._kept = _read(path)
        self._file: IO[bytes] | None = None
        self._writes = not is_read_only
        self.num_recalled = 0

    @property
    def num_kept(self) -> int:
        """How many replies are kept."""
        return len(self._kept)

    def recall(self, number: int, request: ChatRequest) -> ChatReply | None:
        """Return the reply to a call, if it was kept and the request is the same as then."""
        if number >= len(self._kept):
            return None
        key, reply = self._kept[number]
        if key != request_key(self._identity, request):
            del self._kept[number:]  # another agent, or other prompts: what followed belongs to it
            return None
        self.num_recalled += 1
        return reply

    def keep(self, number: int, request: ChatRequest, reply: ChatReply) -> None:
        """Keep the reply to a call."""
        key = request_key(self._identity, request)
        self._kept.append((key, reply))
        if not self._writes:
            return
        try:
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._write_kept()
                self._file = self._path.open("ab", buffering=0)
            self._file.write(_line(number, key, reply))
        except (OSError, StoreError) as error:
            self._writes = False
            problem = describe_os_error(error) if isinstance(error, OSError) else error
            warnings.warn(f"replies cannot be kept in {self._path.parent}: {problem}", UserWarning, stacklevel=2)

    def _write_kept(self) -> None:
        """Begin the file with what was taken from it: without a line that a kill has cut, or that fits no more."""
        kept = self._kept[:-1]
        if kept or self._path.exists():
            write_file_atomically(self._path, b"".join(_line(number, *entry) for number, entry in enumerate(kept)))

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> EpisodeJournal:
        """Return the journal itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the journal."""
        self.close()


def _line(number: int, key: str, reply: ChatReply) -> bytes:
    entry = {"number": number, "request": key, "reply": reply.to_mapping(), "from_cache": reply.from_cache}
    return encode_json_line(entry)


def journal_path(directory: Path | str, index: int) -> Path:
    """Return where the replies of an episode of a run are kept while it is under way."""
    return Path(directory) / JOURNALS_NAME / f"{index}.jsonl"


def discard_journal(directory: Path | str, index: int) -> None:
    """Remove the replies of an episode whose record is written."""
    with contextlib.suppress(OSError):
        journal_path(directory, index).unlink(missing_ok=True)


def discard_journals(directory: Path | str) -> None:
    """Remove what a finished run has left of its folder of replies."""
    folder = Path(directory) / JOURNALS_NAME
    with contextlib.suppress(OSError):
        folder.rmdir()  # empty, unless somebody else has put something there


def _read(path: Path) -> list[tuple[str, ChatReply]]:
    """Return the replies in a file up to the first line that is none."""
    kept: list[tuple[str, ChatReply]] = []
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return kept
    for number, line in enumerate(lines):
        try:
            entry = json.loads(line)
            if entry["number"] != number:
                break
            reply = replace(ChatReply.from_mapping(entry["reply"]), from_cache=bool(entry["from_cache"]))
            kept.append((str(entry["request"]), reply))
        except (ValueError, KeyError, TypeError, RecursionError):
            break
    return kept
