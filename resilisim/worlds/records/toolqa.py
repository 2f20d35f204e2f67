"""The original ToolQA where a user has it: its questions, and the tools over its own data.

The folder is that of the public repository (github.com/night-chen/ToolQA) with the external corpus unpacked into it:

    data/questions/{easy,hard}/DOMAIN-{easy,hard}.jsonl   qid, question, answer
    data/external_corpus/flights/Combined_Flights_2022.csv
    data/external_corpus/coffee/coffee_price.csv
    data/external_corpus/airbnb/Airbnb_Open_Data.csv
    data/external_corpus/yelp/yelp_academic_dataset_business.json
    data/external_corpus/agenda/agenda_descriptions_merged.jsonl   event
    data/external_corpus/scirex/Preprocessed_Scirex.jsonl          content
    data/external_corpus/dblp/{paper_net,author_net,id2title_dict,id2author_dict}.pkl

What is not there is missed only by the question that needs it. There are no reference solutions.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from resilisim.errors import InvalidInputError, import_extra, one_line
from resilisim.inputs import read_json, read_text, validated
from resilisim.provenance import content_hash
from resilisim.tasks import Task
from resilisim.worlds.answers import number_in
from resilisim.worlds.records.contents import Graphs, Records
from resilisim.worlds.records.database import Database
from resilisim.worlds.records.tools import records_library
from resilisim.worlds.records.world import RecordsWorld

_CORPUS: Final = Path("data/external_corpus")
_TABLES: Final[Mapping[str, str]] = {
    "flights": "flights/Combined_Flights_2022.csv",
    "coffee": "coffee/coffee_price.csv",
    "airbnb": "airbnb/Airbnb_Open_Data.csv",
    "yelp": "yelp/yelp_academic_dataset_business.json",
}
_TEXTS: Final[Mapping[str, tuple[str, str]]] = {
    "agenda": ("agenda/agenda_descriptions_merged.jsonl", "event"),
    "scirex": ("scirex/Preprocessed_Scirex.jsonl", "content"),
}
# Their domain -> ours, and the tool that is looked for in plans and prompts, as there are no references.
_DOMAINS: Final[Mapping[str, tuple[str, str]]] = {
    "agenda": ("agenda", "RetrieveAgenda"),
    "airbnb": ("airbnb", "SQLInterpreter"),
    "coffee": ("coffee", "SQLInterpreter"),
    "dblp": ("graph", "LoadGraph"),
    "flight": ("flights", "SQLInterpreter"),
    "genda": ("agenda", "RetrieveAgenda"),  # the name of one of its files
    "gsm8k": ("arithmetic", "Calculate"),
    "scirex": ("scirex", "RetrieveScirex"),
    "yelp": ("yelp", "SQLInterpreter"),
}


def load_toolqa(folder: str | Path = "") -> RecordsWorld:
    """Return the world of a folder of ToolQA; it is also called `toolqa:FOLDER`.

    Answers are compared as ToolQA does, by normalised exact match; where the right one is a bare number, any way of
    writing this number is right.

    Args:
        folder: The repository with its data.

    Raises:
        InvalidInputError: The folder holds no questions, or a line is wrong.

    Example:
        >>> from resilisim.worlds.records import load_toolqa
        >>> load_toolqa("nowhere")
        Traceback (most recent call last):
        ...
        resilisim.errors.InvalidInputError: ToolQA 'nowhere' has no data/questions/*/*.jsonl; expected its repository
    """
    if not str(folder):
        raise InvalidInputError("world 'toolqa': expected toolqa:FOLDER")
    root = Path(folder)
    files = sorted(root.glob("data/questions/*/*.jsonl"))
    if not files:
        raise InvalidInputError(f"ToolQA {str(folder)!r} has no data/questions/*/*.jsonl; expected its repository")
    tasks = [task for file in files for task in _tasks(file)]
    found = [name for name, file in _TABLES.items() if (root / _CORPUS / file).is_file()]
    stamps = [[file, (root / _CORPUS / _TABLES[file]).stat().st_mtime_ns] for file in found]
    key = content_hash([str(root.resolve()), stamps])[:16]
    database = Database(f"toolqa-{key}", lambda connection: _fill(connection, root, found))
    passages: dict[str, Callable[[], Sequence[str]]] = {
        name: _reader(root / _CORPUS / file, field) for name, (file, field) in _TEXTS.items()
    }
    records = Records(database, found, passages, lambda: _graphs(root / _CORPUS / "dblp"))
    return RecordsWorld("toolqa", tasks, records)


def _lines(file: Path) -> Iterator[tuple[str, Any]]:
    """Yield the place and the value of each line of a file of JSON Lines."""
    for number, line in enumerate(read_text(file, "ToolQA file").splitlines(), 1):
        if line.strip():
            where = f"{str(file)!r}, line {number}"
            yield where, read_json(line, where)


def _tasks(file: Path) -> Iterator[Task]:
    name, _, difficulty = file.stem.rpartition("-")
    if name not in _DOMAINS or difficulty not in ("easy", "hard"):
        raise InvalidInputError(f"ToolQA file {str(file)!r}: expected a name such as flight-easy.jsonl")
    domain, tool = _DOMAINS[name]
    for where, line in _lines(file):
        given = validated(dict[str, str | float | int], line, where)
        missing = [key for key in ("qid", "question", "answer") if key not in given]
        if missing:
            raise InvalidInputError(f"{where}: field {missing[0]!r} is missing; expected qid, question and answer")
        answer = str(given["answer"])
        number = number_in(answer) if answer.strip("-.0123456789") == "" else None
        metadata = {
            "world": "toolqa",
            "qid": str(given["qid"]),
            "domain": domain,
            "difficulty": difficulty,
            "answers": [answer],
            "answer_kind": "text" if number is None else "number",
            "digits": 12,
        }
        fields = {
            "task_type": f"toolqa_{domain}",
            "description": str(given["question"]),
            "required_tools": [tool],
            "complexity": difficulty,
            "metadata": metadata,
        }
        yield Task.from_mapping(fields, records_library(), where)


def _fill(connection: Any, root: Path, tables: Sequence[str]) -> None:
    for table in tables:
        file = root / _CORPUS / _TABLES[table]
        read = "read_json_auto" if file.suffix == ".json" else "read_csv_auto"
        try:
            connection.execute(f'CREATE TABLE "{table}" AS SELECT * FROM {read}(?)', [str(file)])
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in ("duckdb", "_duckdb"):
                raise
            raise InvalidInputError(f"ToolQA file {str(file)!r} cannot be read: {one_line(error)}") from None


def _reader(file: Path, field: str) -> Callable[[], list[str]]:
    def read() -> list[str]:
        texts = []
        for where, line in _lines(file):
            if not isinstance(line, dict) or not isinstance(line.get(field), str):
                raise InvalidInputError(f"{where}: field {field!r} is missing; expected a text")
            texts.append(line[field])
        return texts

    return read


def _graphs(folder: Path) -> Graphs:
    """Return the graphs with titles and names in place of ids."""
    networkx = import_extra("networkx", "graphs of worlds need", "worlds")
    titles, names = _unpickled(folder / "id2title_dict.pkl"), _unpickled(folder / "id2author_dict.pkl")
    papers = networkx.relabel_nodes(_unpickled(folder / "paper_net.pkl"), titles)
    authors = networkx.relabel_nodes(_unpickled(folder / "author_net.pkl"), names)
    for _, _, about in authors.edges(data=True):
        about["papers"] = [titles.get(paper, paper) for paper in about.get("papers", [])]
    for nodes in (papers.nodes, authors.nodes):
        for _, about in nodes(data=True):
            about.update(json.loads(json.dumps(about, default=str)))
    return Graphs(papers, authors)


class _OnlyGraphs(pickle.Unpickler):
    """Reads pickles of graphs and of plain values; a pickle that names anything else could run anything."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of networkx that holds a graph."""
        if module.startswith("networkx.classes.") or (module, name) in (("builtins", "set"), ("builtins", "dict")):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _unpickled(file: Path) -> Any:
    try:
        with file.open("rb") as stream:
            return _OnlyGraphs(stream).load()
    except (OSError, pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, ValueError) as error:
        raise InvalidInputError(f"ToolQA file {str(file)!r} cannot be read: {one_line(error)}") from None
