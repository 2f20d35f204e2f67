"""The records world: `records-v1` as it ships, and sets of any other seed and size.

A set is lines of JSON: a header (recipe, SHA-256 of all data) and the questions. The data itself is generated again
when it is first needed, and compared with the hashes; its tables are kept in the user's cache folder.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import tempfile
import zlib
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Final

from resilisim.errors import unknown_name
from resilisim.inputs import numbers_by_name
from resilisim.provenance import canonical_json, content_hash, package_versions
from resilisim.run_folder import default_cache_dir
from resilisim.tables.markdown import markdown_lines
from resilisim.tables.table import Table
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary
from resilisim.tool_library.retrieval import SEARCHES
from resilisim.worlds.base import PAPER_RULES, DoneCall, Grade
from resilisim.worlds.records.contents import GeneratedData, Recipe, Records
from resilisim.worlds.records.database import QueryLimits
from resilisim.worlds.records.question_set import build_tasks, grade_answer
from resilisim.worlds.records.tools import RecordsWorkspace, records_library

RECORDS_VERSION: Final = "records-v1"
RECORDS_SHA256: Final = "c51dab287f6913e2951f663bdb08d061adfec1f114522bc442cedf97dbc019d8"  # of the uncompressed lines
RECORDS_SCHEMA: Final = "resilisim-records-1"
RECORDS_FILE: Final = f"data/{RECORDS_VERSION}.jsonl.gz"


class RecordsWorld:
    """Questions over tables, texts and graphs, and the tools that look there; each question has one right answer.

    Args:
        name: What it is called.
        tasks: Its questions.
        records: What its tools work on.
    """

    rules = PAPER_RULES

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


def generated_records(options: str = "") -> RecordsWorld:
    """Return a world of another size or seed, such as `records:seed=7,questions=20,flights=20000`.

    Making it takes up to some minutes; it is kept in the user's cache folder.

    Args:
        options: Fields of `Recipe`, with commas between them.

    Raises:
        InvalidInputError: An option is unknown or out of range, or the data too small for so many questions.
    """
    where = f"world {f'records:{options}'!r}"
    recipe = numbers_by_name(Recipe, options, where)
    changed = {name: value for name, value in recipe.to_mapping().items() if value != getattr(Recipe(), name)}
    name = "records:" + ",".join(f"{field}={value}" for field, value in (changed or {"seed": 0}).items())
    key = content_hash([RECORDS_SCHEMA, package_versions(["resilisim"]), recipe.to_mapping()])[:16]
    file = default_cache_dir() / "worlds" / f"records-{key}.jsonl.gz"
    try:
        lines = gzip.decompress(file.read_bytes())
    except (OSError, EOFError, zlib.error):  # not there, or damaged
        lines = records_lines(recipe, name)
        with contextlib.suppress(OSError):  # it is made again the next time
            file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=file.parent) as folder:
                new = Path(folder) / file.name
                new.write_bytes(gzip.compress(lines, mtime=0))
                new.replace(file)
    return _world(lines, "lexical")


def records_lines(recipe: Recipe, name: str) -> bytes:
    """Generate a set and return its lines."""
    data = GeneratedData(recipe)
    records = data.records(limits=QueryLimits(seconds=600.0))  # a busy machine makes the same set
    try:
        tasks = build_tasks(data, records, name)
    finally:
        records.database.close()
    header = {"schema": RECORDS_SCHEMA, "name": name, "recipe": recipe.to_mapping(), "data": data.hashes()}
    return "".join([canonical_json(header) + "\n", *(task.to_json() + "\n" for task in tasks)]).encode()


def records_v1(search: str = "lexical") -> RecordsWorld:
    """Return `records-v1`; `records-v1:semantic` searches its texts by meaning."""
    if search not in SEARCHES:
        raise unknown_name("search", search, SEARCHES, RECORDS_VERSION)
    lines = gzip.decompress(resources.files("resilisim.worlds.records").joinpath(RECORDS_FILE).read_bytes())
    digest = content_hash(lines)
    if digest != RECORDS_SHA256:
        raise AssertionError(f"{RECORDS_FILE} has SHA-256 {digest}, expected {RECORDS_SHA256}: reinstall the package")
    return _world(lines, search)


def _world(lines: bytes, search: str) -> RecordsWorld:
    first, *rest = lines.decode().splitlines()
    header = json.loads(first)
    data = GeneratedData(Recipe(**header["recipe"]), header["data"])
    tasks = [Task.from_trusted_mapping(json.loads(line)) for line in rest]
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
    ]
    rows: list[tuple[object, ...]] = []
    groups: dict[tuple[str, str], list[Task]] = {}
    for task in tasks:
        groups.setdefault((task.metadata["domain"], task.metadata["difficulty"]), []).append(task)
    for (domain, difficulty), some in groups.items():
        splits = Counter(task.metadata["split"] for task in some)
        calls = [len(task.metadata["reference"]) for task in some]
        shares = ", ".join(str(splits[name]) for name in ("train", "validation", "test"))
        templates = {task.metadata["template"] for task in some}
        rows.append((domain, difficulty, len(some), len(templates), shares, f"{min(calls)} to {max(calls)}"))
    heads = ("domain", "difficulty", "questions", "templates", "train, validation, test", "calls of the reference")
    lines += markdown_lines(Table("", heads, rows, text_columns=(0, 1, 4, 5)))
    used = Counter(tool for task in tasks for tool in task.required_tools)
    listed = ", ".join(f"{tool} {count}" for tool, count in used.most_common())
    return "\n".join([*lines, "", f"Questions whose reference uses a tool: {listed}.", ""])
