"""The pages world: an encyclopedia with one search that returns whole pages, questions over it, and their scoring."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from resilisim.tasks import Task, split_of
from resilisim.tasks.task import instance_id_of
from resilisim.tool_library import Parameter, ReturnValue, Tool, ToolLibrary
from resilisim.tool_library.retrieval import TextIndex
from resilisim.tool_library.tool import standard_errors
from resilisim.worlds.answers import answers_in, exact_match, list_overlap, loft_scores, token_overlap, turn_scores
from resilisim.worlds.base import PAPER_RULES, DoneCall, Grade, ToolError

SEARCH_TOOL: Final = "search"
SHOWN_RESULTS: Final = 2  # pages that a search returns; whole ones, of thousands of tokens
_TITLE_WEIGHT: Final = 2.0  # of how well a title fits, against 1 for the text
_CANDIDATES: Final = 50  # pages by title, and by text, of which the best by both are returned
_LONGEST_QUERY: Final = 2_000  # characters

_ASKED_OF: Mapping[str, str] = {
    "one": "Answer with the name or the year alone.",
    "list": "Give all of them, with semicolons between them.",
    "turns": "Give one answer for each question, in this order, with semicolons between them; where you find none, "
    "write 'unknown'.",
}


def search_library() -> ToolLibrary:
    """Return the library of the world's one tool."""
    search = Tool(
        SEARCH_TOOL,
        "Searches an encyclopedia and returns the pages that fit best, whole. Pages are long; names find them best.",
        (Parameter("query", "string", "Words to look for, such as the name of a person, a place or a work."),),
        (ReturnValue("pages", "array", "The best pages, each with its title and its whole text."),),
        standard_errors(""),
        metadata={"category": "knowledge", "operation": "search"},
    )
    return ToolLibrary([search], "pages world")


class Encyclopedia:
    """Pages and their search by words: the same query always returns the same pages.

    How well a page fits is the sum of how well its text and, twice, how well its title does, so that it is found by its
    name however long it is.

    Args:
        pages: Titles and whole texts.
    """

    def __init__(self, pages: Sequence[tuple[str, str]]) -> None:
        self.pages = tuple(pages)
        titles, texts = zip(*self.pages, strict=True)
        self._indices = ((_TITLE_WEIGHT, TextIndex(titles, "lexical")), (1.0, TextIndex(texts, "lexical")))

    def search(self, query: str) -> list[dict[str, str]]:
        """Return the best pages for a query, best first; none that has nothing to do with it."""
        scores: dict[int, float] = defaultdict(float)
        for weight, index in self._indices:
            for hit in index.search(query, k=_CANDIDATES):
                scores[hit.index] += weight * hit.score
        best = sorted((-round(score, 3), place) for place, score in scores.items() if score > 0.0)[:SHOWN_RESULTS]
        return [{"title": self.pages[place][0], "text": self.pages[place][1]} for _, place in best]


class PagesWorld:
    """Questions over an encyclopedia, which is made when it is first searched.

    Args:
        name: Name of the world.
        tasks: Its tasks (`question_task`).
        encyclopedia: Returns the pages; asked once.
    """

    rules = PAPER_RULES

    def __init__(self, name: str, tasks: Sequence[Task], encyclopedia: Callable[[], Encyclopedia]) -> None:
        self.name = name
        self.library = search_library()
        self._tasks = tuple(tasks)
        self._make = encyclopedia
        self._made: Encyclopedia | None = None
        self._lock = threading.Lock()  # agents that are functions play in threads

    def tasks(self) -> tuple[Task, ...]:
        """Return all tasks, kinds of questions interleaved."""
        return self._tasks

    @property
    def encyclopedia(self) -> Encyclopedia:
        """The pages and their search."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def open(self, task: Task, seed: int) -> _Reading:
        """Return a workspace: the search, which has no state."""
        return _Reading(self.encyclopedia)

    def grade(self, task: Task, answer: str | None, calls: Sequence[DoneCall]) -> Grade:
        """Grade an answer by the kind of its question (`grade_answer`); the calls do not matter."""
        return grade_answer(task.metadata, answer or "")


@dataclass(frozen=True, slots=True)
class _Reading:
    encyclopedia: Encyclopedia

    def call(self, tool: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        query = parameters.get("query")
        if tool != SEARCH_TOOL or not isinstance(query, str) or not query.strip():
            raise ToolError("INVALID_INPUT", "the query is empty: expected words to look for")
        if len(query) > _LONGEST_QUERY:
            raise ToolError("INVALID_INPUT", f"the query is longer than {_LONGEST_QUERY:,} characters")
        return {"pages": self.encyclopedia.search(query)}

    def close(self) -> None:
        """Hold nothing."""


def question_task(
    world: str,
    kind: str,
    questions: Sequence[str],
    right: Sequence[str | Sequence[str]],
    searches: Sequence[str],
    *,
    form: str = "one",
    scoring: str = "hotpotqa",
    **metadata: Any,
) -> Task:
    """Return the task of a question, or of a conversation of several.

    Args:
        world: Name of the world.
        kind: What kind of question it is, which becomes the task's type.
        questions: The question, or the turns of a conversation.
        right: With form "one" the wordings of the right answer, "list" all right answers, "turns" one for each turn;
            an answer may be a list of its wordings.
        searches: Queries of the reference solution.
        form: "one", "list" or "turns".
        scoring: "hotpotqa" or "loft": whose definitions decide (docs/decisions, page 46).
        **metadata: More that the task's metadata shall hold.
    """
    if form == "turns":
        numbered = "\n".join(f"{number}. {turn}" for number, turn in enumerate(questions, start=1))
        text = f"Answer these questions. They belong together; each may refer to the ones before it.\n{numbered}"
    else:
        (text,) = questions
    firsts = [answer if isinstance(answer, str) else answer[0] for answer in right]
    description = f"{text}\n\n{_ASKED_OF[form]}"
    outputs = {"answer": form}
    instance_id = instance_id_of(kind, (SEARCH_TOOL,), {}, outputs, description)
    facts = {
        "world": world,
        "kind": kind,
        "form": form,
        "scoring": scoring,
        "questions": list(questions),
        "answers": [firsts[0] if form == "one" else "; ".join(firsts)],
        "right": list(right),
        "reference": [{"tool": SEARCH_TOOL, "parameters": {"query": query}} for query in searches],
        "split": split_of((instance_id,)),
        **metadata,
    }
    return Task(
        instance_id=instance_id,
        task_type=kind,
        description=description,
        inputs={},
        expected_outputs=outputs,
        required_tools=(SEARCH_TOOL,),
        constraints={},
        complexity="easy" if len(searches) <= 2 else "medium" if len(searches) == 3 else "hard",
        metadata=facts,
        original_description=description,
    )


def grade_answer(metadata: Mapping[str, Any], answer: str) -> Grade:
    """Grade an answer to a question of this world by the metadata of its task.

    - One answer: correct is an exact match, the score F1 over tokens.
    - A list: correct is F1 over answers of 1, that is all of them and no other; the score is that F1.
    - A conversation: correct is an exact match in every turn, the score the share of such turns.
    - With scoring "loft", correct is what LOFT's tables show: containment (`loft_scores`).
    """
    form, right = metadata["form"], metadata["right"]
    if metadata["scoring"] == "loft":
        return _loft_grade(form, right, answer)
    if form == "one":
        matches, f1 = exact_match(answer, right), token_overlap(answer, right).f1
        return Grade(matches, 1.0 if matches else f1, {"exact_match": matches, "f1": f1})
    said = answers_in(answer)
    if form == "list":
        overlap = list_overlap(said, right)
        parts = {"f1": overlap.f1, "precision": overlap.precision, "recall": overlap.recall}
        return Grade(overlap.f1 == 1.0, overlap.f1, parts)
    right_turns = [exact_match(said_in_turn, turn) for said_in_turn, turn in zip(said, right, strict=False)]
    share = sum(right_turns) / len(right)
    f1 = sum(turn.f1 for turn in turn_scores(said, right)) / len(right)
    return Grade(share == 1.0, share, {"turns": share, "f1": f1})


def _loft_grade(form: str, right: Sequence[Any], answer: str) -> Grade:
    if form == "turns":
        said = [*answers_in(answer), *[""] * len(right)][: len(right)]
        scores = [loft_scores(said_in_turn, _wordings(turn)) for said_in_turn, turn in zip(said, right, strict=True)]
    else:
        scores = [loft_scores(answer if form == "one" else answers_in(answer), right)]
    names = ("em", "subspan_em", "f1")
    means = {name: sum(getattr(score, name) for score in scores) / len(scores) for name in names}
    return Grade(means["subspan_em"] == 1.0, means["subspan_em"], means)


def _wordings(turn: str | Sequence[str]) -> Sequence[str]:
    return (turn,) if isinstance(turn, str) else turn
