"""The conformance check finds what is wrong with a policy, and passes every shipped one."""

from __future__ import annotations

import itertools

import pytest

from resilisim.policies import make_policy
from resilisim.policies.checks import CommonWordSearch, check_policy
from resilisim.tool_library import default_library


class Base:
    def reset(self, observation, info):
        pass

    def act(self, observation, info):
        return "<finish/>"


class Minimal:
    """The minimal policy of the protocol's docstring."""

    def reset(self, observation, info):
        self.done = False

    def act(self, observation, info):
        execution = info.get("execution")
        self.done = self.done or (execution is not None and execution["success"])
        return "<finish/>" if self.done else "<tool_call>file_operations_reader</tool_call>"


class Stopping(Base):
    def act(self, observation, info):
        return None


class Remembering(Base):
    calls = itertools.count()

    def act(self, observation, info):
        return f"<tool_search>search {next(self.calls)}</tool_search>"


class Meddling(Base):
    def act(self, observation, info):
        info["turns_left"] = 99
        return "<finish/>"


class Raising(Base):
    def reset(self, observation, info):
        raise KeyError("weights\nmissing")


class Peeking(Base):
    def act(self, observation, info):
        return f"<tool_call>{info['required_tools'][0]}</tool_call>"


class Privileged(Peeking):
    privileged = True


class Numeric(Base):
    def act(self, observation, info):
        return 3


class Endless(Base):
    def act(self, observation, info):
        return "x" * 1_000_001


class Misdeclared(Base):
    privileged = "yes"
    name = ""


@pytest.mark.parametrize("name", ["random", "plan-follower", "repairing-follower", "exact-optimum"])
def test_shipped_policies_pass(name):
    assert check_policy(make_policy(name)) == []


@pytest.mark.parametrize("policy", [Minimal(), Stopping(), Privileged()])
def test_good_policies_pass(policy):
    assert check_policy(policy) == []


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (object(), "no method reset()"),
        (
            Remembering(),
            "the same episode (baseline prompt, seed 0) gave other messages the second time, from message 1",
        ),
        (Meddling(), "act changed the info"),
        (Raising(), "reset raised KeyError: 'weights\\nmissing'"),
        (Peeking(), "act raised KeyError: 'required_tools'"),
        (Numeric(), "act returned a int: expected a text, or None to stop"),
        (Endless(), "act returned 1,000,001 characters"),
        (Misdeclared(), "attribute privileged is 'yes': expected True or False"),
    ],
)
def test_faults_are_found(policy, message):
    problems = check_policy(policy)
    assert problems
    assert message in problems[0]


def test_every_fault_of_shape_is_listed():
    assert len(check_policy(object())) == 2
    assert len(check_policy(Misdeclared())) == 2


def test_sampling_policies_may_be_let_through():
    assert check_policy(Remembering(), deterministic=False) == []


def test_the_stand_in_search_ranks_by_common_words():
    search = CommonWordSearch(default_library())
    assert search("file operations reader", 5)[0].name == "file_operations_reader"
    assert search("network fetcher", 1)[0].name == "network_fetcher"
    assert [hit.name for hit in search("?", 2)] == list(default_library().names[:2])
