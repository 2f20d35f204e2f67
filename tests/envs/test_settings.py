"""The options of Conversation-v0, declared once."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import fields
from typing import get_args, get_type_hints

import numpy as np
import pytest

from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.settings import EnvironmentOptions, EnvironmentSettings, Search
from resilisim.errors import InvalidInputError
from resilisim.options import options_of
from resilisim.provenance import content_hash
from resilisim.simulator import EndRules, Law, RateLimit, load_law
from resilisim.tool_library import default_library
from resilisim.tool_library.retrieval import SEARCHES, default_retriever


def test_defaults_are_those_of_the_benchmark():
    settings = EnvironmentSettings()
    assert (settings.failure_model(), settings.rules()) == (Law(), EndRules())


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


LIMITED = {"base": 0.9, "rate_limit": {"calls": 2, "window": 5}}


def test_a_law_is_a_name_a_file_a_mapping_or_itself(tmp_path):
    path = tmp_path / "limited.json"
    path.write_text(json.dumps(LIMITED))
    law = Law(base=0.9, rate_limit=RateLimit(2, 5))
    found = [EnvironmentSettings(law=source) for source in (str(path), path, LIMITED, law)]
    path.unlink()  # read once, wherever the settings travel
    assert [settings.failure_model() for settings in found] == [law] * 4
    assert len(set(found)) == 1
    assert pickle.loads(pickle.dumps(found[0])).with_options(max_turns=8).failure_model() == law
    assert found[0].planning_law() == Law(base=0.9)
    assert EnvironmentSettings(law="meaningful-errors").failure_model() == load_law("meaningful-errors")


def test_manifests_hold_a_law_with_parts_as_a_whole_and_another_by_its_constants():
    settings = EnvironmentSettings(law=LIMITED)
    plain = EnvironmentSettings().to_mapping()
    constants = ("base", "not_executed", "failed", "history")
    rest = {name: value for name, value in plain.items() if name not in constants}
    assert settings.to_mapping() == {**rest, "law": settings.failure_model().to_mapping()}
    assert EnvironmentSettings(**settings.to_mapping()) == settings
    for without_parts in ({"base": 0.7}, Law(base=0.7), {"base": 0.7, "name": "mine"}):
        assert EnvironmentSettings(law=without_parts) == EnvironmentSettings(base=0.7)
    assert EnvironmentSettings(law="benchmark") == EnvironmentSettings()


@pytest.mark.parametrize(("law", "offered"), [("rate-limits", True), ("outages", True), ("meaningful-errors", False)])
def test_waiting_is_offered_where_it_can_help(law, offered):
    assert EnvironmentSettings(law=law).offers_wait is offered
    assert not EnvironmentSettings().offers_wait


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
    several = ("force", "fails_by", "once")
    assert {hints[name] for name in several} == {tuple[str, ...]}
    taken = {**hints, **dict.fromkeys(several, Sequence[str])}  # which are kept as tuples
    assert get_type_hints(EnvironmentOptions) == {name: taken[name] for name in names}
    assert all(found.option.help.endswith(".") for found in options_of(EnvironmentSettings).values())


def test_numbers_become_plain_and_options_replace_those_of_settings():
    settings = EnvironmentSettings(max_turns=np.int64(3), base=np.float32(0.5), failed=1)
    assert [type(value) for value in (settings.max_turns, settings.base, settings.failed)] == [int, float, float]
    env = ConversationEnv(settings, failed=0.25)
    assert env.settings == settings.with_options(failed=0.25)
    assert env.law == Law(base=0.5, failed=0.25)
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
        ({"law": "meaningful-eror"}, "there is no law 'meaningful-eror': did you mean 'meaningful-errors'?"),
        ({"law": 3}, "law is 3: expected the name of a law or the path of a file"),
        ({"law": {"rate_limit": {"calls": 0, "window": 2}}}, "field 'calls': got 0; expected a whole number"),
        (
            {"law": "rate-limits", "failed": 0.5},
            "failed is 0.5 beside the law 'rate-limits': expected one or the other",
        ),
        ({"errors": "transent"}, "unknown errors option 'transent': did you mean 'transient'"),
        ({"salt": None}, "salt is None: expected a text"),
        ({"max_trns": 3}, "unexpected keyword argument 'max_trns': did you mean 'max_turns'"),
    ],
)
def test_what_no_option_takes_is_refused(options, words):
    with pytest.raises(InvalidInputError, match=words):
        ConversationEnv(**options)
