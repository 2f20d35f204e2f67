"""Options of LLM agents: values and their texts are read alike, and what is wrong is refused with one clear line."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from annotated_types import Ge, Le
from hypothesis import given
from hypothesis import strategies as st

from resilisim.bounds import Share
from resilisim.errors import InvalidInputError
from resilisim.options import option, options_of
from resilisim.policies.llm.agent_options import (
    AgentOptions,
    describe_options,
    read_options,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example(AgentOptions):
    """One option of every kind."""

    steps: Annotated[int, Ge(1), Le(100)] = option(20, "steps")
    budget: Annotated[int, Ge(1)] | None = option(None, "an upper limit")
    theta: Share = option(0.7, "threshold")
    penalty: float | None = option(None, "any number")
    ceiling: Annotated[float, Le(2.0)] = option(1.0, "bounded above")
    replanning: bool = option(True, "whether to plan anew")
    interpolation: str = option("scalars", "what is inserted", choices=("never", "scalars", "all"))
    title: str = option("untitled", "a text")
    note: str | None = option(None, "a text or none")


@pytest.mark.parametrize(
    ("name", "given_value", "read"),
    [
        ("steps", 7, 7),
        ("steps", "7", 7),
        ("steps", 7.0, 7),
        ("steps", "1e2", 100),
        ("budget", "none", None),
        ("budget", " None ", None),
        ("budget", 2**53 + 1, 2**53 + 1),
        ("theta", "0.8", 0.8),
        ("theta", 1, 1.0),
        ("penalty", "-1.5", -1.5),
        ("ceiling", -1000, -1000.0),
        ("replanning", False, False),
        ("replanning", "false", False),
        ("replanning", " OFF ", False),
        ("replanning", "1", True),
        ("replanning", "yes", True),
        ("interpolation", "all", "all"),
        ("title", Path("a") / "b", str(Path("a") / "b")),
        ("title", "none", "none"),
        ("note", "none", None),
        ("note", "kept", "kept"),
        ("max_llm_calls", "3", 3),
        ("temperature", "none", None),
        ("temperature", "0.6", 0.6),
    ],
)
def test_values_and_texts(name, given_value, read):
    options = read_options(Example, {name: given_value})
    assert getattr(options, name) == read
    assert type(getattr(options, name)) is type(read)
    others = {field.name: getattr(options, field.name) for field in dataclasses.fields(options) if field.name != name}
    assert others == {other: getattr(Example(), other) for other in others}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("steps", 0, "option steps is 0: expected at least 1 and at most 100"),
        ("steps", 1.5, "option steps is 1.5: expected a whole number"),
        ("steps", "many", "option steps is 'many': expected a whole number"),
        ("steps", True, "option steps is True: expected a whole number"),
        ("steps", "none", "option steps is 'none': expected a whole number"),
        ("steps", "1\n2", r"option steps is '1\n2'"),
        ("steps", 10**400, "expected at least 1 and at most 100"),
        ("steps", "9" * 5000, "expected a whole number"),
        ("budget", 0, "option budget is 0: expected at least 1"),
        ("theta", 1.01, "option theta is 1.01: expected at least 0 and at most 1"),
        ("theta", "nan", "option theta is 'nan': expected a number"),
        ("theta", False, "option theta is False: expected a number"),
        ("ceiling", 3, "option ceiling is 3.0: expected at most 2"),
        ("replanning", "maybe", "option replanning is 'maybe': expected true or false"),
        ("replanning", 2, "option replanning is 2: expected true or false"),
        ("interpolation", "scalar", "unknown option interpolation 'scalar': did you mean 'scalars'?"),
        ("interpolation", 3, "option interpolation is 3: expected one of never, scalars, all"),
        ("title", 3, "option title is 3: expected a text"),
        ("max_total_tokens", "-1", "option max_total_tokens is -1: expected at least 1"),
        ("temperature", 2.1, "option temperature is 2.1: expected at least 0 and at most 2"),
        ("theda", 0.5, "unknown option 'theda' in policy 'example': did you mean 'theta'?"),
        ("max_llm_call", 5, "unknown option 'max_llm_call' in policy 'example': did you mean 'max_llm_calls'?"),
    ],
)
def test_what_is_refused_names_value_and_what_was_expected(name, value, message):
    with pytest.raises(InvalidInputError) as error:
        read_options(Example, {name: value}, "policy 'example'")
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def kept_as_text(name, value):
    """Whether the text of a value is another value: only the word for none."""
    return isinstance(value, str) and options_of(Example)[name].optional and value.strip().lower() == "none"


JUNK = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.lists(st.integers())


@given(st.sampled_from([field.name for field in dataclasses.fields(Example)]), JUNK)
def test_any_value_is_read_within_its_range_or_refused(name, value):
    try:
        read = getattr(read_options(Example, {name: value}), name)
    except InvalidInputError:
        return
    found = options_of(Example)[name]
    if read is None:
        assert found.optional
        return
    assert type(read) is found.kind
    assert found.bounds.least is None or read >= found.bounds.least
    assert found.bounds.most is None or read <= found.bounds.most
    assert not found.choices or read in found.choices
    assert getattr(read_options(Example, {name: read}), name) == read
    assert kept_as_text(name, read) or getattr(read_options(Example, {name: str(read)}), name) == read


def test_options_are_described_with_those_of_the_agent_first():
    described = describe_options(Example)
    own = {name for name, *_ in described} - {name for name, *_ in describe_options(AgentOptions)}
    assert {name for name, *_ in described[: len(own)]} == own
    assert ("theta", 0.7, "a number from 0 to 1", "threshold") in described
    assert ("interpolation", "scalars", "one of never, scalars, all", "what is inserted") in described
    assert all(help_text for *_, help_text in described)
