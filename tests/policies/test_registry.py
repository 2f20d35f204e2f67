"""Policies by name, with options in brackets, refused with one clear line; and the check that authors can call."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.chat import ScriptedChatModel
from resilisim.errors import InvalidInputError
from resilisim.policies import Policy, make_policy, policy_names
from resilisim.policies.base import is_privileged, policy_name
from resilisim.policies.checks import check_policy
from resilisim.policies.registry import split_options, with_option
from resilisim.tool_library import Tool, ToolLibrary
from tests.guards import WAITING_SECONDS

BUILT_IN = ("random", "plan-follower", "repairing-follower", "exact-optimum")
BUILT_IN += ("retry-backoff", "circuit-breaker", "alternative-first", "learned-names")


class Kept:
    """Stops at once, and keeps what it is given."""

    def __init__(self, seed=0, **others):
        self.seed, self.others = seed, others

    def reset(self, observation, info):
        pass

    def act(self, observation, info):
        return None


class Holder:
    Nested = Kept


class NoAct:
    def reset(self, observation, info):
        pass


class Failing:
    def __init__(self):
        raise RuntimeError("no weights\nin this folder")


class Leaving:
    def __init__(self):
        sys.exit("no weights here")


def quiet_factory(temperature=0.5):
    policy = Kept()
    policy.temperature = temperature
    return policy


def nothing():
    return None


ready_policy = Kept(seed=9)
number = 3
HERE = __name__


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_policies(name):
    policy = make_policy(name)
    assert isinstance(policy, Policy)
    assert policy_name(policy) == name
    assert is_privileged(policy) == (name == "exact-optimum")
    assert policy_names()[:9] == (*BUILT_IN, "trained")


def test_module_and_attribute():
    assert isinstance(make_policy(f"{HERE}:Kept"), Kept)
    assert isinstance(make_policy(f"{HERE}:Holder.Nested"), Kept)
    assert make_policy(f"{HERE}:quiet_factory", temperature=0.1).temperature == 0.1
    assert make_policy(f"{HERE}:ready_policy") is ready_policy
    assert policy_name(ready_policy) == "Kept"
    assert not is_privileged(ready_policy)


def test_arguments_are_demanded_and_offers_are_not():
    assert make_policy(f"{HERE}:Kept", offered={"seed": 4, "library": None}).seed == 4
    assert make_policy(f"{HERE}:Kept", offered={"seed": 4, "library": None}).others == {}
    assert make_policy(f"{HERE}:Kept", offered={"seed": 4}, seed=5, depth=2).others == {"depth": 2}
    assert make_policy(f"{HERE}:quiet_factory", offered={"seed": 4}).temperature == 0.5
    assert make_policy(f"{HERE}:Kept[depth=2,width=3]", depth=5).others == {"depth": 5, "width": 3}
    library = ToolLibrary([Tool("only", "Only.")])
    policy = make_policy("random", offered={"library": library}, search_probability=0.0, finish_probability=0.0)
    policy.reset("prompt", {})
    assert policy.act("prompt", {"turns_left": 3}) == "<tool_call>only</tool_call>"


def test_a_policy_of_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "policy_lying_about.py").write_text(
        "class Mine:\n    reset = act = lambda self, observation, info: None\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert type(make_policy("policy_lying_about:Mine")).__name__ == "Mine"


def test_a_module_that_leaves_the_process_is_refused(tmp_path, monkeypatch):
    (tmp_path / "policy_script.py").write_text("import sys\nsys.exit(3)\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidInputError, match="cannot import policy_script: SystemExit: 3"):
        make_policy("policy_script:Mine")


MODEL = ScriptedChatModel([])


@dataclass(frozen=True)
class Frozen:
    depth: int = 1

    def reset(self, observation, info):
        return None

    def act(self, observation, info):
        return None


@pytest.mark.parametrize(
    ("spec", "name", "options"),
    [
        ("kpi-chain", "kpi-chain", {}),
        ("kpi-chain[theta=0.8]", "kpi-chain", {"theta": 0.8}),
        (" kpi-chain [ theta = 0.8 , replanning = false ] ", "kpi-chain", {"theta": 0.8, "replanning": False}),
        ("kpi-chain[theta=0.8,]", "kpi-chain", {"theta": 0.8}),
        ("react[templates=own/prompts]", "react", {"templates": "own/prompts"}),
        ("react[max_tokens=null]", "react", {"max_tokens": None}),
        ("react[title=a=b]", "react", {"title": "a=b"}),
        ('react[title="quoted"]', "react", {"title": "quoted"}),
        ("policy:some/dir[greedy=true]", "policy:some/dir", {"greedy": True}),
        ("policy:default+2", "policy:default+2", {}),
    ],
)
def test_names_and_options_are_split(spec, name, options):
    assert split_options(spec) == (name, options)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("react", "react[a=1]"),
        (" react ", "react[a=1]"),
        ("react[]", "react[a=1]"),
        ("react[b=2]", "react[b=2,a=1]"),
        ("react[b=2, ]", "react[b=2,a=1]"),
        ("react[a=3]", "react[a=3]"),
    ],
)
def test_an_option_more(spec, expected):
    assert with_option(spec, "a", 1) == expected
    assert split_options(expected)[1]["a"] in (1, 3)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("random[sed=1]", "unknown argument 'sed' in policy 'random': did you mean 'seed'?"),
        ("react[steps=3]", "policy 'react' needs a language model: name one, such as --model"),
        ("react[steps]", "policy 'react[steps]': 'steps' is no option, expected name=value"),
        ("react[max steps=3]", "'max steps=3' is no option, expected name=value"),
        ("react[steps=3,steps=4]", "policy 'react[steps=3,steps=4]': option 'steps' is given twice"),
        ("react[steps=3", "policy 'react[steps=3': the bracket is not closed, expected name[option=value,...]"),
        ("react]steps=3[", "unknown policy 'react]steps=3['"),
        ("react[steps=3][steps=4]", "unknown policy"),
        ("raect[steps=3]", "unknown policy 'raect': did you mean 'react'?"),
        ("react[stesp=3]", "unknown option 'stesp' in policy 'react': did you mean 'steps'?"),
        ("react[steps=none]", "option steps is 'none': expected a whole number"),
        ("repairing-follower[ask=sometimes]", "unknown time to ask 'sometimes'"),
        ("repairing-follower[asks=before]", "unknown argument 'asks' in policy 'repairing-follower': did you mean"),
        (f"{HERE}:ready_policy[depth=2]", "is a policy already: expected no arguments, got depth"),
        (f"{HERE}:Frozen[depth=2]", "cannot be shown under its options: FrozenInstanceError"),
        (
            "plan_follower",
            "unknown policy 'plan_follower': did you mean 'plan-follower'? Your own policy is given",
        ),
        ("nonsense", "your own policy is given as module:attribute"),
        ("random,plan-follower", "expected one policy; several are a list, or --policy given once for each"),
        ("no_such_module_here:Policy", "cannot import no_such_module_here: ModuleNotFoundError"),
        (f"{HERE}:Kep", "has no attribute 'Kep': did you mean 'Kept'?"),
        (f"{HERE}:", "expected module:attribute"),
        (":Kept", "expected module:attribute"),
        (f"{HERE}:NoAct", "gives a NoAct without act(): expected reset(observation, info) and act(observation, info)"),
        (f"{HERE}:Failing", "cannot be made: RuntimeError: no weights in this folder"),
        (f"{HERE}:Leaving", "cannot be made: SystemExit: no weights here"),
        (f"{HERE}:nothing", "gives a NoneType without reset()"),
        (f"{HERE}:number", "is a int: expected a policy, or a class or function that gives one"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(spec, message):
    with pytest.raises(InvalidInputError) as error:
        make_policy(spec, offered={"models": MODEL} if spec != "react[steps=3]" else {})
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_an_agent_gets_its_options_and_is_shown_under_the_whole_text():
    policy = make_policy(" kpi-chain[theta=0.8,max_llm_calls=7,examples=none] ", offered={"models": MODEL})
    assert (policy.options.theta, policy.options.max_llm_calls, policy.options.examples) == (0.8, 7, "none")
    assert policy_name(policy) == "kpi-chain[theta=0.8,max_llm_calls=7,examples=none]"
    assert policy_name(make_policy("kpi-chain", offered={"models": MODEL})) == "kpi-chain"
    assert policy_name(make_policy("kpi-chain[]", offered={"models": MODEL})) == "kpi-chain"
    assert policy_name(make_policy("repairing-follower[ask=before]", offered={"seed": 0})).endswith("[ask=before]")
    assert policy_name(make_policy("repairing-follower")) == "repairing-follower"


NAMES = st.from_regex(r"[a-z_]{1,8}\Z").filter(str.isidentifier)
VALUES = (
    st.booleans()
    | st.none()
    | st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="[],", exclude_categories=["C", "Z"]))
)


@given(st.dictionaries(NAMES, VALUES), st.text())
def test_whatever_is_written_as_json_is_read_back_and_any_text_is_split_or_refused(options, text):
    with contextlib.suppress(InvalidInputError):
        assert split_options(text)[0] in text
    written = ",".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in options.items())
    assert split_options(f"some-policy[{written}]") == ("some-policy", options)


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
        (REMEMBERING, "the same episode (baseline prompt, seed 0) gave other messages the second time, from message 1"),
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


TESTS = Path(__file__).resolve().parents[1]

# Runs in a process of its own, in which the plug-in is installed.
PLAY = """
import json, sys
from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.reply import public_info
from resilisim.errors import InvalidInputError
from resilisim.policies import make_policy, policy_names
from resilisim.policies.base import is_privileged, policy_name
from resilisim.policies.checks import check_policy

env = ConversationEnv(search="lexical")
result = {"names": policy_names(), "rewards": {}, "refusals": {}}
for spec in ("first-hit", "resilisim_sample_plugin:FirstHitPolicy"):
    policy = make_policy(spec, offered={"seed": 1})
    result["name"], result["problems"] = policy_name(policy), check_policy(policy)
    rewards = []
    for seed in range(5):
        task = {"required_tools": ["file_operations_reader"]}
        observation, info = env.reset(seed=seed, options={"task": task, "prompt": "baseline"})
        policy.reset(observation, public_info(info))
        ended, reward = False, 0.0
        while not ended:
            observation, reward, ended, _, info = env.step(policy.act(observation, public_info(info)))
        rewards.append(reward)
    result["rewards"][spec] = rewards
for spec in ("not-a-policy", "resilisim_sample_plugin:LegacyPolicy", "resilisim_sample_plugin:FirstHit", "frst-hit"):
    try:
        make_policy(spec)
    except InvalidInputError as error:
        result["refusals"][spec] = str(error)
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def played(tmp_path_factory, python):
    folder = tmp_path_factory.mktemp("plugin")
    # A copy, so that the build leaves nothing in the source tree.
    source = shutil.copytree(TESTS / "sample_plugin", folder / "source")
    target = folder / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*pip, "--disable-pip-version-check", "--target", str(target), str(source)], check=True, timeout=WAITING_SECONDS
    )
    path = os.pathsep.join([str(target), str(TESTS.parent)])
    done = subprocess.run(
        [*python, "-c", PLAY],
        check=True,
        capture_output=True,
        text=True,
        timeout=WAITING_SECONDS,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
    )
    return json.loads(done.stdout)


def test_its_policy_is_found_by_name(played):
    assert "first-hit" in played["names"]
    assert played["name"] == "first-hit"


def test_it_conforms(played):
    assert played["problems"] == []


def test_it_plays_and_finishes_by_name_and_by_module(played):
    by_name, by_module = played["rewards"].values()
    assert by_name == by_module
    assert sum(by_name) >= 4  # one tool, nine turns: a failed episode has a chance of 0.004


def test_what_is_no_policy_is_refused_in_one_line(played):
    refusals = played["refusals"]
    assert "gives a str without reset()" in refusals["not-a-policy"]
    assert "of package 'resilisim-sample-plugin'" in refusals["not-a-policy"]
    assert "gives a LegacyPolicy without act()" in refusals["resilisim_sample_plugin:LegacyPolicy"]
    assert "did you mean 'FirstHitPolicy'?" in refusals["resilisim_sample_plugin:FirstHit"]
    assert "did you mean 'first-hit'?" in refusals["frst-hit"]
    assert all("\n" not in text for text in refusals.values())
