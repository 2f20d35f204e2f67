"""The records world: `records-v1` as it ships, sets of one's own from any seed and size, and their files.

A file holds a header (seed, sizes, SHA-256 of all data) and one question a line. The data itself is generated again
from the seed when it is first needed, compared with the hashes, and its tables are kept in the user's cache folder.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Final

from resilisim.errors import InvalidInputError, unknown_name
from resilisim.inputs import read_json, validated
from resilisim.provenance import canonical_json, content_hash, describe_os_error
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary
from resilisim.tool_library.retrieval import SEARCHES
from resilisim.worlds.base import DoneCall, Grade
from resilisim.worlds.records.building import DEFAULT_QUESTIONS, build_tasks
from resilisim.worlds.records.contents import GeneratedData, Records, Sizes
from resilisim.worlds.records.database import QueryLimits
from resilisim.worlds.records.grading import grade_answer
from resilisim.worlds.records.tools import RecordsWorkspace, records_library

RECORDS_VERSION: Final = "records-v1"
RECORDS_SEED: Final = 0
RECORDS_SHA256: Final = "97eeba12af0be49c3b91b24aaa66ff32681569222a2feaaa8b6eb79aa376e492"  # of the uncompressed lines
SCHEMA: Final = "resilisim-records-1"
DATA_FILE: Final = f"data/{RECORDS_VERSION}.jsonl.gz"


class RecordsWorld:
    """Questions over tables, texts and graphs, and the tools that look there; each question has one right answer.

    Args:
        name: What it is called.
        tasks: Its questions.
        records: What its tools work on.

    Example:
        >>> from resilisim.worlds import load_world
        >>> world = load_world("records-v1")
        >>> len(world.tasks()), world.tasks()[0].metadata["domain"]
        (1600, 'flights')
    """

    def __init__(self, name: str, tasks: Sequence[Task], records: Records) -> None:
        self.name = name
        self.library: ToolLibrary = records_library()
        self.records = records
        self._tasks = tuple(tasks)

    def tasks(self) -> tuple[Task, ...]:
        """Return the questions, domains and difficulties in turn."""
        return self._tasks

    def open(self, task: Task, seed: int) -> RecordsWorkspace:
        """Return a workspace; its tools return the same whatever the seed."""
        return RecordsWorkspace(self.records)

    def grade(self, task: Task, answer: str | None, calls: Sequence[DoneCall]) -> Grade:
        """Grade an answer as `grade_answer` does; how it was come by does not matter."""
        return grade_answer(task, answer)


def generate_records(
    seed: int = 0,
    sizes: Sizes | None = None,
    questions: int = DEFAULT_QUESTIONS,
    *,
    search: str = "lexical",
    limits: QueryLimits | None = None,
) -> RecordsWorld:
    """Make a world of one's own: other tables, texts and graphs, and other questions about them.

    Args:
        seed: What everything follows from.
        sizes: How large the tables, collections and graphs are.
        questions: Number for each of the eight domains and each difficulty.
        search: How texts are searched: "lexical", or "semantic" (the extra `retrieval`). References are checked so.
        limits: Limits of a query.

    Raises:
        InvalidInputError: The sizes are too small for so many questions.

    Example:
        >>> from resilisim.worlds.records import generate_records
        >>> generate_records(questions=0)
        Traceback (most recent call last):
        ...
        resilisim.errors.InvalidInputError: questions for each domain and difficulty is 0: expected at least 1
    """
    data = GeneratedData(seed, sizes)
    records = data.records(search, limits)
    return RecordsWorld(f"records-seed{seed}", build_tasks(data, records, questions, f"records-seed{seed}"), records)


def records_lines(seed: int, sizes: Sizes, questions: int, name: str) -> bytes:
    """Generate a set and return its file, uncompressed."""
    data = GeneratedData(seed, sizes)
    records = data.records(limits=QueryLimits(seconds=600.0))  # a busy machine makes the same set
    try:
        tasks = build_tasks(data, records, questions, name)
    finally:
        records.database.close()
    header = {
        "schema": SCHEMA,
        "name": name,
        "seed": seed,
        "sizes": dataclasses.asdict(sizes),
        "data": data.hashes(),
    }
    return "".join([canonical_json(header) + "\n", *(task.to_json() + "\n" for task in tasks)]).encode()


def write_records(path: str | Path, seed: int, sizes: Sizes | None = None, questions: int = DEFAULT_QUESTIONS) -> None:
    """Generate a set and write it to a file, which is loaded again as the world `records:FILE`.

    Args:
        path: Where to; compressed if the name ends in ".gz".
        seed: What everything follows from.
        sizes: How large the tables, collections and graphs are.
        questions: Number for each of the eight domains and each difficulty.

    Raises:
        InvalidInputError: The sizes are too small for so many questions, or the file cannot be written.

    Example:
        >>> from resilisim.worlds.records import write_records
        >>> write_records("nowhere/set.jsonl", seed=1, questions=0)
        Traceback (most recent call last):
        ...
        resilisim.errors.InvalidInputError: questions for each domain and difficulty is 0: expected at least 1
    """
    file = Path(path)
    lines = records_lines(seed, sizes or Sizes(), questions, file.name.split(".")[0] or "records")
    try:
        file.write_bytes(gzip.compress(lines, mtime=0) if file.suffix == ".gz" else lines)
    except OSError as error:
        raise InvalidInputError(f"file {str(file)!r} cannot be written: {describe_os_error(error)}") from None


def records_v1(search: str = "lexical") -> RecordsWorld:
    """Return `records-v1`; `records-v1:semantic` searches its texts by meaning.

    Example:
        >>> from resilisim.worlds.records import records_v1
        >>> records_v1("lexial")
        Traceback (most recent call last):
        ...
        resilisim.errors.InvalidInputError: unknown search 'lexial' in records-v1: did you mean 'lexical'?
    """
    if search not in SEARCHES:
        raise unknown_name("search", search, SEARCHES, RECORDS_VERSION)
    lines = gzip.decompress(resources.files("resilisim.worlds.records").joinpath(DATA_FILE).read_bytes())
    digest = content_hash(lines)
    if digest != RECORDS_SHA256:
        raise AssertionError(f"{DATA_FILE} has SHA-256 {digest}, expected {RECORDS_SHA256}: reinstall the package")
    header, *rest = lines.decode().splitlines()
    tasks = [Task.from_trusted_mapping(json.loads(line)) for line in rest]
    return _world(json.loads(header), tasks, search)


def load_records(path: str | Path = "") -> RecordsWorld:
    """Return the world of a file that `write_records` wrote; it is also called `records:FILE`.

    Raises:
        InvalidInputError: There is no such file, a line of it is wrong, or the data that is generated today is another.

    Example:
        >>> from resilisim.worlds.records import load_records
        >>> load_records("nowhere.jsonl")
        Traceback (most recent call last):
        ...
        resilisim.errors.InvalidInputError: records 'nowhere.jsonl' cannot be read: no such file or directory
    """
    if not str(path):
        raise InvalidInputError("world 'records': expected records:FILE, or 'records-v1'")
    place = f"records {str(path)!r}"
    try:
        given = Path(path).read_bytes()
        text = (gzip.decompress(given) if given[:2] == b"\x1f\x8b" else given).decode()
    except (OSError, EOFError) as error:
        problem = describe_os_error(error) if isinstance(error, OSError) and error.errno else "not a whole gzip file"
        raise InvalidInputError(f"{place} cannot be read: {problem}") from None
    except UnicodeDecodeError:
        raise InvalidInputError(f"{place} is not UTF-8 text") from None
    first, *rest = text.splitlines() or [""]
    header = validated(_Header, read_json(first, f"{place}, line 1"), f"{place}, line 1")
    if header.schema != SCHEMA:
        raise InvalidInputError(f"{place}, line 1: schema {header.schema!r:.50}; expected {SCHEMA!r}")
    tasks = []
    for number, line in enumerate(rest, 2):
        where = f"{place}, line {number}"
        task = Task.from_mapping(read_json(line, where), records_library(), where)
        validated(_Metadata, task.metadata, f"{where}, field 'metadata'")
        tasks.append(task)
    return _world(dataclasses.asdict(header), tasks, "lexical")


@dataclasses.dataclass(frozen=True)
class _Header:
    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    schema: str
    name: str
    seed: int
    sizes: Sizes
    data: dict[str, str]


@dataclasses.dataclass(frozen=True)
class _Metadata:
    """What grading and reports need; further fields are kept."""

    answers: list[str]
    answer_kind: str
    digits: int
    domain: str
    difficulty: str


def _world(header: Mapping[str, Any], tasks: Sequence[Task], search: str) -> RecordsWorld:
    sizes = header["sizes"]
    data = GeneratedData(header["seed"], Sizes(**sizes) if isinstance(sizes, dict) else sizes, header["data"])
    return RecordsWorld(header["name"], tasks, data.records(search))


def records_card(tasks: Sequence[Task], sha256: str) -> str:
    """Return what a set holds, in Markdown: numbers of questions, splits, tools and the hash.

    Example:
        >>> from resilisim.worlds.records import records_card
        >>> print(records_card((), "0" * 64).splitlines()[0])
        # Card of a set of the records world
    """
    lines = [
        "# Card of a set of the records world",
        "",
        f"{len(tasks):,} questions, all generated; every reference was executed. SHA-256 of the lines: `{sha256}`.",
        "",
        "| domain | difficulty | questions | templates | train, validation, test | calls of the reference |",
        "|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str], list[Task]] = {}
    for task in tasks:
        groups.setdefault((task.metadata["domain"], task.metadata["difficulty"]), []).append(task)
    for (domain, difficulty), some in groups.items():
        splits = Counter(task.metadata["split"] for task in some)
        calls = [len(task.metadata["reference"]) for task in some]
        lines.append(
            f"| {domain} | {difficulty} | {len(some)} | {len({task.metadata['template'] for task in some})} | "
            f"{splits['train']}, {splits['validation']}, {splits['test']} | {min(calls)} to {max(calls)} |"
        )
    used = Counter(tool for task in tasks for tool in task.required_tools)
    listed = ", ".join(f"{tool} {count}" for tool, count in used.most_common())
    return "\n".join([*lines, "", f"Questions whose reference uses a tool: {listed}.", ""])
