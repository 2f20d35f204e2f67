"""Tool libraries made by rules, without a language model (seed 004, sections 3.1 and C.1.1).

A **vocabulary** lists categories with their operations; each pair is a tool, `{category}_{operation}`. Of an operation
it says what the tool does, what it takes, returns and fails with, and after which others it comes; of single tools,
what is otherwise. The 30 tools that ship are the pairs of the shipped vocabulary. Fewer are drawn evenly from its
categories. More get further categories, named by its subjects, each with a few drawn operations and those that come
before them.

Everything that is drawn is a function of the seed and of GENERATOR_VERSION, on every machine.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from resilisim.bounds import Count, Seed, checked
from resilisim.errors import InvalidInputError, unknown_name
from resilisim.inputs import read_text, validated
from resilisim.seeding import Draws
from resilisim.tool_library.library import LIBRARY_SCHEMA, ToolLibrary
from resilisim.tool_library.tool import (
    CATEGORY_ERROR_CODES,
    DEPENDENCY_ERROR,
    SEMANTIC_TYPES,
    Differentiation,
    standard_errors,
)
from resilisim.tool_library.tool_formats import MOST_TOOLS, read_document

GENERATOR_VERSION: Final = 1  # to be raised when anything here draws otherwise
VOCABULARY_SCHEMA: Final = "resilisim-vocabulary-1"
SUBJECT: Final = "{subject}"  # stands in texts for what a category is about
WINDOW: Final = 60  # tools before among which drawn dependencies lie
NUM_DEPENDENCIES: Final = (0, 0, 0, 0, 1, 1, 1, 2, 2, 3)  # drawn from
NUM_RELIABILITIES: Final = 4  # of a library: so few kinds of tools are solved exactly in large ones, too
TOOL_CATEGORIES: Final = (*CATEGORY_ERROR_CODES, "data_processing", "utility")
OPERATIONS: Final = tuple(operation for operations in SEMANTIC_TYPES.values() for operation in operations)

Cell = tuple[str, str]  # a category and an operation
Reliability = Callable[[float], float | None]  # of a tool, by a uniform number


@dataclass(frozen=True, slots=True)
class Operation:
    """What an operation gives its tools; of a single tool, what it has otherwise. None leaves it as it is.

    Attributes:
        purpose: One sentence, what the tool does.
        detail: What else its description says.
        differentiators: What tells it from its neighbours.
        keywords: The words people use for its work.
        after: Operations, or tools by their names, that come before it: its dependencies.
        aliases: Operations under whose names the tool is known, too.
        parameters: Its own, beside the shared ones; as in a library file.
        returns: What it returns beside the shared values; as in a library file.
        errors: What it fails with beside the errors of its home category; as in a library file.
        like: Another operation, from which it has all that is not said here, its role in a flow of data included.
        home: The shipped category whose errors and shared parameters it has where it stands in another one.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    purpose: str | None = None
    detail: str | None = None
    differentiators: tuple[str, ...] | None = None
    keywords: tuple[str, ...] | None = None
    after: tuple[str, ...] | None = None
    aliases: tuple[str, ...] | None = None
    parameters: tuple[Mapping[str, Any], ...] | None = None
    returns: tuple[Mapping[str, Any], ...] | None = None
    errors: tuple[Mapping[str, Any], ...] | None = None
    like: str | None = None
    home: str | None = None

    def under(self, other: Operation) -> Operation:
        """Return this with what the other one says in place of it."""
        said = {entry.name: getattr(other, entry.name) for entry in dataclasses.fields(other)}
        return dataclasses.replace(self, **{name: value for name, value in said.items() if value is not None})


@dataclass(frozen=True, slots=True)
class SharedParameter:
    """A parameter, and which tools have it: those of some operations, or of some home categories but for some."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    parameter: Mapping[str, Any]
    operations: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    but: tuple[str, ...] = ()
    last: bool = False  # behind the tool's own ones


@dataclass(frozen=True, slots=True)
class SharedReturn:
    """A value that every tool returns, before its own ones or behind them."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    value: Mapping[str, Any]
    last: bool = False


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What libraries are made of.

    Attributes:
        categories: The operations of each category, in the order of the tools.
        subjects: What further categories are about, where a library has more tools than these.
        about: What a category is about, in words, where that is not its name.
        parameters: Shared ones.
        returns: What every tool returns.
        operations: By name.
        tools: What single tools have otherwise than their operation, by the tools' names.
        source: What it is called in messages.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    categories: Mapping[str, tuple[str, ...]]
    subjects: tuple[str, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)
    parameters: tuple[SharedParameter, ...] = ()
    returns: tuple[SharedReturn, ...] = ()
    operations: Mapping[str, Operation] = field(default_factory=dict)
    tools: Mapping[str, Operation] = field(default_factory=dict)
    source: str = "vocabulary"

    def operation(self, name: str) -> Operation:
        """Return all that holds for an operation.

        Raises:
            InvalidInputError: It is unknown, or is like itself.
        """
        chain = self._chain(name)
        rules = Operation()
        for known in reversed(chain):
            rules = rules.under(self.operations[known])
        return rules

    def _chain(self, name: str) -> list[str]:
        """Return an operation, the one that it is like, and so on."""
        chain: list[str] = []
        waiting: str | None = name
        while waiting is not None:
            if waiting in chain:
                circle = " -> ".join([*chain, waiting])
                raise InvalidInputError(f"{self.source}: operation {name!r}, field 'like': a circle, {circle}")
            if waiting not in self.operations:
                raise unknown_name("operation", waiting, self.operations, self.source)
            chain.append(waiting)
            waiting = self.operations[waiting].like
        return chain

    def rules(self, category: str, operation: str) -> Operation:
        """Return all that holds for a tool."""
        rules = self.operation(operation).under(self.tools.get(f"{category}_{operation}", Operation()))
        if not rules.purpose:
            example = "expected a sentence, such as 'Parses {subject} data.', or 'like' with a known operation"
            raise InvalidInputError(f"{self.source}: operation {operation!r}, field 'purpose': is missing; {example}")
        return rules

    def home(self, category: str, operation: str) -> str:
        """Return the shipped category whose errors and shared parameters a tool has; its own if it has none."""
        shipped = shipped_vocabulary().categories
        if category in shipped:
            return category
        alike = self._chain(operation)
        homes = (home for name in alike for home, operations in shipped.items() if name in operations)
        return self.operation(operation).home or next(homes, category)

    def role(self, operation: str) -> str:
        """Return the operation whose role in a flow of data a tool has: the first with one that it is like."""
        return next((name for name in self._chain(operation) if name in OPERATIONS), operation)


@lru_cache(maxsize=1)
def shipped_vocabulary() -> Vocabulary:
    """Return the vocabulary of the 30 tools that ship."""
    text = resources.files("resilisim.tool_library").joinpath("data/vocabulary.json").read_text(encoding="utf-8")
    return _vocabulary(text, "the shipped vocabulary")


def read_vocabulary(path: str | Path) -> Vocabulary:
    """Read a vocabulary from a file (JSON or YAML); what it leaves out is as in the shipped one.

    Its `categories`, `subjects`, `parameters` and `returns` stand in the place of the shipped ones. Of an operation or
    a tool that the shipped one has, it says only what is otherwise.

    Raises:
        InvalidInputError: The file cannot be read or holds something else; one line says where and why.
    """
    text = read_text(Path(path), "vocabulary", "the path of a JSON or YAML file")
    shipped, own = shipped_vocabulary(), _vocabulary(text, str(path), {"categories": {}})
    words = dataclasses.replace(
        own,
        categories=own.categories or shipped.categories,
        subjects=own.subjects or shipped.subjects,
        parameters=own.parameters or shipped.parameters,
        returns=own.returns or shipped.returns,
        operations=_laid_over(shipped.operations, own.operations),
        tools=_laid_over(shipped.tools, own.tools),
    )
    _check_names(own, words)
    return words


def _vocabulary(text: str, source: str, more: Mapping[str, Any] | None = None) -> Vocabulary:
    value = read_document(text, source)
    if isinstance(value, dict):
        schema = value.pop("schema", VOCABULARY_SCHEMA)
        if schema != VOCABULARY_SCHEMA:
            raise InvalidInputError(f"{source}: schema {schema!r:.60} is not supported; expected {VOCABULARY_SCHEMA!r}")
        if "source" in value:
            raise unknown_name("field", "source", [entry.name for entry in dataclasses.fields(Vocabulary)][:-1], source)
        value = {**(more or {}), **value}
    return dataclasses.replace(validated(Vocabulary, value, source), source=source)


def _check_names(own: Vocabulary, words: Vocabulary) -> None:
    """Refuse a name that means nothing: it would be passed over in silence."""
    categories = {*words.categories, *words.subjects, *shipped_vocabulary().categories}
    tools = [f"{category}_{operation}" for category in sorted(categories) for operation in words.operations]
    said = [operation for operations in own.categories.values() for operation in operations]
    shared = [name for entry in own.parameters for name in (*entry.operations, *entry.but)]
    homes = [name for entry in own.parameters for name in entry.categories]
    homes += [entry.home for entry in own.operations.values() if entry.home]
    for what, names, known in (
        ("operation", (*said, *shared), words.operations),
        ("category", own.about, categories),
        ("home category", homes, shipped_vocabulary().categories),
        ("tool", own.tools, tools),
    ):
        for name in names:
            if name not in known:
                raise unknown_name(what, name, known, own.source)


def _laid_over(shipped: Mapping[str, Operation], own: Mapping[str, Operation]) -> dict[str, Operation]:
    return {name: shipped.get(name, Operation()).under(own.get(name, Operation())) for name in {**shipped, **own}}


def generate_library(
    size: int | None = None,
    *,
    seed: int = 0,
    vocabulary: Vocabulary | None = None,
    dependencies: Literal["rules", "drawn"] = "rules",
    reliability: tuple[float, float] | None = None,
) -> ToolLibrary:
    """Make a library by the rules of a vocabulary.

    Args:
        size: Number of tools; None makes one of each category and operation.
        seed: 0 to 2^63 - 1; what is drawn depends on it: which tools where the size says so, which of several tools one
            depends on, and whatever the next two arguments let be drawn.
        vocabulary: See `read_vocabulary`; None takes the shipped one.
        dependencies: "rules": a tool depends on those that its operation comes after, of its own category if that has
            them, else of one of the vocabulary's; and on what these come after where the library has none of them.
            "drawn": on up to three of the 60 tools before it, whatever they do.
        reliability: Lowest and highest success probability; each tool has one of four drawn between them. None leaves
            it to the law.

    Raises:
        InvalidInputError: An argument is out of range, the vocabulary has too few words for the size, or something in
            it is wrong.
    """
    words = shipped_vocabulary() if vocabulary is None else vocabulary
    draws = Draws("resilisim/generated library", GENERATOR_VERSION, checked(Seed, "seed", seed))
    cells = _cells(words, size if size is None else checked(Count, "size", size), draws)
    drawn_reliability = _reliability(draws, reliability)
    names = [f"{category}_{operation}" for category, operation in cells]
    if dependencies == "drawn":
        graph = list(drawn_graph(draws, len(cells), drawn_reliability))
        needed = [[names[place] for place in places] for places, _ in graph]
        chances = [chance for _, chance in graph]
    elif dependencies == "rules":
        needed = _needed(words, cells, draws)
        chances = [drawn_reliability(draws.uniform()) for _ in cells]
    else:
        raise unknown_name("kind of dependencies", dependencies, ("rules", "drawn"))
    tools = [
        {**_tool(words, *cell, names), "dependencies": others, "success_probability": chance}
        for cell, others, chance in zip(cells, needed, chances, strict=True)
    ]
    return ToolLibrary.from_json(json.dumps({"schema": LIBRARY_SCHEMA, "tools": tools}), source=words.source)


def random_library(draws: Draws, num_tools: int, reliability: Reliability) -> ToolLibrary:
    """Draw a library without words: dependencies, roles and reliabilities are all that there is to see.

    There is a validator and a tool that authenticates among them.
    """
    tools: list[dict[str, Any]] = [
        {
            "name": f"tool_{number}",
            "description": f"Tool {number}.",
            "dependencies": sorted(f"tool_{place}" for place in places),
            "success_probability": chance,
            "parameters": [{"name": "value", "type": "string", "required": False}],
        }
        for number, (places, chance) in enumerate(drawn_graph(draws, num_tools, reliability))
    ]
    operations = ["validator", "authenticator", *(draws.choice(OPERATIONS) for _ in range(num_tools - 2))]
    for tool, operation in zip(tools, draws.shuffled(operations), strict=False):
        tool["metadata"] = {"category": draws.choice(TOOL_CATEGORIES), "operation": operation}
    return ToolLibrary.from_json(json.dumps({"tools": tools}), source="random library")


def drawn_graph(
    draws: Draws, num_tools: int, reliability: Reliability
) -> Iterator[tuple[tuple[int, ...], float | None]]:
    """Draw for each tool the places of those that it depends on, all before its own, and its reliability."""
    for number in range(num_tools):
        wanted = min(number, draws.choice(NUM_DEPENDENCIES))
        places = {draws.between(max(0, number - WINDOW), number - 1) for _ in range(wanted)}
        yield tuple(sorted(places)), reliability(draws.uniform())


def one_of_few(draws: Draws, low: float, high: float) -> Reliability:
    """Draw a few reliabilities between two, of which each tool has one."""
    reliabilities = [rounded_between(draws, low, high) for _ in range(NUM_RELIABILITIES)]
    return lambda uniform: reliabilities[int(NUM_RELIABILITIES * uniform)]


def rounded_between(draws: Draws, low: float, high: float) -> float:
    """Draw a number between two, of three decimals."""
    return round(low + (high - low) * draws.uniform(), 3)


def _reliability(draws: Draws, bounds: tuple[float, float] | None) -> Reliability:
    if bounds is None:
        return lambda _: None
    low, high = bounds
    if not 0.001 <= low <= high <= 1.0:
        raise InvalidInputError(f"reliability: got {low:g} to {high:g}; expected 0.001 <= lowest <= highest <= 1")
    return one_of_few(draws, low, high)


def _cells(words: Vocabulary, size: int | None, draws: Draws) -> list[Cell]:
    """Return category and operation of each tool, the categories one after the other."""
    matrix = [(category, operation) for category, operations in words.categories.items() for operation in operations]
    for _, operation in matrix:
        words.operation(operation)
    size = len(matrix) if size is None else size
    if size <= len(matrix):
        drawn = set(_dealt(words, draws)[:size]) if size < len(matrix) else set(matrix)
        return [cell for cell in matrix if cell in drawn]
    subjects = [name for name in draws.shuffled(words.subjects) if name not in words.categories]
    num_operations = len({operation for _, operation in matrix})
    most = min(len(matrix) + num_operations * len(subjects), MOST_TOOLS)
    if size > most:
        raise InvalidInputError(f"size {size:,}: {words.source} has words for {most:,} tools; expected at most that")
    usual = round(len(matrix) / len(words.categories))
    each = max(usual, math.ceil((size - len(matrix)) / len(subjects)))
    cells = matrix
    for subject in subjects:
        operations = _flow(words, [operation for _, operation in _dealt(words, draws)], min(each, size - len(cells)))
        cells += [(subject, operation) for operation in operations]
    return cells


def _flow(words: Vocabulary, drawn: Sequence[str], wanted: int) -> list[str]:
    """Return so many operations in the order in which they were drawn, each with those that come before it."""
    flow: list[str] = []
    for operation in drawn:
        steps = [other for other in _before(words, operation, ()) if other not in flow]
        if len(flow) + len(steps) <= wanted:
            flow += steps
    alone = [operation for operation in dict.fromkeys(drawn) if operation not in flow]
    return [*flow, *alone[: wanted - len(flow)]]


def _before(words: Vocabulary, operation: str, passed: tuple[str, ...]) -> list[str]:
    """Return the operations that come before one, and it itself at the end."""
    earlier = [other for other in words.operation(operation).after or () if other in words.operations]
    chains = [_before(words, other, (*passed, operation)) for other in earlier if other not in passed]
    return list(dict.fromkeys([step for chain in chains for step in chain] + [operation]))


def _dealt(words: Vocabulary, draws: Draws) -> list[Cell]:
    """Return all pairs in a drawn order that takes one of each category by turns."""
    categories = draws.shuffled(list(words.categories))
    columns = [[(category, name) for name in draws.shuffled(words.categories[category])] for category in categories]
    return [cell for row in zip_longest(*columns) for cell in row if cell is not None]


def _needed(words: Vocabulary, cells: Sequence[Cell], draws: Draws) -> list[list[str]]:
    """Return the dependencies of each tool by the rules of the operations."""
    category_of = {f"{category}_{operation}": category for category, operation in cells}
    tools_of: dict[str, list[str]] = {}
    tools_like: dict[str, list[str]] = {}  # those that only have the role of an operation
    for category, operation in cells:
        tools_of.setdefault(operation, []).append(f"{category}_{operation}")
        tools_like.setdefault(words.role(operation), []).append(f"{category}_{operation}")

    def found(word: str, category: str, passed: tuple[str, ...]) -> list[str]:
        """Return the tools that a word of a rule means: one, or those that would come before it."""
        if word in category_of:
            return [word]
        known = [operation for operation in words.operations if word == operation or word.endswith(f"_{operation}")]
        if not known:
            raise unknown_name("operation", word, words.operations, f"{words.source}, field 'after'")
        operation = word if word in known else max(known, key=len)
        names = tools_of.get(operation) or tools_like.get(operation) or []
        own, general = ([name for name in names if category_of[name] in of] for of in ((category,), words.categories))
        names = own or general or names
        if names:
            return [names[0] if len(names) == 1 else draws.choice(names)]
        if operation in passed:
            return []
        before = words.operation(operation).under(words.tools.get(word, Operation())).after or ()
        return [name for other in before for name in found(other, category, (*passed, operation))]

    return [
        list(
            dict.fromkeys(
                name
                for word in words.rules(category, operation).after or ()
                for name in found(word, category, (operation,))
                if name != f"{category}_{operation}"
            )
        )
        for category, operation in cells
    ]


def _tool(words: Vocabulary, category: str, operation: str, names: Sequence[str]) -> dict[str, Any]:
    """Return a tool in the form of library files, without dependencies."""
    rules, home = words.rules(category, operation), words.home(category, operation)
    subject = words.about.get(category, category.replace("_", " "))

    def said(text: str) -> str:
        return text.replace(SUBJECT, subject)

    purpose = said(rules.purpose or "")
    role = words.role(operation)
    shared = [
        entry
        for entry in words.parameters
        if operation in entry.operations
        or role in entry.operations
        or (home in entry.categories and operation not in entry.but and role not in entry.but)
    ]
    own = rules.parameters or ()
    required = [parameter for parameter in own if parameter.get("required", parameter.get("default") is None)]
    aliases = [f"{category}_{other}" for other in rules.aliases or ()]
    codes = [code for code in standard_errors(home) if code.code != DEPENDENCY_ERROR]
    return {
        "name": f"{category}_{operation}",
        "description": f"{purpose} {said(rules.detail)}" if rules.detail else purpose,
        "original_description": purpose,
        "parameters": [
            *required,
            *(entry.parameter for entry in shared if not entry.last),
            *(parameter for parameter in own if parameter not in required),
            *(entry.parameter for entry in shared if entry.last),
        ],
        "returns": [
            *(entry.value for entry in words.returns if not entry.last),
            *(rules.returns or ()),
            *(entry.value for entry in words.returns if entry.last),
        ],
        "errors": [*(dataclasses.asdict(code) for code in codes), *(rules.errors or ())],
        "aliases": [alias for alias in aliases if alias not in names],
        "differentiation": dataclasses.asdict(
            Differentiation(
                purpose,
                tuple(map(said, rules.differentiators or ())),
                tuple(map(said, rules.keywords or ())),
            )
        ),
        "metadata": {"category": category, "operation": role},
    }
