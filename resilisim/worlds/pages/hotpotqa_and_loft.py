"""Questions and pages of HotpotQA and LOFT, in their published formats, where a user has them.

- HotpotQA: a JSON array of questions, or one a line, each with `question`, `answer`, `supporting_facts` (title and
  number of a sentence), `context` (title and sentences) and mostly `_id`; in the layout of Hugging Face, with `id`, the
  last two are columns (`title` and `sent_id`, `title` and `sentences`). Some supporting facts of the published files
  name a sentence that their paragraph does not have: they are searched for, and are no evidence. Files of its test set
  have no answers and are refused.
- LOFT: a folder with `corpus.jsonl` (`pid`, `title_text`, `passage_text`) and `dev_queries.jsonl` or another
  `*_queries.jsonl` (`qid`, `query_text`, `answers`, `metadata`). In conversations (TopiOCQA) `query_text` is a list,
  and `answers` holds one list for each turn.

The pages can also be given as a folder of text files, each called like its page: whole articles, where the files hold
paragraphs only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from resilisim.errors import InvalidInputError
from resilisim.inputs import read_json, read_json_lines, read_text, shown, validated
from resilisim.tasks import Task
from resilisim.worlds.pages.world import Encyclopedia, PagesWorld, question_task

PAGE_ENDINGS: Final = (".txt", ".md")
CORPUS_FILE: Final = "corpus.jsonl"
_MULTI_VALUE: Final = ("qampari", "quest")  # of LOFT: the answers are a list, elsewhere wordings of one
_Text = Annotated[str, Field(min_length=1)]
_Texts = Annotated[list[_Text], Field(min_length=1)]


class _HotpotQuestion(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    id: str = Field(default="", alias="_id")
    question: _Text
    answer: _Text
    supporting_facts: list[tuple[str, int]] = []
    context: list[tuple[str, list[str]]] = []
    type: str = "bridge"
    level: str = ""

    @field_validator("supporting_facts", "context", mode="before")
    @classmethod
    def _as_pairs(cls, value: Any, info: ValidationInfo) -> Any:
        """Return the columns of Hugging Face's layout as the pairs of the official one."""
        if isinstance(value, list):
            return [tuple(item) if isinstance(item, list) else item for item in value]
        if not isinstance(value, Mapping):
            return value
        names = ("title", "sent_id" if info.field_name == "supporting_facts" else "sentences")
        columns = [column for name in names if isinstance(column := value.get(name), list)]
        if len(columns) != len(names) or len(columns[0]) != len(columns[1]):
            raise ValueError(f"expected pairs, or the columns {names[0]} and {names[1]} of one length")
        return list(zip(*columns, strict=True))


class _LoftQuestion(BaseModel):
    qid: _Text
    query_text: _Text | _Texts
    answers: list[str] | list[list[str]]
    metadata: dict[str, Any] = {}


class _LoftPassage(BaseModel):
    pid: _Text
    title_text: str
    passage_text: str


def hotpotqa_world(path: str | Path, pages: str | Path | None = None) -> PagesWorld:
    """Return HotpotQA's questions over the paragraphs of their contexts, or over a folder of pages.

    The reference solution searches for the titles of the supporting facts. That these can be known beforehand, and that
    the search finds them, is checked for generated worlds only.

    Args:
        path: A JSON file of HotpotQA; on the command line `hotpotqa:FILE`, or `hotpotqa:FILE,FOLDER` with pages.
        pages: A folder of pages, `TITLE.txt` or `TITLE.md`; None takes the contexts.

    Raises:
        InvalidInputError: The file or the folder cannot be read, or does not hold what it should.

    Example:
        >>> import json, tempfile
        >>> from resilisim.worlds.pages import hotpotqa_world
        >>> question = {"_id": "1", "question": "Where does the Mirren end?", "answer": "Vane",
        ...     "supporting_facts": [["Mirren", 0]], "context": [["Mirren", ["It ends in Vane."]]]}
        >>> with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        ...     _ = file.write(json.dumps([question])), file.flush()
        ...     hotpotqa_world(file.name).tasks()[0].metadata["answers"]
        ['Vane']
    """
    if pages is None and "," in str(path):
        path, _, pages = str(path).partition(",")
    file = Path(path)
    text = read_text(file, "HotpotQA file")
    is_lines = text.lstrip().startswith("{")
    items = [item for item, _ in read_json_lines(text, str(file))] if is_lines else read_json(text, str(file))
    if not isinstance(items, list) or not items:
        raise InvalidInputError(f"{file}: expected a non-empty array of questions, as HotpotQA's files are")
    name = f"hotpotqa:{path}" if pages is None else f"hotpotqa:{path},{pages}"
    tasks: list[Task] = []
    texts: dict[str, str] = {}
    for number, item in enumerate(items, start=1):
        question = validated(_HotpotQuestion, item, f"{file}: item {number}")
        contexts = dict(question.context)
        facts = [(title, place) for title, place in question.supporting_facts if title in contexts]
        for title, sentences in question.context:
            # The same paragraph stands in the contexts of several questions.
            texts.setdefault(title, "".join(sentences).strip())
        tasks.append(
            question_task(
                name,
                question.type,
                [question.question],
                [question.answer],
                list(dict.fromkeys(title for title, _ in question.supporting_facts)),
                id=question.id or f"item {number}",
                level=question.level,
                evidence=[[contexts[title][place]] for title, place in facts if 0 <= place < len(contexts[title])],
            )
        )
    corpus = list(texts.items()) if pages is None else read_pages(pages)
    return PagesWorld(name, _distinct(tasks), lambda: Encyclopedia(corpus))


def loft_world(path: str | Path, pages: str | Path | None = None, split: str = "dev") -> PagesWorld:
    """Return a data set of LOFT, such as the folder `rag/musique/128k`, scored by LOFT's definitions.

    Passages of one title are joined to one page. The answers of QAMPARI and QUEST (by the folders' names, or where a
    question asks for several passages) are lists; elsewhere they are wordings of one.

    Args:
        path: A folder of LOFT; on the command line `loft:FOLDER`, or `loft:FOLDER,PAGES`.
        pages: A folder of pages, `TITLE.txt` or `TITLE.md`; None takes the corpus.
        split: Which questions: "dev", "test" or "few_shot".

    Raises:
        InvalidInputError: A file cannot be read, or does not hold what it should.

    Example:
        >>> from resilisim.worlds.pages import loft_world
        >>> loft_world("no/such/folder")
        Traceback (most recent call last):
        ...
        resilisim.errors.InvalidInputError: LOFT questions 'no/such/folder/dev_queries.jsonl' does not exist; ...
    """
    if pages is None and "," in str(path):
        path, _, pages = str(path).partition(",")
    folder = Path(path)
    name = f"loft:{path}" if pages is None else f"loft:{path},{pages}"
    questions = folder / f"{split}_queries.jsonl"
    lists = any(part.lower() in _MULTI_VALUE for part in folder.resolve().parts)
    questions_read = [
        (validated(_LoftQuestion, item, where), where) for item, where in _lines(questions, "LOFT questions")
    ]
    title_of, texts = _corpus(folder / CORPUS_FILE)
    tasks = [_loft_task(name, question, where, title_of, lists) for question, where in questions_read]
    corpus = list(texts.items()) if pages is None else read_pages(pages)
    return PagesWorld(name, _distinct(tasks), lambda: Encyclopedia(corpus))


def _corpus(file: Path) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the title of each passage, and the joined text of each title."""
    title_of: dict[str, str] = {}
    texts: dict[str, str] = {}
    for item, where in _lines(file, "LOFT corpus"):
        passage = validated(_LoftPassage, item, where)
        if passage.pid in title_of:
            raise InvalidInputError(f"{where}: passage {passage.pid!r:.60} was there before; expected ids that differ")
        title = passage.title_text.strip() or passage.pid
        title_of[passage.pid] = title
        text = passage.passage_text.strip()
        texts[title] = f"{texts[title]}\n\n{text}" if title in texts else text
    return title_of, texts


def _loft_task(name: str, question: _LoftQuestion, where: str, title_of: Mapping[str, str], lists: bool) -> Task:
    turns = [question.query_text] if isinstance(question.query_text, str) else question.query_text
    answers: Sequence[Any] = question.answers
    nested = bool(answers) and isinstance(answers[0], list)
    if not answers or nested != isinstance(question.query_text, list) or (nested and len(answers) != len(turns)):
        expected = "a list of answers for each turn" if len(turns) > 1 else "a non-empty list of answers"
        raise InvalidInputError(f"{where}, field 'answers': got {len(answers)}; expected {expected}")
    if nested and not all(answers):
        raise InvalidInputError(f"{where}, field 'answers': a turn has none; expected a list of answers for each turn")
    qrels = question.metadata.get("qrels") or []
    if not isinstance(qrels, list) or not all(
        isinstance(entry, list) and entry and isinstance(entry[0], str | int) for entry in qrels
    ):
        raise InvalidInputError(
            f"{where}, field 'metadata', field 'qrels': got {shown(qrels)}; expected a list of lists, each of which "
            "begins with the id of a passage"
        )
    passages = [str(entry[0]) for entry in qrels]
    missing = [pid for pid in passages if pid not in title_of]
    if missing:
        raise InvalidInputError(f"{where}, field 'metadata': no passage {missing[0]!r:.60} in {CORPUS_FILE}")
    titles = list(dict.fromkeys(title_of[pid] for pid in passages))
    form = "turns" if nested else "list" if lists else "one"
    kind = "conversation" if nested else "list" if lists else "hops"
    return question_task(name, kind, turns, answers, titles, form=form, scoring="loft", id=question.qid)


def read_pages(folder: str | Path) -> list[tuple[str, str]]:
    """Return the pages of a folder, by their titles: the names of its text files without the ending.

    Raises:
        InvalidInputError: It is no folder, holds no pages, or a page is no UTF-8 text.
    """
    place = Path(folder)
    files = sorted(file for file in place.iterdir() if file.suffix in PAGE_ENDINGS) if place.is_dir() else []
    if not files:
        raise InvalidInputError(f"folder of pages {str(folder)!r}: expected text files called TITLE.txt or TITLE.md")
    pages: dict[str, str] = {}
    for file in files:
        if file.stem in pages:
            raise InvalidInputError(f"folder of pages {str(folder)!r}: two files for {file.stem!r:.60}; expected one")
        pages[file.stem] = read_text(file, "page", within=place)
    return list(pages.items())


def _lines(file: Path, what: str) -> list[tuple[Any, str]]:
    text = read_text(file, what, "a folder of LOFT, with corpus.jsonl and dev_queries.jsonl", within=file.parent)
    numbered = list(read_json_lines(text, str(file)))
    if not numbered:
        raise InvalidInputError(f"{what} {str(file)!r} is empty; expected one JSON object a line")
    return numbered


def _distinct(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """Return tasks of which no two ask the same; doubled questions are left out, as nothing could tell them apart."""
    return tuple({task.instance_id: task for task in tasks}.values())
