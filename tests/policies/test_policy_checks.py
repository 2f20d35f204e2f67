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


@pytest.mark.parametrize("name", ["random", "plan-follower", "repairing-follower", "exact-optimum"])
def test_shipped_policies_pass(name):
    assert check_policy(make_policy(name)) == []


@pytest.mark.parametrize("good", [policy(lambda info: None), policy(peek, privileged=True)])
def test_good_policies_pass(good):
    assert check_policy(good) == []


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
    assert message in check_policy(faulty)[0]


def test_every_fault_of_shape_is_listed():
    assert len(check_policy(object())) == 2
    assert len(check_policy(MISDECLARED)) == 2


def test_sampling_policies_may_be_let_through():
    assert check_policy(REMEMBERING, deterministic=False) == []


def test_the_stand_in_search_ranks_by_common_words():
    search = CommonWordSearch(default_library())
    assert search("file operations reader", 5)[0].name == "file_operations_reader"
    assert search("network fetcher", 1)[0].name == "network_fetcher"
    assert [hit.name for hit in search("?", 2)] == list(default_library().names[:2])
