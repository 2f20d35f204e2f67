"""Libraries made by rules: the 30 that ship, other sizes, words of one's own, and drawn dependencies."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from resilisim.envs.random_libraries import random_settings
from resilisim.errors import InvalidInputError
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.tool_library.generator import (
    GENERATOR_VERSION,
    WINDOW,
    generate_library,
    read_vocabulary,
    shipped_vocabulary,
)
from resilisim.tool_library.tool import SEMANTIC_TYPES

OWN = """
categories:
  hr: [reader, parser, checker, exporter, ranker, sender]
  billing: [fetcher, aggregator, notifier]
subjects: [travel]
about: {hr: human resources}
operations:
  checker: {like: validator, purpose: "Checks {subject} forms.", after: [parser]}
  exporter: {like: writer}
  courier: {like: poster}
  sender: {like: courier}
  ranker:
    purpose: Ranks {subject} entries.
    after: [checker, predictor]
    home: computation
    parameters: [{name: top, type: integer, default: 3}]
    returns: [{name: ranking, type: array}]
    errors: [{code: TOO_FEW, description: Nothing to rank.}]
tools:
  billing_fetcher: {detail: "Asks the ledger.", after: [hr_reader]}
"""


def own(tmp_path: Path, text: str = OWN) -> Path:
    file = tmp_path / "words.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_the_thirty_are_what_the_rules_make_byte_for_byte() -> None:
    # If this fails after a change of the vocabulary: `resilisim tools generate` writes the library anew.
    made = generate_library(seed=5)
    assert made is not default_library()
    assert made.to_json() == default_library().to_json()


@pytest.mark.parametrize("size", [1, 5, 17, 29, 31, 64, 300])
def test_any_size_evenly_spread_with_all_texts_distinct(size: int) -> None:
    library = generate_library(size, seed=3)
    assert len(library) == size
    assert len({tool.description for tool in library}) == size
    assert not [tool.name for tool in library if "{" in tool.description or not tool.differentiation.usage_keywords]
    assert generate_library(size, seed=3) == library
    assert ToolLibrary.from_json(library.to_json()) == library
    counts = Counter(tool.category for tool in library)
    if size <= 30:
        assert max(counts.values()) - min(counts.values()) <= 1
        assert set(library.names) <= set(default_library().names)
    else:
        assert library.names[:30] == default_library().names
        assert {counts[category] for category in list(counts)[6:-1]} <= {5}
    assert generate_library(size, seed=4) != library


def test_dependencies_follow_the_operations_and_stay_in_the_category_where_they_can() -> None:
    library = generate_library(300, seed=1)
    before = {name: set(entry.after or ()) for name, entry in shipped_vocabulary().operations.items()}
    before["validator"] |= {"fetcher"}  # that of the network
    shipped = shipped_vocabulary().categories
    at_home = abroad = 0
    for tool in library:
        for name in tool.dependencies:
            other = library[name]
            assert other.operation in before[tool.operation]
            own_ones = [one for one in library if (one.category, one.operation) == (tool.category, other.operation)]
            assert other.category == tool.category or (other.category in shipped and not own_ones)
            at_home += other.category == tool.category
            abroad += other.category != tool.category
    assert (at_home, abroad) == (154, 7)
    assert max(tool.dependency_metadata.level for tool in library) == 3
    # Shared parameters and errors come with the operation, whatever the category is called.
    fetcher = next(tool for tool in list(library)[30:] if tool.operation == "fetcher")
    names = [parameter.name for parameter in fetcher.parameters]
    assert names == [parameter.name for parameter in library["network_fetcher"].parameters]
    assert [error.code for error in fetcher.errors] == [error.code for error in library["network_fetcher"].errors]


def test_a_dependency_that_is_not_there_is_replaced_by_what_comes_before_it() -> None:
    full = default_library()
    smaller = [generate_library(12, seed=seed) for seed in range(20)]
    inherited = 0
    for library in smaller:
        for tool in library:
            direct = set(full.dependencies(tool.name))
            assert set(tool.dependencies) <= set(full.closure([tool.name])) | {"data_processing_validator"}
            inherited += bool(set(tool.dependencies) - direct)
    assert inherited > 5


def test_drawn_dependencies_and_reliabilities() -> None:
    library = generate_library(120, seed=2, dependencies="drawn", reliability=(0.6, 0.9))
    for place, tool in enumerate(library):
        assert len(tool.dependencies) <= 3
        assert all(place - WINDOW <= library.index(name) < place for name in tool.dependencies)
    chances = {tool.success_probability for tool in library}
    assert len(chances) == 4
    assert 0.6 <= min(chances) < max(chances) <= 0.9  # type: ignore[type-var]
    assert {tool.name for tool in library} == set(generate_library(120, seed=2, dependencies="drawn").names)


def test_words_of_ones_own(tmp_path: Path) -> None:
    words = read_vocabulary(own(tmp_path))
    library = generate_library(vocabulary=words)
    assert library.names[:5] == ("hr_reader", "hr_parser", "hr_checker", "hr_exporter", "hr_ranker")
    checker, ranker = library["hr_checker"], library["hr_ranker"]
    assert checker.original_description == "Checks human resources forms."
    assert (checker.operation, checker.semantic_type) == ("validator", "processors"), "its role is that of a validator"
    assert [parameter.name for parameter in checker.parameters] == ["data", "schema", "options"]
    # An analyzer comes before a predictor, parser and aggregator before that: none but the last two are here.
    assert ranker.dependencies == ("hr_checker", "hr_parser", "billing_aggregator")
    assert [parameter.name for parameter in ranker.parameters] == ["precision", "top", "options"]
    assert [value.name for value in ranker.returns] == ["success", "ranking", "metadata"]
    assert [error.code for error in ranker.errors][-3:] == ["OVERFLOW", "TOO_FEW", "DEPENDENCY_ERROR"]
    assert library.outputs == {"hr_exporter", "hr_sender", "billing_notifier"}
    assert library["billing_fetcher"].dependencies == ("hr_reader",)
    assert library["billing_fetcher"].description == (
        "Fetches billing data over the network from a web API. Asks the ledger."
    )
    sender = library["hr_sender"]
    assert (sender.operation, sender.semantic_type) == ("poster", "outputs")
    assert "NETWORK_ERROR" in [error.code for error in sender.errors], "its home is that of what it is like"
    larger = generate_library(14, seed=1, vocabulary=words)
    assert {tool.category for tool in larger} == {"hr", "billing", "travel"}
    with pytest.raises(InvalidInputError, match=r"has words for 18 tools"):
        generate_library(19, vocabulary=words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("categories: {hr: [raeder]}", "did you mean 'reader'?"),
        ("operations: {ranker: {after: [parser]}}\ncategories: {a: [ranker]}", "field 'purpose': is missing"),
        ("operations: {a: {like: b}, b: {like: a}}\ncategories: {x: [a]}", "a circle, a -> b -> a"),
        ("operations: {parser: {afther: [reader]}}", "unknown field 'afther': did you mean 'after'?"),
        ("operations: {parser: {after: [reeder]}}", "did you mean 'reader'?"),
        ("operations: {parser: {after: [analyzer]}}", "dependency cycle"),
        ("operations: {parser: {parameters: [{name: x, type: text}]}}", "unknown type 'text'"),
        ("tools: {network_fetch: {detail: x}}", "did you mean 'network_fetcher'?"),
        ("about: {netwrk: x}", "did you mean 'network'?"),
        ("schema: resilisim-tools-1", "expected 'resilisim-vocabulary-1'"),
        ("[]", "expected an object"),
    ],
)
def test_what_is_wrong_with_words_is_said_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        generate_library(vocabulary=read_vocabulary(own(tmp_path, text)))
    assert words in str(refusal.value)
    assert "words.yaml" in str(refusal.value)


def test_arguments_out_of_range_are_refused() -> None:
    for arguments, words in (
        ({"size": 0}, "size"),
        ({"size": 5000}, "has words for 2,350 tools"),
        ({"seed": -1}, "seed"),
        ({"reliability": (0.9, 0.6)}, "expected 0.001 <= lowest"),
        ({"dependencies": "rule"}, "did you mean 'rules'?"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            generate_library(**arguments)  # type: ignore[arg-type]


def test_every_operation_has_a_role_of_the_papers_or_none() -> None:
    roles = {operation for operations in SEMANTIC_TYPES.values() for operation in operations}
    words = shipped_vocabulary()
    matrix = [operation for operations in words.categories.values() for operation in operations]
    assert set(matrix) == set(words.operations)
    assert (
        roles - set(matrix)
        == {"combiner", "merger", "exporter"}
        == {alias for entry in words.operations.values() for alias in entry.aliases or ()}
    )


def test_what_is_drawn_is_frozen() -> None:
    # Another hash is another version of the generator: raise GENERATOR_VERSION.
    assert GENERATOR_VERSION == 1
    assert generate_library(100, seed=7).content_hash[:12] == "2b03ce150f88"
    drawn = generate_library(20, seed=7, dependencies="drawn", reliability=(0.6, 0.98))
    assert drawn.content_hash[:12] == "26a0557ebabd"


def test_libraries_for_training_are_drawn_by_the_same_generator() -> None:
    library = random_settings("shared", 0, 1, num_tools=40).options.resolved_library()
    assert all(len(tool.dependencies) <= 3 for tool in library)
    assert len({tool.success_probability for tool in library}) in (1, 4)
