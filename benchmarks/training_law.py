"""What the paper's training law leaves to learn: how often calls and agents succeed under it that have learnt nothing.

    python -m benchmarks.training_law

Two policies play the tasks of the test split of benchmark-v1 in Workflow-v0: any legal execution at random, and the
next required tool with whatever leads to it first, which reads the order from the observation.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.workflow import Policy, sensible
from resilisim.envs.workflow.kernels.training_law import MAX_STAGE
from resilisim.envs.workflow.spaces import INVOKE_TOOL, NUM_ACTION_TYPES, NUM_META_ACTIONS, RETRY_TOOL
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.statistics.estimates import clopper_pearson
from resilisim.tables.numbers import percent
from resilisim.tables.table import Cell, Table
from resilisim.tasks.sources import read_tasks
from resilisim.tasks.split import split_of
from resilisim.tool_library import default_library

EPISODES: Final = 20_000
TASKS: Final = "benchmark-v1"
# The law, the running success rate, by which the training law's base is 0.95, 0.9 or 0.85 (D.2.2), and the stage of
# Table 12, which says what success is.
SETTINGS: Final = (
    ("benchmark", 0.0, MAX_STAGE),
    ("training", 0.0, 0),
    ("training", 0.2, 0),
    *(("training", 0.5, stage) for stage in range(MAX_STAGE + 1)),
)


def random_execution() -> Policy:
    """Return a policy that executes any tool that may be executed."""
    generator = np.random.default_rng(0)

    def choose(env: WorkflowVectorEnv) -> NDArray[np.int64]:
        mask = env.core.observation["action_mask"]
        num_places = (mask.shape[1] - NUM_META_ACTIONS) // NUM_ACTION_TYPES  # one for each tool, and one for none
        executes = np.zeros(mask.shape[1], dtype=mask.dtype)
        for action_type in (INVOKE_TOOL, RETRY_TOOL):
            executes[action_type * num_places : (action_type + 1) * num_places - 1] = 1
        allowed = mask * executes
        allowed = np.where(allowed.any(axis=1, keepdims=True), allowed, mask)
        drawn: NDArray[np.int64] = (generator.random(mask.shape, dtype=np.float32) * allowed).argmax(axis=1)
        return drawn

    return choose


def played(law: str, running: float, stage: int, policy: Policy) -> dict[str, float]:
    """Return sums over episodes: successes at the stage, full ones, steps, calls, and those of them that succeed."""
    tasks = [task for task in read_tasks(TASKS, default_library()) if split_of(task.required_tools) == "test"]
    env = WorkflowVectorEnv(EPISODES, tasks=tasks, law=law, autoreset_mode="DISABLED", copy=False)
    env.set_running_success(running)
    env.set_stage(stage)
    env.reset(seed=0)
    episodes, sums = env.core.episodes, {"calls": 0.0, "good calls": 0.0}
    while not episodes["needs_reset"].all():  # one episode each, so that short ones do not count more often
        env.step(policy(env))
        sums["calls"] += (episodes["tool"] >= 0).sum()
        sums["good calls"] += episodes["tool_success"].sum()
    sums |= {name: float(episodes[name].sum()) for name in ("success", "full_success", "steps")}
    return sums


def main() -> None:
    """Print the table."""
    rows = []
    for law, running, stage in SETTINGS:
        for name, policy in (("any tool at random", random_execution()), ("the next required tool", sensible)):
            sums = played(law, running, stage, policy)
            calls = percent(sums["good calls"] / sums["calls"])
            shares = [_share(int(sums[which]), EPISODES) for which in ("success", "full_success")]
            steps = f"{sums['steps'] / EPISODES:.1f}"
            rows.append([law, f"{running:g}", str(stage), name, calls, *shares, steps])
    headings = ("law", "running success", "stage", "policy", "calls that succeed", "success", "in order", "steps")
    print(Table(f"percent of {EPISODES:,} episodes, 95% intervals", headings, rows, text_columns=4))


def _share(count: int, episodes: int) -> Cell:
    low, high = clopper_pearson(count, episodes)
    return Cell(percent(count / episodes), detail=f"[{percent(low)}, {percent(high)}]")


if __name__ == "__main__":
    main()
