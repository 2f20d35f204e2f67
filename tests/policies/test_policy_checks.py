"""The conformance check finds what is wrong with a policy, and passes every shipped one."""

from __future__ import annotations

import itertools

import pytest

from resilisim.policies import make_policy
from resilisim.policies.checks import CommonWordSearch, check_policy
from resilisim.tool_library import default_library


def policy(act=lambda info: "<finish/>", reset=lambda: None, **attributes):
    """Return a policy that answers by a function of the info."""
    methods = {"reset": lambda self, observation, info: reset(), "act": lambda self, observation, info: act(info)}
    return type("Made", (), methods | attributes)()


CALLS = itertools.count()


def peek(info):
    return f"<tool_call>{info['required_tools'][0]}</tool_call>"


def meddle(info):
    info["turns_left"] = 99
    return "<finish/>"


def fail():
    raise KeyError("weights\nmissing")


REMEMBERING = policy(lambda info: f"<tool_search>search {next(CALLS)}</tool_search>")
MISDECLARED = policy(privileged="yes", name="")


SHIPPED = [make_policy(name) for name in ("random", "plan-follower", "repairing-follower", "exact-optimum")]


@pytest.mark.parametrize("good", [*SHIPPED, policy(lambda info: None), policy(peek, privileged=True)])
def test_good_policies_pass_and_sampling_ones_may_be_let_through(good):
    assert check_policy(good) == []
    assert check_policy(REMEMBERING, deterministic=False) == []


@pytest.mark.parametrize(
    ("faulty", "message"),
    [
        (object(), "no method reset()"),
        (
            REMEMBERING,
            "the same episode (baseline prompt, seed 0) gave other messages the second time, from message 1",
        ),
        (policy(meddle), "act changed the info"),
        (policy(reset=fail), "reset raised KeyError: 'weights\\nmissing'"),
        (policy(peek), "act raised KeyError: 'required_tools'"),
        (policy(lambda info: 3), "act returned a int: expected a text, or None to stop"),
        (policy(lambda info: "x" * 1_000_001), "act returned 1,000,001 characters"),
        (MISDECLARED, "attribute privileged is 'yes': expected True or False"),
    ],
    ids=range(8),
)
def test_faults_are_found(faulty, message):
    found = check_policy(faulty)
    assert message in found[0]
    assert len(found) == 2 or faulty is not MISDECLARED, "every fault of shape is listed"


def test_the_stand_in_search_ranks_by_common_words():
    search = CommonWordSearch(default_library())
    assert search("file operations reader", 5)[0].name == "file_operations_reader"
    assert search("network fetcher", 1)[0].name == "network_fetcher"
    assert [hit.name for hit in search("?", 2)] == list(default_library().names[:2])
