"""The options of Conversation-v0, declared once."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args, get_type_hints

import numpy as np
import pytest

from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.settings import EnvironmentOptions, EnvironmentSettings, Search
from resilisim.errors import InvalidInputError
from resilisim.options import options_of
from resilisim.provenance import content_hash
from resilisim.simulator import BenchmarkLaw, EndRules
from resilisim.tool_library import default_library, default_retriever
from resilisim.tool_library.retrieval import SEARCHES


def test_defaults_are_those_of_the_benchmark():
    settings = EnvironmentSettings()
    assert (settings.failure_model(), settings.rules()) == (BenchmarkLaw(), EndRules())


def test_the_manifest_of_a_run_holds_the_options_as_it_always_has():
    # Runs of earlier versions go on and are compared by these names, in this order.
    assert content_hash(EnvironmentSettings().to_mapping()) == content_hash(
        {
            "base": 0.8,
            "not_executed": 0.5,
            "failed": 0.7,
            "history": 0.9,
            "max_turns": 10,
            "max_consecutive_failures": 5,
            "loop_length": 4,
            "planner": "auto",
            "parameters": "lenient",
            "search_detail": "brief",
            "payload": "compact",
            "tools": "discovery",
            "protocol": "text",
            "prompt_style": "full",
            "salt": "resilisim/evaluation",
            "embedding_model": None,
        }
    )
    lexical = EnvironmentSettings(search="lexical").to_mapping()
    assert lexical == {**EnvironmentSettings().to_mapping(), "search": "lexical"}
    assert EnvironmentSettings(**lexical).search == "lexical"
    assert EnvironmentSettings(errors="transient").to_mapping() == {
        **EnvironmentSettings().to_mapping(),
        "errors": "transient",
    }


def test_the_settings_choose_what_answers_searches():
    library = default_library()
    assert set(get_args(Search)) == set(SEARCHES)
    assert EnvironmentSettings().retriever(library) is default_retriever(library)
    assert EnvironmentSettings().search_many(library) is None  # the shipped numbers hold
    lexical = EnvironmentSettings(search="lexical")
    assert lexical.retriever(library) is default_retriever(library, "lexical")
    hits = default_retriever(library, "lexical").search("fetch the page")
    assert lexical.search_many(library)(["fetch the page"], 5) == [hits]


def test_every_field_is_an_option_and_a_keyword_of_the_same_type():
    names = [field.name for field in fields(EnvironmentSettings)]
    assert list(options_of(EnvironmentSettings)) == names
    hints = get_type_hints(EnvironmentSettings)
    assert get_type_hints(EnvironmentOptions) == {name: hints[name] for name in names}
    assert all(found.option.help.endswith(".") for found in options_of(EnvironmentSettings).values())


def test_numbers_become_plain_and_options_replace_those_of_settings():
    settings = EnvironmentSettings(max_turns=np.int64(3), base=np.float32(0.5), failed=1)
    assert [type(value) for value in (settings.max_turns, settings.base, settings.failed)] == [int, float, float]
    env = ConversationEnv(settings, failed=0.25)
    assert env.settings == settings.with_options(failed=0.25)
    assert env.law == BenchmarkLaw(0.5, failed=0.25)
    assert env.rules.max_turns == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"base": 2.0}, "base is 2.0: expected at least 0 and at most 1"),
        ({"base": "0.8"}, "base is '0.8': expected a number"),
        ({"history": True}, "history is True: expected a number"),
        ({"search": "lexicla"}, "unknown search 'lexicla': did you mean 'lexical'?"),
        (
            {"search": "lexical", "embedding_model": "a/b"},
            "embedding_model is 'a/b': expected none, the lexical search",
        ),
        ({"max_turns": 0}, "max_turns is 0: expected at least 1 and at most 10,000"),
        ({"max_turns": 5.0}, "max_turns is 5.0: expected a whole number"),
        ({"loop_length": 1}, "loop_length is 1: expected 0"),
        ({"parameters": "strit"}, "unknown parameter mode 'strit': did you mean 'strict'"),
        ({"tools": "some"}, "unknown tools option 'some': expected one of discovery, listed"),
        ({"errors": "transent"}, "unknown errors option 'transent': did you mean 'transient'"),
        ({"salt": None}, "salt is None: expected a text"),
        ({"max_trns": 3}, "unknown option 'max_trns': did you mean 'max_turns'"),
    ],
)
def test_what_no_option_takes_is_refused(options, words):
    with pytest.raises(InvalidInputError, match=words):
        ConversationEnv(**options)
