"""All episodes of a run, scored and attributed again: as a check of the folder, or into a new one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation.reattribution import (
    first_disagreement,
    first_other_label,
    message_reader,
    reattribute,
)
from resilisim.evaluation.records import EpisodeRecord, record_problem
from resilisim.evaluation.store import EPISODES_NAME, MANIFEST_NAME, RunStore, read_manifest
from resilisim.processes import answers_in_order
from resilisim.provenance import encode_json_line
from resilisim.tool_library import ToolLibrary, default_library

LINES_PER_JOB: Final = 200
NUM_SHOWN: Final = 20  # differences that are told one by one
# What stands in the manifest of a folder that was made from another one.
SOURCE_KEY: Final = "rescored_from"

Verdict = Literal["agrees", "other_labels", "differs", "impossible"]


@dataclass(frozen=True, slots=True)
class RescoreSummary:
    """What came out when a run's episodes were scored again.

    Attributes:
        num_episodes: Episodes.
        num_agreeing: Those that agree in everything, numbers to 1e-9.
        num_other_labels: Those whose numbers agree and whose reasons for losses are others now.
        num_differing: Those whose score or numbers are others.
        num_impossible: Those that contradict themselves, the law or their luck, so that nothing can be computed.
        differences: The first differences, one line each, at most `NUM_SHOWN`.
        directory: Where the new folder is, None if none was asked for.
    """

    num_episodes: int
    num_agreeing: int
    num_other_labels: int
    num_differing: int
    num_impossible: int
    differences: tuple[str, ...]
    directory: Path | None

    @property
    def agrees(self) -> bool:
        """Whether every episode agrees in everything."""
        return self.num_agreeing == self.num_episodes

    def to_mapping(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        counts = {name: getattr(self, name) for name in self.__slots__ if name.startswith("num_")}
        directory = None if self.directory is None else str(self.directory)
        return {**counts, "agrees": self.agrees, "differences": list(self.differences), "directory": directory}


def rescore_run(
    directory: Path | str,
    out: Path | str | None = None,
    *,
    library: ToolLibrary | None = None,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> RescoreSummary:
    """Score and attribute all episodes of a run again, from their records alone.

    Args:
        directory: The run's folder; it is only read.
        out: Folder for the records with what was computed again. Its manifest says from which run it was made, so the
            command that made the run does not go on in it.
        library: The run's tool library; the default one if omitted.
        workers: Number of processes.
        progress: Called with the number of episodes done since the last call.

    Raises:
        InvalidInputError: The library is not the run's; with `out`, an episode cannot be scored again.
        StoreError: A folder cannot be read or written, or holds what it must not.
        ExactLimitError: A task is too large to be solved exactly.
    """
    source, manifest = Path(directory), read_manifest(directory)
    library = library if library is not None else default_library()
    if manifest["arguments"].get("library", library.content_hash) != library.content_hash:
        raise InvalidInputError(f"{directory} was made with another tool library: name it with --library")
    store = None if out is None else _new_store(source, Path(out), manifest)
    setup = _Setup(
        str(source / EPISODES_NAME),
        None if library == default_library() else library.to_json(),
        dict(manifest["arguments"].get("environment", {})),
        manifest["hash"],
        None if store is None else store.manifest["hash"],
    )
    counts = dict.fromkeys(("agrees", "other_labels", "differs", "impossible"), 0)
    differences: list[str] = []
    try:
        jobs = _batches(source / EPISODES_NAME)
        for answers in answers_in_order(_Rescorer, setup, jobs, workers):
            for answer in answers:
                counts[answer.verdict] += 1
                if answer.difference is not None and len(differences) < NUM_SHOWN:
                    differences.append(f"episode {answer.index}: {answer.difference}")
                if store is not None and not store.is_finished(answer.index):
                    store.append_encoded(_line_of(answer, source), answer.index)
            if progress is not None:
                progress(len(answers))
    finally:
        if store is not None:
            store.close()
    return RescoreSummary(
        sum(counts.values()),
        counts["agrees"],
        counts["other_labels"],
        counts["differs"],
        counts["impossible"],
        tuple(differences),
        None if store is None else store.directory,
    )


@dataclass(frozen=True, slots=True)
class _Setup:
    path: str
    library: str | None
    environment: dict[str, Any]
    source_hash: str  # of the manifest of the folder to read
    manifest_hash: str | None  # of the folder to write; None writes none


@dataclass(frozen=True, slots=True)
class _Answer:
    index: int
    verdict: Verdict
    difference: str | None
    line: bytes | None


class _Rescorer:
    """Scores batches of recorded episodes again; made once in each process."""

    def __init__(self, setup: _Setup) -> None:
        self._setup = setup
        self._library = (
            default_library() if setup.library is None else ToolLibrary.from_json(setup.library, source="library")
        )
        environment = setup.environment
        self._read = message_reader(
            self._library, environment.get("parameters", "lenient"), environment.get("protocol", "text")
        )

    def __call__(self, job: tuple[int, Sequence[tuple[int, bytes]]]) -> Iterator[tuple[int, list[_Answer]]]:
        number, lines = job
        yield number, [self._answer(place, line) for place, line in lines]

    def _answer(self, place: int, line: bytes) -> _Answer:
        record = _record_of(line, place, self._setup.path)
        try:
            self._check_origin(record)
            again = reattribute(record, self._library, self._read)
        except InvalidInputError as error:
            return _Answer(record["index"], "impossible", str(error), None)
        verdict, difference = _compared(record, again)
        written = None
        if self._setup.manifest_hash is not None:
            again["manifest"] = self._setup.manifest_hash
            written = encode_json_line(again)
        return _Answer(record["index"], verdict, difference, written)

    def _check_origin(self, record: EpisodeRecord) -> None:
        """Refuse an episode of another run, or one that was played under other constants than its run.

        Raises:
            InvalidInputError: It is one.
        """
        if record["manifest"] != self._setup.source_hash:
            raise InvalidInputError(f"it belongs to another run than {MANIFEST_NAME} describes")
        told = {**record["law"], **record["rules"], "salt": record["salt"]}
        for name, value in told.items():
            if self._setup.environment.get(name, value) != value:
                expected = self._setup.environment[name]
                raise InvalidInputError(f"{name} is {value!r:.60} in the record and {expected!r:.60} in the manifest")


def _compared(record: EpisodeRecord, again: EpisodeRecord) -> tuple[Verdict, str | None]:
    if record == again:  # by far the most, and the same to the last bit
        return "agrees", None
    difference = first_disagreement(record, again)
    if difference is not None:
        return "differs", difference
    difference = first_other_label(record, again)
    return ("agrees" if difference is None else "other_labels"), difference


def _new_store(source: Path, out: Path, manifest: Mapping[str, Any]) -> RunStore:
    if out.resolve() == source.resolve():
        raise StoreError(f"{out} is the folder to read: name another one to write to")
    arguments = dict(manifest["arguments"])
    arguments[SOURCE_KEY] = {name: manifest.get(name) for name in ("hash", "created", "versions")}
    num_episodes = arguments.get("num_episodes")
    if not isinstance(num_episodes, int):
        raise StoreError(f"the manifest of {source} does not say how many episodes its run has")
    return RunStore(out, arguments, num_episodes)


def _batches(path: Path) -> Iterator[list[tuple[int, bytes]]]:
    """Yield the whole lines of a file with their numbers, some at a time; a torn last line is left out."""
    if not path.exists():
        return
    with path.open("rb") as stream:
        numbered = ((number, line) for number, line in enumerate(stream, start=1) if line.endswith(b"\n"))
        while batch := list(itertools.islice(numbered, LINES_PER_JOB)):
            yield batch


def _record_of(line: bytes, number: int, path: str) -> EpisodeRecord:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"line {number} of {path} is not JSON: {error}") from error
    problem = record_problem(record)
    if problem is not None:
        raise StoreError(f"line {number} of {path} is no episode: {problem}")
    return cast("EpisodeRecord", record)


def _line_of(answer: _Answer, source: Path) -> bytes:
    if answer.line is None:
        raise InvalidInputError(
            f"episode {answer.index} of {source} cannot be scored again, so the new folder ends before it: "
            f"{answer.difference}"
        )
    return answer.line
