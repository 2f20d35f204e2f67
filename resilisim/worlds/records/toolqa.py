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

What is asked for and not there is told when the folder is loaded; a tool that needs it says so to the agent. There are
no reference solutions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from resilisim.errors import InvalidInputError, import_extra, one_line
from resilisim.inputs import inside, read_json_lines, read_text, validated
from resilisim.provenance import content_hash
from resilisim.tasks import Task
from resilisim.worlds.answers import number_in
from resilisim.worlds.base import ToolError
from resilisim.worlds.records.contents import Graphs, Records
from resilisim.worlds.records.database import Database
from resilisim.worlds.records.graph_files import read_graph, read_names
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
_GRAPH_FILES: Final = ("paper_net", "author_net", "id2title_dict", "id2author_dict")
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
    name = f"toolqa:{folder}"
    tasks = [task for file in files for task in _tasks(file, root, name)]
    if not tasks:
        raise InvalidInputError(f"ToolQA {str(folder)!r} holds no question: its files in data/questions are empty")
    tables = [table for table, file in _TABLES.items() if inside(root, root / _CORPUS / file, "ToolQA file").is_file()]
    texts = [name for name, (file, _) in _TEXTS.items() if inside(root, root / _CORPUS / file, "ToolQA file").is_file()]
    files_of_graphs = [inside(root, root / _CORPUS / "dblp" / f"{name}.pkl", "ToolQA file") for name in _GRAPH_FILES]
    graphs = ["graph"] * all(file.is_file() for file in files_of_graphs)
    asked = dict.fromkeys(task.metadata["domain"] for task in tasks if task.metadata["domain"] != "arithmetic")
    lacking = [domain for domain in asked if domain not in (*tables, *texts, *graphs)]
    if lacking:
        problem = (
            f"ToolQA {str(folder)!r:.200} lacks {', '.join(lacking)} in {_CORPUS}: questions about them have no data"
        )
        warnings.warn(problem, UserWarning, stacklevel=2)
    stamps = [[file, (root / _CORPUS / _TABLES[file]).stat().st_mtime_ns] for file in tables]
    key = content_hash([str(root.resolve()), stamps])[:16]
    database = Database(f"toolqa-{key}", lambda connection: _fill(connection, root, tables))
    passages: dict[str, Callable[[], Sequence[str]]] = {
        name: _reader(root / _CORPUS / file, root, field) for name, (file, field) in _TEXTS.items()
    }
    records = Records(database, tables, passages, lambda: _graphs(root))
    return RecordsWorld(name, tasks, records)


def _lines(file: Path, root: Path) -> Iterator[tuple[Any, str]]:
    """Yield the value and the place of each line of a file of JSON Lines."""
    return read_json_lines(read_text(file, "ToolQA file", within=root), repr(str(file)))


def _tasks(file: Path, root: Path, world: str) -> Iterator[Task]:
    name, _, difficulty = file.stem.rpartition("-")
    if name not in _DOMAINS or difficulty not in ("easy", "hard"):
        raise InvalidInputError(f"ToolQA file {str(file)!r}: expected a name such as flight-easy.jsonl")
    domain, tool = _DOMAINS[name]
    for line, where in _lines(file, root):
        line_fields = validated(dict[str, str | float | int], line, where)
        missing = [key for key in ("qid", "question", "answer") if not str(line_fields.get(key, "")).strip()]
        if missing:
            raise InvalidInputError(f"{where}: field {missing[0]!r} is missing; expected qid, question and answer")
        answer = str(line_fields["answer"])
        number = number_in(answer) if answer.strip("-.0123456789") == "" else None
        metadata = {
            "world": world,
            "qid": str(line_fields["qid"]),
            "domain": domain,
            "difficulty": difficulty,
            "answers": [answer],
            "answer_kind": "text" if number is None else "number",
            "digits": 12,
        }
        fields = {
            "task_type": f"toolqa_{domain}",
            "description": str(line_fields["question"]),
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


def _reader(file: Path, root: Path, field: str) -> Callable[[], list[str]]:
    def read() -> list[str]:
        if not file.exists():
            raise ToolError("NOT_FOUND", f"there is no {file.parent.name} among the data")
        texts = []
        for line, where in _lines(file, root):
            if not isinstance(line, dict) or not isinstance(line.get(field), str):
                raise InvalidInputError(f"{where}: field {field!r} is missing; expected a text")
            texts.append(line[field])
        return texts

    return read


def _graphs(root: Path) -> Graphs:
    """Return the graphs with titles and names in place of ids."""
    networkx = import_extra("networkx", "graphs of worlds need", "worlds")
    files = {name: inside(root, root / _CORPUS / "dblp" / f"{name}.pkl", "ToolQA file") for name in _GRAPH_FILES}
    if not all(file.exists() for file in files.values()):
        raise ToolError("NOT_FOUND", "there are no graphs among the data")
    titles, names = read_names(files["id2title_dict"]), read_names(files["id2author_dict"])
    papers, authors = (
        networkx.relabel_nodes(graph, {node: names_of_nodes.get(node, str(node)) for node in graph})
        for graph, names_of_nodes in (
            (read_graph(files["paper_net"]), titles),
            (read_graph(files["author_net"]), names),
        )
    )
    for _, _, about in authors.edges(data=True):
        listed = about.get("papers", [])
        about["papers"] = [
            titles.get(title, title) if isinstance(title, str | int) else title for title in listed or ()
        ]
    return Graphs(papers, authors)
