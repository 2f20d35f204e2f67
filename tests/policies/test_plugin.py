"""The sample plug-in, built, installed and played: what the README tells others to do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

# Runs in a process of its own, in which the plug-in is installed.
PLAY = """
import json, sys
from resilisim.envs.conversation import ConversationEnv, public_info
from resilisim.errors import InvalidInputError
from resilisim.policies import is_privileged, make_policy, policy_name, policy_names
from resilisim.policies.checks import CommonWordSearch, check_policy
from resilisim.tool_library import default_library

library = default_library()
env = ConversationEnv(search=CommonWordSearch(library))
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
def played(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plugin")
    # A copy, so that the build leaves nothing in the source tree.
    source = shutil.copytree(TESTS / "sample_plugin", folder / "source")
    target = folder / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--disable-pip-version-check", "--target", str(target), str(source)], check=True, timeout=120)
    path = os.pathsep.join([str(target), str(TESTS.parent)])
    done = subprocess.run(
        [sys.executable, "-c", PLAY],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
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
