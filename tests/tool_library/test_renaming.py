"""Drawn names: a library stays what it is under them, and lessons hold no other names."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.datasets.rollout import TRAINING_ENVIRONMENT
from resilisim.errors import InvalidInputError
from resilisim.seeding import Draws
from resilisim.simulator import build_problem
from resilisim.simulator.exact import solve
from resilisim.simulator.problem import start_state
from resilisim.tasks import benchmark_tasks
from resilisim.tasks.split import split_of_task
from resilisim.tool_library import default_library
from resilisim.tool_library.generator import random_library
from resilisim.tool_library.renaming import drawn_names, renamed_library
from tests.datasets.rollout_tools import ConversationSpec, PreferenceSpec, source_of

LIBRARY = default_library()


@given(st.integers(min_value=0), st.sampled_from([None, 2, 40]))
def test_every_tool_has_a_name_of_its_own_and_stays_what_it_is(number, num_tools):
    library = LIBRARY if num_tools is None else random_library(Draws(number), num_tools, lambda uniform: uniform or 0.5)
    names = drawn_names(library, Draws("names", number))
    renamed = renamed_library(library, names)
    assert renamed.names == tuple(names[name] for name in library.names)
    assert not set(renamed.names) & set(library.names)
    for old, new in zip(library, renamed, strict=True):
        kept = replace(old, name=new.name, canonical_name=new.name, aliases=(), dependencies=(), equivalents=())
        assert replace(new, dependencies=(), equivalents=()) == kept
        assert new.dependencies == tuple(names[name] for name in old.dependencies)


@pytest.mark.long
def test_some_names_tell_what_tools_do_and_half_of_the_libraries_have_words_of_their_own():
    names = [drawn_names(LIBRARY, Draws(number)) for number in range(400)]
    telling = sum(found["file_operations_reader"][:4] in ("read", "file", "disk", "retu", "cont") for found in names)
    assert 70 < telling < 130  # a quarter is 100, with a standard deviation of 9
    told = Counter(word for found in names for name in found.values() for word in re.findall("[A-Z]?[a-z]+", name))
    assert sum(number == 1 for number in told.values()) > 9_000  # 200 libraries with 60 words each, few of them twice


def test_the_optimum_does_not_read_names():
    task = benchmark_tasks()[5]
    names = drawn_names(LIBRARY, Draws("optimum"))
    required = [names[name] for name in task.required_tools]
    problems = build_problem(LIBRARY, task.required_tools), build_problem(renamed_library(LIBRARY, names), required)
    values = [solve(problem).value(start_state(problem)) for problem in problems]
    assert values[0] == values[1] > 0.0


@pytest.mark.long
@pytest.mark.parametrize("spec", [ConversationSpec, PreferenceSpec])
def test_lessons_hold_the_drawn_names_and_nothing_of_the_old_ones(spec):
    environment = replace(TRAINING_ENVIRONMENT, search="lexical")
    share, tasks = 0.5, [task for task in benchmark_tasks()[:40] if split_of_task(task) == "train"]
    source = source_of(spec, prompts=("optimal", "baseline"), rename_tools=share, environment=environment)
    renamed = 0
    for task in tasks:
        records = list(source.records(task))
        texts = [message["content"] for record in records for message in record.get("messages") or record["prompt"]]
        is_renamed = not any(name in text for text in texts for name in LIBRARY.names)
        assert is_renamed or all(name not in text for text in texts for name in drawn_names(LIBRARY, Draws(0)).values())
        assert {record["split"] for record in records} <= {"train"}
        assert {record["instance_id"] for record in records} <= {task.instance_id}
        renamed += is_renamed
    assert 3 < renamed < len(tasks) - 3


def test_a_world_keeps_its_names_and_what_was_there_before_says_nothing_of_it():
    assert "rename_tools" not in ConversationSpec().arguments()
    assert ConversationSpec(rename_tools=0.5).arguments()["rename_tools"] == 0.5
    with pytest.raises(InvalidInputError, match=r"rename_tools is 0\.5 with a world: expected 0"):
        ConversationSpec(rename_tools=0.5, environment=replace(TRAINING_ENVIRONMENT, world="records-v1"))
