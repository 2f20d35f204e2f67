"""Generated pages worlds: pages-v1, which ships, and others of any size and seed.

What ships are the questions; the encyclopedia is generated again, to the same bytes, when it is first searched.
`python -m benchmarks.shipped_data pages` makes the questions again to the same bytes.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from itertools import chain, zip_longest
from typing import ClassVar, Final, get_args

from resilisim.bounds import Seed, checked
from resilisim.errors import check_integer
from resilisim.inputs import numbers_by_name
from resilisim.provenance import content_hash, encode_json_line
from resilisim.tasks import Task
from resilisim.worlds.answers import normalized
from resilisim.worlds.pages.graph import LEAST_SIZE, MOST_SIZE, Graph, generate_graph
from resilisim.worlds.pages.prose import Page, write_pages
from resilisim.worlds.pages.questions import Question, QuestionKind, make_questions
from resilisim.worlds.pages.world import Encyclopedia, PagesWorld, question_task

PAGES_VERSION: Final = "pages-v1"
PAGES_SIZE, PAGES_SEED, PAGES_QUESTIONS = 240, 0, 120
PAGES_SHA256 = "2b5ca130828227f0e96a7ef3e050d35628430a5e7c1a33f5ac19fd3d03ead3fc"  # of its tasks' JSON Lines
ENCYCLOPEDIA_SHA256 = "eecc4f0a760967ffa050744a5738df2375de074326c9e13483f380a20b756df8"  # of its pages
PAGES_FILE = f"data/{PAGES_VERSION}.jsonl.gz"
QUESTION_KINDS: tuple[QuestionKind, ...] = get_args(QuestionKind)
MOST_QUESTIONS: Final = 10_000
_FORMS: Mapping[str, str] = {"list": "list", "sets": "list", "conversation": "turns"}


@dataclass(frozen=True)
class Recipe:
    """What a generated world is made from.

    Attributes:
        size: People in the encyclopedia; it has about three and a half times as many pages.
        seed: Another seed gives another encyclopedia and other questions.
        questions: Questions of each kind that are wanted; a small encyclopedia may have fewer.

    Raises:
        InvalidInputError: A number is out of range.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    size: int = PAGES_SIZE
    seed: int = PAGES_SEED
    questions: int = PAGES_QUESTIONS

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_integer("size", self.size, LEAST_SIZE, MOST_SIZE)
        checked(Seed, "seed", self.seed)
        check_integer("questions", self.questions, 1, MOST_QUESTIONS)

    @cached_property
    def graph(self) -> Graph:
        """What the pages are about."""
        return generate_graph(self.size, self.seed)

    @cached_property
    def pages(self) -> tuple[Page, ...]:
        """The pages, with the sentences that state each fact."""
        return write_pages(self.graph, self.seed)

    @cached_property
    def encyclopedia(self) -> Encyclopedia:
        """The pages as they are searched."""
        return Encyclopedia([(page.title, page.text) for page in self.pages])

    def tasks(self, name: str) -> tuple[Task, ...]:
        """Return the tasks, kinds interleaved, each of which was solved by its reference on the pages."""
        made = [make_questions(self.graph, kind, self.questions, self.seed, self.is_solved) for kind in QUESTION_KINDS]
        interleaved = chain.from_iterable(zip_longest(*made))
        return tuple(self._task(name, question) for question in interleaved if question is not None)

    def is_solved(self, question: Question) -> bool:
        """Run the searches of a question and say whether they solve it.

        Each must be for words of the question or of a page that an earlier search returned, and return the page that
        holds the evidence; the answers must stand in what was returned, or in the evidence.
        """
        known = [normalized(" ".join(question.turns))]
        evidence = []
        for step in question.steps:
            wanted = normalized(step.query)
            if not any(wanted in text for text in known):
                return False
            texts = {page["title"]: page["text"] for page in self.encyclopedia.search(step.query)}
            sentences = [self._page_of[step.query].evidence[key] for key in step.evidence]
            if not all(sentence in texts.get(step.query, "") for sentence in sentences):
                return False
            evidence += sentences
            known += [self._normalized_page(title) for title in texts]
        read_so_far = normalized(" ".join(evidence))
        # Of the searched subjects themselves the evidence may only say "she" or "the novel".
        return all(
            normalized(answer) in read_so_far or answer in {step.query for step in question.steps}
            for answer in question.answers
        )

    @cached_property
    def _page_of(self) -> Mapping[str, Page]:
        return {page.title: page for page in self.pages}

    def _normalized_page(self, title: str) -> str:
        if title not in self._normalized:
            self._normalized[title] = normalized(self._page_of[title].text)
        return self._normalized[title]

    @cached_property
    def _normalized(self) -> dict[str, str]:
        return {}

    def _task(self, name: str, question: Question) -> Task:
        form = _FORMS.get(question.kind, "one")
        right = [_wordings(answer) for answer in question.answers]
        return question_task(
            name,
            question.kind,
            question.turns,
            right[0] if form == "one" else [one[0] if len(one) == 1 else one for one in right],
            [step.query for step in question.steps],
            form=form,
            queries=json.loads(json.dumps(question.queries)),
            evidence=[[self._page_of[step.query].evidence[key] for key in step.evidence] for step in question.steps],
        )


def _wordings(answer: str) -> list[str]:
    return [answer, answer.removeprefix("River ")] if answer.startswith("River ") else [answer]


def pages_lines() -> bytes:
    """Generate the JSON Lines of pages-v1 by its recipe."""
    recipe = Recipe(PAGES_SIZE, PAGES_SEED, PAGES_QUESTIONS)
    return b"".join(encode_json_line(task.to_mapping()) for task in recipe.tasks(PAGES_VERSION))


@lru_cache(maxsize=1)
def pages_v1() -> PagesWorld:
    """Return the pages world that ships.

    Raises:
        AssertionError: Its bytes are not those of the release.
    """
    data = gzip.decompress(resources.files("resilisim.worlds.pages").joinpath(PAGES_FILE).read_bytes())
    if content_hash(data) != PAGES_SHA256:
        raise AssertionError(f"{PAGES_FILE} has SHA-256 {content_hash(data)}, expected {PAGES_SHA256}: reinstall")
    tasks = [Task.from_trusted_mapping(json.loads(line)) for line in data.splitlines()]
    return PagesWorld(PAGES_VERSION, tasks, _encyclopedia_v1)


def _encyclopedia_v1() -> Encyclopedia:
    made = Recipe().encyclopedia
    digest = encyclopedia_hash(made)
    if digest != ENCYCLOPEDIA_SHA256:
        raise AssertionError(f"the pages of {PAGES_VERSION} have SHA-256 {digest}, expected {ENCYCLOPEDIA_SHA256}")
    return made


def encyclopedia_hash(encyclopedia: Encyclopedia) -> str:
    """Return the SHA-256 of the pages, titles and texts, in their order."""
    return content_hash(encode_json_line([list(page) for page in encyclopedia.pages]))


def generated_world(options: str = "") -> PagesWorld:
    """Return a world of another size or seed, such as `pages:size=120,seed=7,questions=20`.

    Args:
        options: Fields of `Recipe`, with commas between them.

    Raises:
        InvalidInputError: An option is unknown or out of range.
    """
    where = f"world {f'pages:{options}'!r}"
    recipe = numbers_by_name(Recipe, options, where)
    name = f"pages:size={recipe.size},seed={recipe.seed},questions={recipe.questions}"
    return PagesWorld(name, recipe.tasks(name), lambda: recipe.encyclopedia)


def guess_rates(tasks: Sequence[Task]) -> dict[str, float]:
    """Return for each kind of question the share that the most frequent answer of the kind gets right.

    It is what a reader without tools gets who knows all answers but not the questions: of one answer and of each turn
    of a conversation the share of exact matches, of a list the mean recall of its most frequent member.

    Example:
        >>> from resilisim.worlds.pages import guess_rates
        >>> from resilisim.worlds.pages.world import question_task
        >>> guess_rates([question_task("w", "bridge", [f"{n}?"], [answer], ["x"]) for n, answer in enumerate("aab")])
        {'bridge': 0.6666666666666666}
    """
    weights: dict[str, dict[str, float]] = {}
    sizes: Counter[str] = Counter()
    for task in tasks:
        right = task.metadata["right"]
        answers = right[:1] if task.metadata["form"] == "one" else right
        weight = 1.0 / len(answers) if task.metadata["form"] == "list" else 1.0
        sizes[task.task_type] += 1 if task.metadata["form"] == "list" else len(answers)
        counts = weights.setdefault(task.task_type, defaultdict(float))
        for answer in answers:
            counts[answer if isinstance(answer, str) else answer[0]] += weight
    return {kind: max(counts.values()) / sizes[kind] for kind, counts in weights.items()}
