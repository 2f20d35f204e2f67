"""Prices."""

from __future__ import annotations

import json

import pytest

from resilisim.chat import ChatReply, Price, PriceTable, TokenUsage
from resilisim.errors import InvalidInputError

USAGE = TokenUsage(2_000_000, 500_000)


def table(tmp_path, value):
    path = tmp_path / "prices.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return PriceTable.read(path)


def test_costs_follow_the_table(tmp_path):
    prices = table(
        tmp_path,
        {
            "openai:a": {"prompt": 0.15, "completion": 0.6, "cached_prompt": 0.05},
            "openai:b": {"prompt": 1, "completion": 2},
        },
    )
    assert prices.cost("openai:a", USAGE) == pytest.approx(2 * 0.15 + 0.5 * 0.6)
    assert prices.cost("openai:a", USAGE, cached_prompt_tokens=1_000_000) == pytest.approx(0.15 + 0.05 + 0.3)
    assert prices.cost("openai:b", USAGE, cached_prompt_tokens=1_000_000) == pytest.approx(3.0)
    assert prices.cost("openai:c", USAGE) is None


def test_what_runs_here_and_what_was_kept_costs_nothing():
    prices = PriceTable({"openai:a": Price(1.0, 1.0)})
    for name in ("local", "local:model.gguf", "scripted", "scripted:replies.jsonl"):
        assert prices.cost(name, USAGE) == 0.0
    assert prices.cost("localhost", USAGE) is None
    assert prices.cost_of_reply("openai:a", ChatReply("x", usage=USAGE)) == pytest.approx(2.5)
    assert prices.cost_of_reply("openai:a", ChatReply("x", usage=USAGE, from_cache=True)) == 0.0
    assert PriceTable({"local": Price(1.0, 0.0)}).cost("local", USAGE) == 2.0  # whoever wants to count electricity


def test_a_model_without_price_is_told_with_the_name_that_resembles_it():
    prices = PriceTable({"gpt-4o-mini": Price(1.0, 1.0)})
    assert prices.gap("openai:gpt-4o-mini") == (
        "no price of 'openai:gpt-4o-mini' is known: did you mean it by 'gpt-4o-mini'?"
    )
    assert PriceTable().gap("openai:x") == "no price of 'openai:x' is known"
    assert prices.gap("gpt-4o-mini") is prices.gap("local") is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("{", "not valid JSON at column 2"),
        ([], "got []; expected an object"),
        ({"openai:a": 1}, "'openai:a': got 1; expected an object with prompt, completion, cached_prompt"),
        ({"openai:a": {"prompt": 1}}, "'openai:a', field 'completion': is missing; expected a number"),
        ({"openai:a": {"promt": 1, "completion": 1}}, "'openai:a': unknown field 'promt': did you mean 'prompt'?"),
        (
            {"openai:a": {"prompt": -1, "completion": 1}},
            "got -1; expected a number, at least 0 and at most 1,000,000 (US dollars",
        ),
        ({"openai:a": {"prompt": True, "completion": 1}}, "field 'prompt': got true"),
        ({"openai:a": {"prompt": "1", "completion": 1}}, "field 'prompt': got \"1\""),
        ({"openai:a": {"prompt": 10**400, "completion": 1}}, "a whole number of 401 digits"),
        ('{"openai:a": {"prompt": NaN, "completion": 1}}', "NaN is not a finite number"),
        ('{"openai:a": {"prompt": 1e999, "completion": 1}}', "1e999 is not a finite number"),
        ('{"a": {"prompt": 1, "completion": 1}, "a": {}}', "key 'a' stands twice"),
    ],
)
def test_wrong_tables_are_refused_in_one_line(tmp_path, value, words):
    with pytest.raises(InvalidInputError) as caught:
        table(tmp_path, value)
    assert words in str(caught.value)
    assert "prices.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_table_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="does not exist"):
        PriceTable.read(tmp_path / "prices.json")
