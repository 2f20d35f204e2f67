"""Parts of one run, played apart, put together in one folder: shards, or copies of a folder on several machines."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.episode.texts import opened_if_whole
from resilisim.evaluation.run.store import (
    EPISODES_NAME,
    JOURNALS_NAME,
    ROWS_NAME,
    JournalFolder,
    RunStore,
    episode_lines,
    read_failures,
    read_manifest,
    record_in_line,
)
from resilisim.inputs import inside
from resilisim.provenance import canonical_json, content_hash, describe_os_error, encode_json_line
from resilisim.run_folder import (
    MANIFEST_NAME,
    JsonLinesWriter,
    own_file,
    read_json_lines,
    refuse_other_arguments,
    write_file_atomically,
    write_manifest,
)

EPISODES_TOGETHER = 256  # whose digests stand in one row
DIGEST_BYTES = 16  # of each episode, kept while merging: two that differ are taken for equal once in 2**128 times
# What a merged manifest says of each part: what it ran on, which may differ from machine to machine.
PART_KEYS = ("versions", "platform", "created")

_JOURNAL_NAME = re.compile(r"(0|[1-9][0-9]{0,17})\.jsonl")


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What a merge made.

    Attributes:
        directory: The folder of the merged run.
        num_planned: Episodes of the whole run; of a run that was explored, explorations.
        num_episodes: Those of them that are in the folder.
        num_new: Episodes that this call added.
        num_duplicates: Episodes that were found again, with equal content.
        num_failures: Failures that this call added.
        num_unfinished: Episodes that were begun and whose replies are kept, so that the run can go on from there.
        first_missing: Lowest number of an episode, or exploration, that is not there; None if the run is complete.
        explored: Whether the run was explored: its episodes are branches, of which nobody says how many there are.
    """

    directory: Path
    num_planned: int
    num_episodes: int
    num_new: int
    num_duplicates: int
    num_failures: int
    num_unfinished: int
    first_missing: int | None
    explored: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether every episode of the run is there."""
        return self.first_missing is None

    def to_mapping(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        first = {"directory": str(self.directory), "complete": self.is_complete}
        return {**first, **{name: value for name, value in asdict(self).items() if name not in first}}


def merge_runs(
    directories: Sequence[Path | str], out: Path | str, *, progress: Callable[[int], None] | None = None
) -> MergeResult:
    """Put the episodes of several folders of one run into one folder, each once.

    The folders stay as they are. A merge that was stopped goes on when it is repeated, and more folders can be added
    later. The result is a run's folder like any other: `evaluate` plays what is missing. Its manifest lists under
    `parts` what the parts ran on.

    Args:
        directories: Folders that `evaluate` or `explore` wrote, of the same run; they need not be finished, nor
            disjoint.
        out: Folder of the merged run; it is made if needed, and may be one of the others.
        progress: Called with how many more episodes are in the merged folder, those that were there before included.

    Raises:
        InvalidInputError: No folder is named, or one is named twice.
        StoreError: Two folders hold different runs (the text names the first difference), two episodes that should be
            the same differ, a file is broken, or the folder cannot be written.

    Example:
        >>> import tempfile
        >>> from resilisim import evaluate
        >>> from resilisim.evaluation import merge_runs
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     parts = [f"{folder}/{number}" for number in (1, 2)]
        ...     for number, part in enumerate(parts, start=1):
        ...         result = evaluate("plan-follower", tasks=4, out=part, shard=f"{number}/2")
        ...     merge_runs(parts, f"{folder}/whole").num_episodes
        4
    """
    if not directories:
        raise InvalidInputError("no folder to merge: expected one at least")
    sources = [Path(directory) for directory in directories]
    for place, source in enumerate(sources):
        if any(_is_same_folder(source, earlier) for earlier in sources[:place]):
            raise InvalidInputError(f"folder {source} is named twice: expected each part once")
    manifests = [read_manifest(source) for source in sources]
    arguments = manifests[0]["arguments"]
    for source, manifest in zip(sources, manifests, strict=True):
        refuse_other_arguments(source, manifest["arguments"], arguments, advice="only parts of one run are merged")
    merge = _Merge(Path(out), arguments, progress or (lambda number: None))
    with merge.store:
        merge.describe_parts(manifests)
        others = [source for source in sources if not _is_same_folder(source, merge.store.directory)]
        return merge.add(others)


class _Merge:
    """The folder that parts are put into."""

    def __init__(self, out: Path, arguments: dict[str, Any], progress: Callable[[int], None]) -> None:
        self._arguments, self._num_planned = arguments, _planned(arguments)
        # By place of its episodes: of those of a run that was explored, most are not there.
        self._digests: defaultdict[int, bytearray] = defaultdict(lambda: bytearray(DIGEST_BYTES * EPISODES_TOGETHER))
        self._progress = progress
        self._num_new = 0
        self._num_duplicates = 0
        self.store = RunStore(out, arguments, self._num_planned, on_record=self._remember)

    def describe_parts(self, manifests: Sequence[dict[str, Any]]) -> None:
        """Add to the manifest what the parts ran on, unless it is there."""
        there = self.store.manifest.get("parts", [])
        found = [part for manifest in manifests for part in manifest.get("parts", [_part_of(manifest)])]
        parts = there + [part for place, part in enumerate(found) if part not in there and part not in found[:place]]
        if parts != there:
            self.store.manifest["parts"] = parts
            write_manifest(self.store.directory / MANIFEST_NAME, self.store.manifest)

    def add(self, sources: Sequence[Path]) -> MergeResult:
        """Add what folders hold, and return what was made."""
        for source in sources:
            self._add_episodes(source)
        num_failures = self._add_failures(sources)
        for source in sources:
            self.store.take_over(source)
        num_unfinished = self._keep_journals(sources)
        planned, there = range(self._num_planned), self.store.num_finished
        missing: Iterator[int] = (index for index in planned if not self.store.is_finished(index))
        explored = bool(self._arguments.get("explored"))
        if explored:
            planned = range(self._arguments["explorations"])
            rows, dice = self._add_rows(sources), self._arguments.get("dice", 1)
            there = len(rows)
            firsts = (number for number in range(0, planned.stop * dice, dice) if number not in rows)
            missing = itertools.chain(firsts, (number for number in range(planned.stop * dice) if number not in rows))
        return MergeResult(
            directory=self.store.directory,
            num_planned=len(planned),
            num_episodes=there,
            num_new=self._num_new,
            num_duplicates=self._num_duplicates,
            num_failures=num_failures,
            num_unfinished=num_unfinished,
            first_missing=None if there >= len(planned) else next(missing, None),
            explored=explored,
        )

    def _add_rows(self, sources: Sequence[Path]) -> set[int]:
        """Add what explorations came to, each once, and return the numbers of those that are there."""
        plays, path = self._arguments["plays"], own_file(self.store.directory, ROWS_NAME)
        there = {row["index"] // plays: row for row in (read_json_lines(path) if path.exists() else ())}
        with JsonLinesWriter(path) as lines:
            for source in sources:
                part = own_file(source, ROWS_NAME)
                for row in read_json_lines(part) if part.exists() else ():
                    number = row["index"] // plays
                    if there.setdefault(number, row) is row:
                        lines.write(row)
                    elif there[number] != row:
                        raise StoreError(
                            f"exploration {number} of {source} differs from the one in {self.store.directory}: leave "
                            "out one of the folders that hold it"
                        )
        return set(there)

    def _add_episodes(self, source: Path) -> None:
        for number, line in episode_lines(source):
            record = record_in_line(line, number, source / EPISODES_NAME)
            index = record["index"]
            if record["manifest"] != self.store.manifest["hash"] or not 0 <= index < self._num_planned:
                place = source / EPISODES_NAME
                raise StoreError(
                    f"episode {index} in {place} does not belong to the run that {MANIFEST_NAME} describes"
                )
            if not self.store.is_finished(index):
                self.store.append_encoded(line, index, is_new=False)
                self._remember(record)
                self._num_new += 1
            elif self._digest_at(index) == _digest(record):
                self._num_duplicates += 1
            else:
                raise StoreError(
                    f"episode {index} of {source} differs from the one in {self.store.directory}: policy "
                    f"{record['policy']}, prompt {record['prompt_type']}, task {record['instance_id']}, "
                    f"seed {record['seed']}; leave out one of the folders that hold it"
                )

    def _add_failures(self, sources: Sequence[Path]) -> int:
        """Add failures until each stands there as often as in any of the folders; return how many were added."""
        wanted: Counter[str] = Counter()
        for source in sources:
            wanted |= Counter(map(canonical_json, read_failures(source)))
        missing = wanted - Counter(map(canonical_json, read_failures(self.store.directory)))
        added = 0
        for source in sources:
            for failure in read_failures(source):
                key = canonical_json(failure)
                if missing[key] > 0:
                    missing[key] -= 1
                    self.store.append_failure(encode_json_line(failure), is_new=False)
                    added += 1
        return added

    def _keep_journals(self, sources: Sequence[Path]) -> int:
        """Copy the replies of episodes that are not finished, the longest of each; return how many there are."""
        own, journals = self.store.directory, JournalFolder(self.store.directory)
        try:
            for source in sources:
                for index, path in self._journals(source):
                    replies, there = path.read_bytes(), journals.path(index)
                    kept = there.read_bytes().count(b"\n") if there.exists() else -1
                    if not self.store.is_finished(index) and kept < replies.count(b"\n"):
                        there.parent.mkdir(exist_ok=True)
                        write_file_atomically(there, replies)
        except OSError as error:
            raise StoreError(f"cannot copy replies to {own / JOURNALS_NAME}: {describe_os_error(error)}") from error
        indices = [index for index, _ in self._journals(own)]
        finished = [index for index in indices if self.store.is_finished(index)]
        for index in finished:
            journals.discard(index)
        journals.remove()
        return len(indices) - len(finished)

    def _journals(self, directory: Path) -> Iterator[tuple[int, Path]]:
        folder = directory / JOURNALS_NAME
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            match = _JOURNAL_NAME.fullmatch(path.name)
            if match is not None and int(match[1]) < self._num_planned:
                yield int(match[1]), inside(directory, path, "replies", StoreError)

    def _remember(self, record: EpisodeRecord) -> None:
        place, start = divmod(record["index"], EPISODES_TOGETHER)
        self._digests[place][DIGEST_BYTES * start : DIGEST_BYTES * (start + 1)] = _digest(record)
        self._progress(1)

    def _digest_at(self, index: int) -> bytes:
        place, start = divmod(index, EPISODES_TOGETHER)
        return bytes(self._digests[place][DIGEST_BYTES * start : DIGEST_BYTES * (start + 1)])


def _planned(arguments: dict[str, Any]) -> int:
    number = arguments.get("num_episodes")
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise StoreError(f"{MANIFEST_NAME} says that the run has {number!r:.60} episodes: expected a number")
    return number


def _part_of(manifest: dict[str, Any]) -> dict[str, Any]:
    return {key: manifest.get(key) for key in PART_KEYS}


def _digest(record: EpisodeRecord) -> bytes:
    # Opened, because other builds of zlib pack the same texts into other bytes.
    return bytes.fromhex(content_hash(opened_if_whole(record)[0]))[:DIGEST_BYTES]


def _is_same_folder(folder: Path, other: Path) -> bool:
    try:
        return folder.samefile(other)
    except OSError:
        return False
