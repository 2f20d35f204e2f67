"""The random policy: uniform over tools, a function of its seed and of what it reads."""

from __future__ import annotations

from collections import Counter

import pytest

from resilisim.policies.scripted import RandomPolicy
from resilisim.tool_library import Tool, ToolLibrary
from tests.policies.drive import FINISH, drive, ran

LIBRARY = ToolLibrary([Tool(name, f"Does {name}.") for name in ("read_file", "parse", "write")])


def first_messages(count, **options):
    policy = RandomPolicy(library=LIBRARY, **options)
    return [drive(policy, f"prompt {number}", [])[0] for number in range(count)]


def test_shares_of_messages():
    counts = Counter(first_messages(4000))
    # Standard errors: 0.0034 for finishing (p = 0.05), 0.0017 or less for one search, 0.0071 for one tool.
    assert counts[FINISH] / 4000 == pytest.approx(0.05, abs=0.014)
    for tool in LIBRARY.names:
        assert counts[f"<tool_call>{tool}</tool_call>"] / 4000 == pytest.approx(0.85 / 3, abs=0.029)
        query = tool.replace("_", " ")
        assert counts[f"<tool_search>{query}</tool_search>"] / 4000 == pytest.approx(0.1 / 3, abs=0.012)
    assert len(counts) == 7


def test_the_same_episode_gives_the_same_messages():
    replies = [ran("read"), ran("parse", False)] * 4
    policy = RandomPolicy(library=LIBRARY)
    first = drive(policy, "prompt", replies)
    drive(policy, "another prompt", replies)
    assert drive(policy, "prompt", replies) == first
    assert drive(RandomPolicy(library=LIBRARY), "prompt", replies) == first
    assert drive(RandomPolicy(seed=1, library=LIBRARY), "prompt", replies) != first


def test_equal_replies_do_not_freeze_it():
    messages = drive(RandomPolicy(library=LIBRARY), "prompt", [ran("parse", False)] * 40, turns=99)
    assert len(set(messages)) > 3


def test_the_closing_message_finishes():
    assert drive(RandomPolicy(library=LIBRARY), "prompt", [ran("parse")] * 3, turns=3)[-1] == FINISH


def test_without_an_argument_it_plays_with_the_default_library():
    messages = [drive(RandomPolicy(), f"prompt {number}", [])[0] for number in range(300)]
    assert len({message for message in messages if "tool_call" in message}) == 30
