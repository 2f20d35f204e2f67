"""Policies by name: found, made with the right arguments, and refused with one clear line."""

from __future__ import annotations

import sys

import pytest

from resilisim.errors import InvalidInputError
from resilisim.policies import Policy, is_privileged, make_policy, policy_name, policy_names
from resilisim.policies.scripted import RandomPolicy
from resilisim.tool_library import Tool, ToolLibrary

BUILT_IN = ("random", "plan-follower", "repairing-follower", "exact-optimum")


class Quiet:
    """Stops at once."""

    def __init__(self, seed=0, **others):
        self.seed, self.others = seed, others

    def reset(self, observation, info):
        pass

    def act(self, observation, info):
        return None


class Holder:
    Nested = Quiet


class NoAct:
    def reset(self, observation, info):
        pass


class Failing:
    def __init__(self):
        raise RuntimeError("no weights\nin this folder")


class Leaving:
    def __init__(self):
        sys.exit("no weights here")


class LeavingSilently:
    def __init__(self):
        raise SystemExit


def quiet_factory(temperature=0.5):
    policy = Quiet()
    policy.temperature = temperature
    return policy


def nothing():
    return None


ready_policy = Quiet(seed=9)
number = 3
HERE = __name__


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_policies(name):
    policy = make_policy(name)
    assert isinstance(policy, Policy)
    assert policy_name(policy) == name
    assert is_privileged(policy) == (name == "exact-optimum")


def test_names_begin_with_the_built_in_ones():
    assert policy_names()[:5] == (*BUILT_IN, "trained")


def test_module_and_attribute():
    assert isinstance(make_policy(f"{HERE}:Quiet"), Quiet)
    assert isinstance(make_policy(f"{HERE}:Holder.Nested"), Quiet)
    assert make_policy(f"{HERE}:quiet_factory", temperature=0.1).temperature == 0.1
    assert make_policy(f"{HERE}:ready_policy") is ready_policy
    assert policy_name(ready_policy) == "Quiet"
    assert not is_privileged(ready_policy)


def test_arguments_are_demanded_and_offers_are_not():
    assert make_policy(f"{HERE}:Quiet", offered={"seed": 4, "library": None}).seed == 4
    assert make_policy(f"{HERE}:Quiet", offered={"seed": 4, "library": None}).others == {}
    assert make_policy(f"{HERE}:Quiet", offered={"seed": 4}, seed=5, depth=2).others == {"depth": 2}
    assert make_policy(f"{HERE}:quiet_factory", offered={"seed": 4}).temperature == 0.5
    library = ToolLibrary([Tool("only", "Only.")])
    policy = make_policy("random", offered={"library": library}, search_probability=0.0, finish_probability=0.0)
    policy.reset("prompt", {})
    assert policy.act("prompt", {"turns_left": 3}) == "<tool_call>only</tool_call>"


def test_a_policy_of_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "policy_lying_about.py").write_text(
        "class Mine:\n    reset = act = lambda self, observation, info: None\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert type(make_policy("policy_lying_about:Mine")).__name__ == "Mine"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("plan_follower", "unknown policy 'plan_follower': did you mean 'plan-follower'?"),
        ("nonsense", "a policy of your own is given as module:attribute"),
        ("plan_follower", "did you mean 'plan-follower'? A policy of your own is given as module:attribute"),
        ("random,plan-follower", "expected one policy; several are a list, or --policy given once for each"),
        ("no_such_module_here:Policy", "cannot import no_such_module_here: ModuleNotFoundError"),
        (f"{HERE}:Quit", "has no attribute 'Quit': did you mean 'Quiet'?"),
        (f"{HERE}:", "expected module:attribute"),
        (":Quiet", "expected module:attribute"),
        (f"{HERE}:NoAct", "gives a NoAct without act(): expected reset(observation, info) and act(observation, info)"),
        (f"{HERE}:Failing", "cannot be made: RuntimeError: no weights in this folder"),
        (f"{HERE}:Leaving", "cannot be made: SystemExit: no weights here"),
        (f"{HERE}:LeavingSilently", "cannot be made: SystemExit"),
        (f"{HERE}:nothing", "gives a NoneType without reset()"),
        (f"{HERE}:number", "is a int: expected a policy, or a class or function that gives one"),
    ],
)
def test_what_is_wrong_is_one_line(spec, message):
    with pytest.raises(InvalidInputError) as error:
        make_policy(spec)
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_module_that_leaves_the_process_is_refused(tmp_path, monkeypatch):
    (tmp_path / "policy_script.py").write_text("import sys\nsys.exit(3)\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidInputError, match="cannot import policy_script: SystemExit: 3"):
        make_policy("policy_script:Mine")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("random", "unknown argument 'sed' in policy 'random': did you mean 'seed'?"),
        (f"{HERE}:ready_policy", "is a policy already: expected no arguments, got sed"),
    ],
)
def test_wrong_arguments_are_named(spec, message):
    with pytest.raises(InvalidInputError) as error:
        make_policy(spec, sed=1)
    assert message in str(error.value)


def test_the_argument_of_a_policy_that_is_wrong_is_told_by_the_policy():
    with pytest.raises(InvalidInputError, match="unknown time to ask"):
        make_policy("repairing-follower", ask="sometimes")


def test_same_spec_same_policy():
    first, second = make_policy("random", seed=3), make_policy("random", seed=3)
    assert isinstance(first, RandomPolicy)
    for policy in (first, second):
        policy.reset("prompt", {})
    assert [first.act("x", {}) for _ in range(5)] == [second.act("x", {}) for _ in range(5)]
