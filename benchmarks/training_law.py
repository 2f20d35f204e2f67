"""What the paper's training law leaves to learn: how often agents succeed under it that have learnt nothing.

    python -m benchmarks.training_law

Two policies play tasks of the test split in Workflow-v0: any legal execution at random, and the next required tool with
whatever leads to it first, which reads the order from the observation.
"""

from __future__ import annotations

from typing import Final

import gymnasium
import numpy as np
from numpy.typing import NDArray

import resilisim
from benchmarks.workflow import Policy, sensible
from resilisim.envs.workflow.spaces import INVOKE_TOOL, NUM_ACTION_TYPES, NUM_META_ACTIONS, RETRY_TOOL
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.statistics.estimates import clopper_pearson
from resilisim.tables.numbers import percent
from resilisim.tables.table import Cell, Table
from resilisim.tasks import Task, benchmark_tasks, split_of

NUM_ENVS: Final = 2048
EPISODES: Final = 20_000  # at least
# The law, and the running success rate, by which the training law's base is 0.95, 0.9 or 0.85 (D.2.2).
SETTINGS: Final = (("benchmark", 0.0), ("training", 0.0), ("training", 0.2), ("training", 0.5))


def _held_out() -> list[Task]:
    """Return the test tasks that the page's figures are of."""
    return [task for task in benchmark_tasks("benchmark-v1") if split_of(task.required_tools) == "test"]


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


def played(law: str, running: float, policy: Policy) -> tuple[int, int, int, float]:
    """Return episodes, successes in the law's sense, full successes, and mean steps."""
    env = gymnasium.make_vec(
        resilisim.WORKFLOW_ID, num_envs=NUM_ENVS, vectorization_mode="vector_entry_point", tasks=_held_out(), law=law
    ).unwrapped
    assert isinstance(env, WorkflowVectorEnv)
    env.set_running_success(running)
    env.reset(seed=0)
    sums = np.zeros(4)
    while sums[0] < EPISODES:
        *_, info = env.step(policy(env))
        ended = info.get("_success")
        if ended is not None:
            sums += [ended.sum(), *(info[name][ended].sum() for name in ("success", "full_success", "steps"))]
    episodes, successes, full, steps = sums.tolist()
    return int(episodes), int(successes), int(full), steps / episodes


def main() -> None:
    """Print the table."""
    rows = []
    for law, running in SETTINGS:
        for name, policy in (("any tool at random", random_execution()), ("the next required tool", sensible)):
            episodes, successes, full, steps = played(law, running, policy)
            shares = [_share(count, episodes) for count in (successes, full)]
            rows.append([law, f"{running:g}", name, *shares, f"{steps:.1f}", episodes])
    headings = ("law", "running success", "policy", "success", "in order", "steps", "episodes")
    print(Table("Success in percent of episodes, test split, 95% intervals", headings, rows, text_columns=3))


def _share(count: int, episodes: int) -> Cell:
    low, high = clopper_pearson(count, episodes)
    return Cell(percent(count / episodes), detail=f"[{percent(low)}, {percent(high)}]")


if __name__ == "__main__":
    main()
