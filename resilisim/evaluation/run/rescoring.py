"""Judging all episodes of a run again, as a check of its folder or into a new one, from their records alone."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.episode.rejudging import Verdict, compare_records, message_reader, rejudged
from resilisim.evaluation.run.plan import library_of_run
from resilisim.evaluation.run.store import EPISODES_NAME, RunStore, episode_lines, read_manifest, record_in_line
from resilisim.processes import answers_in_order
from resilisim.provenance import encode_json_line
from resilisim.run_folder import MANIFEST_NAME
from resilisim.simulator.goal import Goal
from resilisim.tool_library import ToolLibrary, default_library

LINES_PER_JOB: Final = 200
NUM_SHOWN: Final = 20  # differences that are told one by one
# What stands in the manifest of a folder that was made from another one.
SOURCE_KEY: Final = "rescored_from"


@dataclass(frozen=True, slots=True)
class RescoreSummary:
    """What came out when a run's episodes were scored again.

    Attributes:
        num_agreeing: Episodes that agree in everything, numbers to 1e-9.
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
    best: bool = False,
    progress: Callable[[int], None] | None = None,
) -> RescoreSummary:
    """Score and attribute all episodes of a run again, from their records alone.

    Args:
        directory: The run's folder; it is only read.
        out: Folder for the records with what was computed again. Its manifest says from which run it was made, so the
            command that made the run does not go on in it.
        library: The run's tool library; the default one if omitted.
        workers: Number of processes.
        best: Whether the records that are written say of each message what would have been best instead.
        progress: Called with the number of episodes done since the last call.

    Raises:
        InvalidInputError: The library is not the run's; with `out`, an episode cannot be scored again; `best` is asked
            for without `out`.
        StoreError: A folder cannot be read or written, or holds what it must not.
        ExactLimitError: A task is too large to be solved exactly.
    """
    if best and out is None:
        raise InvalidInputError("best messages are written into records: expected --out, a new folder for them")
    source, manifest = Path(directory), read_manifest(directory)
    world = str(manifest["arguments"].get("environment", {}).get("world") or "")
    if world.startswith("mcp:"):  # a folder that somebody sends must start no program
        raise InvalidInputError(f"{directory}: the tools of {world!r:.80} are programs, and rescoring starts none")
    library = library_of_run(manifest["arguments"], library, directory)
    store = None if out is None else _new_store(source, Path(out), manifest)
    setup = _Setup(
        source / EPISODES_NAME,
        None if library == default_library() else library.to_json(),
        dict(manifest["arguments"].get("environment", {})),
        manifest["hash"],
        None if store is None else store.manifest["hash"],
        best,
    )
    counts: Counter[Verdict | Literal["impossible"]] = Counter()
    differences: list[str] = []
    with contextlib.nullcontext() if store is None else store:
        for answers in answers_in_order(_Rescorer, setup, batches(episode_lines(source)), workers):
            counts.update(answer.verdict for answer in answers)
            lines = [f"episode {answer.index}: {answer.difference}" for answer in answers if answer.difference]
            differences += lines[: NUM_SHOWN - len(differences)]
            if store is not None:
                _write(store, answers, source)
            if progress is not None:
                progress(len(answers))
    return RescoreSummary(
        num_episodes=counts.total(),
        num_agreeing=counts["agreeing"],
        num_other_labels=counts["other_labels"],
        num_differing=counts["differing"],
        num_impossible=counts["impossible"],
        differences=tuple(differences),
        directory=None if store is None else store.directory,
    )


@dataclass(frozen=True, slots=True)
class _Setup:
    """What travels to each process."""

    path: Path  # of the episodes to read
    library: str | None  # as JSON; None is the default one
    environment: dict[str, Any]
    source_hash: str  # of the manifest of the folder to read
    manifest_hash: str | None  # of the folder to write; None writes none
    best: bool


@dataclass(frozen=True, slots=True)
class _Answer:
    index: int
    verdict: Verdict | Literal["impossible"]
    difference: str | None
    line: bytes | None


class _Rescorer:
    """Scores batches of recorded episodes again; made once in each process."""

    def __init__(self, setup: _Setup) -> None:
        self._setup = setup
        text = setup.library
        self._library = default_library() if text is None else ToolLibrary.of_text(text)
        self._read = message_reader(self._library, setup.environment)

    def __call__(self, job: tuple[int, Sequence[tuple[int, bytes]]]) -> Iterator[tuple[int, list[_Answer]]]:
        number, lines = job
        yield number, [self._answer(place, line) for place, line in lines]

    def _answer(self, place: int, line: bytes) -> _Answer:
        path = self._setup.path
        record = record_in_line(line, place, path)
        try:
            check_origin(record, self._setup.source_hash, self._setup.environment)
            again = rejudged(record, self._library, self._read, self._setup.best)
        except InvalidInputError as error:
            return _Answer(record["index"], "impossible", str(error), None)
        verdict, difference = compare_records(record, again)
        written = None
        if self._setup.manifest_hash is not None:
            again["manifest"] = self._setup.manifest_hash
            written = encode_json_line(again)
        return _Answer(record["index"], verdict, difference, written)


def check_origin(record: EpisodeRecord, manifest_hash: str, environment: Mapping[str, Any]) -> None:
    """Refuse an episode of another run, or one that was played under other constants than its run."""
    if record["manifest"] != manifest_hash:
        raise InvalidInputError(f"it belongs to another run than {MANIFEST_NAME} describes")
    unsaid = {"search": "semantic", "errors": "documented"}
    law = {"law": record["law"]} if "hash" in record["law"] else record["law"]
    stated = {**law, **record["rules"], "salt": record["salt"]}
    stated |= {name: record.get(name, usual) for name, usual in unsaid.items()}
    environment = {**unsaid, **environment}
    goal = Goal(
        (),
        not environment.get("any_order", False),
        tuple(environment.get("once", ())),
        environment.get("goal", "answers"),
    )
    stated["goal"], environment["goal"] = record.get("goal", {}), goal.to_mapping()
    for name, value in stated.items():
        expected = environment.get(name, value)
        if expected != value:
            raise InvalidInputError(f"{name} is {value!r:.60} in the record and {expected!r:.60} in the manifest")


def _new_store(source: Path, out: Path, manifest: Mapping[str, Any]) -> RunStore:
    if out.resolve() == source.resolve():
        raise StoreError(f"{out} is the folder to read: name another one to write to")
    arguments = dict(manifest["arguments"])
    arguments[SOURCE_KEY] = {name: manifest.get(name) for name in ("hash", "created", "versions")}
    num_episodes = arguments.get("num_episodes")
    if not isinstance(num_episodes, int):
        raise StoreError(f"the manifest of {source} does not say how many episodes its run has")
    return RunStore(out, arguments, num_episodes)


def batches(lines: Iterator[tuple[int, bytes]], size: int = LINES_PER_JOB) -> Iterator[list[tuple[int, bytes]]]:
    """Yield lines of episodes, each with its number, as jobs for processes."""
    while batch := list(itertools.islice(lines, size)):
        yield batch


def _write(store: RunStore, answers: Sequence[_Answer], source: Path) -> None:
    for answer in answers:
        if store.is_finished(answer.index):
            continue
        if answer.line is None:
            raise InvalidInputError(
                f"episode {answer.index} of {source} cannot be scored again, so the new folder ends before it: "
                f"{answer.difference}"
            )
        store.append_encoded(answer.line, answer.index)
