"""Which runs are refused, and how that is said."""

from __future__ import annotations

import copy

import pytest

from resilisim.errors import InvalidInputError
from resilisim.evaluation.run.rescoring import SOURCE_KEY
from resilisim.evaluation.table.comparing import refuse_incomparable

MANIFEST = {
    "arguments": {
        "benchmark": {"version": "benchmark-v1", "sha256": "aa"},
        "environment": {"base": 0.8, "max_turns": 10, "salt": "s", "planner": "auto"},
        "library": "bb",
        "num_episodes": 12,
        "policies": ["random"],
        "policy_names": ["random"],
        "prompts": ["baseline"],
        "seeds": [0, 1],
        "tasks": {"count": 6, "sha256": "cc"},
    },
    "created": "then",
}


def changed(*path: str, value: object) -> dict:
    manifest = copy.deepcopy(MANIFEST)
    place = manifest["arguments"]
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return manifest


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("benchmark", "version"), "benchmark-v2", "benchmark version is 'benchmark-v1' in one and 'benchmark-v2'"),
        (("library",), "dd", "tool library is 'bb' in one and 'dd'"),
        (("environment", "base"), 0.9, r"law \(base success probability\) is 0.8 in one and 0.9"),
        (("environment", "max_turns"), 20, "end rule max_turns is 10 in one and 20"),
        (("environment", "salt"), "t", "salt of the luck is 's' in one and 't'"),
        (("environment", "planner"), "exact", "environment option planner is 'auto' in one and 'exact'"),
        (("something_new",), 1, "something_new is absent in one and 1"),
    ],
)
def test_what_changes_episodes_is_refused_and_named(path, value, text):
    with pytest.raises(InvalidInputError, match=text) as refused:
        refuse_incomparable([MANIFEST, MANIFEST, changed(*path, value=value)], ["a", "b", "c"])
    assert str(refused.value).startswith("a and c cannot be compared")


def test_texts_of_different_revisions_are_not_compared_and_missing_means_the_first():
    refuse_incomparable([MANIFEST, changed("benchmark", "texts", value=1)])
    now = changed("benchmark", "texts", value=2)
    refuse_incomparable([now, now])
    now["arguments"]["environment"]["base"] = 0.1
    with pytest.raises(InvalidInputError) as refused:
        refuse_incomparable([MANIFEST, now], ["old", "new"])
    expected = "old and new cannot be compared: revision of the texts that agents read is 1 in one and 2 in the other"
    assert str(refused.value) == expected


def test_the_version_is_named_before_everything_that_follows_from_it():
    other = changed("benchmark", "version", value="benchmark-v2")
    other["arguments"]["benchmark"]["sha256"] = "zz"
    other["arguments"]["environment"]["base"] = 0.1
    with pytest.raises(InvalidInputError, match="benchmark version"):
        refuse_incomparable([MANIFEST, other])


@pytest.mark.parametrize(
    "name",
    [
        "policies",
        "policy_names",
        "prompts",
        "seeds",
        "num_episodes",
        "models",
        "models_of_policies",  # of runs with several models
        "tasks",
        SOURCE_KEY,  # of runs that were scored again
    ],
)
def test_who_plays_what_and_how_often_may_differ(name):
    refuse_incomparable([MANIFEST, changed(name, value=["other"])])


def test_the_checkpoint_that_plans_prompts_belongs_to_the_episodes():
    one, other = (
        changed("checkpoints", value={"policy:p": "1", "auto": "2"}),
        changed("checkpoints", value={"auto": "3"}),
    )
    with pytest.raises(InvalidInputError, match="trained policy that plans prompts is '2' in one and '3'"):
        refuse_incomparable([one, other])
    refuse_incomparable([one, changed("checkpoints", value={"policy:q": "4", "auto": "2"})])
