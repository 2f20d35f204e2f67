"""Settings for every test."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.warm import WarmPython

# Several test processes run at once. With a thread for each core, torch spends ten times the processor time on the
# small networks and texts of tests, waiting for its own threads. Commands that tests start inherit this.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# readline, which pytest imports, tells every process that is started from it how wide a terminal would be.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
# What a user has cached is neither read nor changed; kept for the next run, embeddings and worlds cost no time.
os.environ.setdefault("RESILISIM_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "resilisim"))

# The files that take longest. Handed out first, none of them is what a single worker is left with at the end.
LONG_FILES = (
    "tests/envs/workflow/test_reference.py",
    "tests/test_pages.py",
    "tests/reporting/test_page.py",
    "tests/policies/ppo/test_training.py",
    "tests/evaluation/test_submission.py",
    "tests/datasets/test_preferences.py",
    "tests/simulator/test_parts.py",
    "tests/end_to_end/test_report_in_browser.py",
    "tests/policies/ppo/test_policy.py",
    "tests/finetuning/test_sampling.py",
    "tests/simulator/test_small_problems.py",
    "tests/envs/test_rewards.py",
    "tests/integrations/mcp/test_server.py",
    "tests/end_to_end/test_command_line.py",
    "tests/evaluation/test_rescoring.py",
    "tests/evaluation/table/test_gate.py",
    "tests/finetuning/test_finetuning.py",
    "tests/policies/ppo/test_policy_under_laws.py",
    "tests/simulator/test_exact_brute_force.py",
    "tests/chat/test_local.py",
    "tests/evaluation/test_agent_runs.py",
    "tests/evaluation/test_function_agents.py",
    "tests/policies/test_policies_in_conversation.py",
    "tests/envs/test_copies.py",
    # Of tests that are marked as long.
    "tests/policies/llm/test_habits.py",
    "tests/evaluation/test_runner.py",
    "tests/envs/workflow/test_parity.py",
)

# Modules and tests stay until the end: to look for garbage among them takes seconds, and holds up what waits for less.
gc.disable()


def pytest_collection_finish() -> None:
    """Let the garbage of tests be collected, among which nothing of the collection is looked at."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of long files first; the others keep their order."""
    ranks = {name: rank for rank, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(ranks)))


@pytest.fixture(scope="session")
def python() -> Iterator[list[str]]:
    """What stands for `sys.executable` in a command line where imports are not what is tested: seconds less each."""
    with WarmPython() as warm:
        yield warm.command


# Compiling and the first solving of a problem take seconds, so a time limit per example would only measure the machine.
# The same examples in every run: a red suite is red for everybody.
settings.register_profile(
    "resilisim", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, max_examples=30
)
settings.load_profile("resilisim")
