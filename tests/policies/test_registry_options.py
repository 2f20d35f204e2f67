"""Options in brackets behind a policy's name."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.chat import ScriptedChatModel
from resilisim.errors import InvalidInputError
from resilisim.policies import make_policy, policy_name
from resilisim.policies.registry import split_options
from resilisim.policies.scripted import RepairingFollower

MODEL = ScriptedChatModel([])
HERE = __name__


class Kept:
    """Keeps what it is given."""

    def __init__(self, **given):
        self.given = given

    def reset(self, observation, info):
        self.begun = True

    def act(self, observation, info):
        return None


@dataclass(frozen=True)
class Frozen:
    depth: int = 1

    def reset(self, observation, info):
        return None

    def act(self, observation, info):
        return None


ready = Kept()


@pytest.mark.parametrize(
    ("spec", "name", "options"),
    [
        ("kpi-chain", "kpi-chain", {}),
        ("kpi-chain[theta=0.8]", "kpi-chain", {"theta": 0.8}),
        (" kpi-chain [ theta = 0.8 , replanning = false ] ", "kpi-chain", {"theta": 0.8, "replanning": False}),
        ("kpi-chain[]", "kpi-chain", {}),
        ("kpi-chain[theta=0.8,]", "kpi-chain", {"theta": 0.8}),
        ("react[templates=own/prompts]", "react", {"templates": "own/prompts"}),
        ("react[examples=none]", "react", {"examples": "none"}),
        ("react[max_tokens=null]", "react", {"max_tokens": None}),
        ("react[title=a=b]", "react", {"title": "a=b"}),
        ("react[title=]", "react", {"title": ""}),
        ('react[title="quoted"]', "react", {"title": "quoted"}),
        ("module:Name[depth=2]", "module:Name", {"depth": 2}),
        ("policy:some/dir[greedy=true]", "policy:some/dir", {"greedy": True}),
    ],
)
def test_names_and_options_are_split(spec, name, options):
    assert split_options(spec) == (name, options)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("react[steps]", "policy 'react[steps]': 'steps' is no option, expected name=value"),
        ("react[=3]", "'=3' is no option, expected name=value"),
        ("react[max steps=3]", "'max steps=3' is no option, expected name=value"),
        ("react[steps=3,steps=4]", "policy 'react[steps=3,steps=4]': option 'steps' is given twice"),
        ("react[steps=3", "policy 'react[steps=3': the bracket is not closed, expected name[option=value,...]"),
        ("react]steps=3[", "unknown policy 'react]steps=3['"),
        ("react[steps=3][steps=4]", "unknown policy"),
        ("react[steps=[3]]", "unknown policy"),
        ("[steps=3]", "unknown policy '[steps=3]'"),
        ("raect[steps=3]", "unknown policy 'raect': did you mean 'react'?"),
        ("react[stesp=3]", "unknown option 'stesp' in policy 'react': did you mean 'steps'?"),
        ("react[steps=none]", "option steps='none': expected a whole number"),
        ("react[steps=NaN]", "option steps=nan: expected a whole number"),
        ("kpi-chain[theta=1.5]", "option theta=1.5: expected a number from 0 to 1"),
        ("react[templates=no/such/folder]", "templates='no/such/folder' does not exist: expected a folder"),
        ("repairing-follower[ask=sometimes]", "unknown time to ask 'sometimes'"),
        ("repairing-follower[asks=before]", "unknown argument 'asks' in policy 'repairing-follower': did you mean"),
        (f"{HERE}:ready[depth=2]", "is a policy already: expected no arguments, got depth"),
        (f"{HERE}:Frozen[depth=2]", "cannot be shown under its options: FrozenInstanceError"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(spec, message):
    with pytest.raises(InvalidInputError) as error:
        make_policy(spec, offered={"models": MODEL})
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_an_agent_gets_its_options_and_is_shown_under_the_whole_text():
    policy = make_policy(" kpi-chain[theta=0.8,max_llm_calls=7,examples=none] ", offered={"models": MODEL})
    assert (policy.options.theta, policy.options.max_llm_calls, policy.options.examples) == (0.8, 7, "none")
    assert policy_name(policy) == "kpi-chain[theta=0.8,max_llm_calls=7,examples=none]"
    assert policy_name(make_policy("kpi-chain", offered={"models": MODEL})) == "kpi-chain"
    assert policy_name(make_policy("kpi-chain[]", offered={"models": MODEL})) == "kpi-chain"


def test_a_scripted_policy_gets_its_options_too():
    policy = make_policy("repairing-follower[ask=before]", offered={"seed": 0})
    assert isinstance(policy, RepairingFollower)
    assert policy_name(policy) == "repairing-follower[ask=before]"
    policy.reset("", {"turns_left": 5})
    assert policy_name(make_policy("repairing-follower")) == "repairing-follower"


def test_arguments_win_over_options_of_the_same_name():
    policy = make_policy(f"{HERE}:Kept[depth=2,width=3]", depth=5)
    assert policy.given == {"depth": 5, "width": 3}


def test_an_agent_without_a_model_says_how_to_name_one():
    with pytest.raises(InvalidInputError, match="policy 'react' needs a language model: name one, such as --model"):
        make_policy("react[steps=3]")


NAMES = st.from_regex(r"[a-z_]{1,8}\Z").filter(str.isidentifier)
VALUES = (
    st.booleans()
    | st.none()
    | st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="[],", exclude_categories=["C", "Z"]))
)


@given(st.dictionaries(NAMES, VALUES))
def test_whatever_is_written_as_json_is_read_back(options):
    written = ",".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in options.items())
    assert split_options(f"some-policy[{written}]") == ("some-policy", options)


@given(st.text())
def test_any_text_is_split_or_refused(text):
    try:
        name, options = split_options(text)
    except InvalidInputError:
        return
    assert options == {} or text.strip().endswith("]")
    assert name in text
