"""Which actions are legal: never none, never less than a way forward, and what each filter keeps out."""

from __future__ import annotations

import numpy as np
import pytest

from resilisim.envs.workflow.actions import (
    INVOKE_TOOL,
    META_NO_OP,
    PARALLEL_EXECUTE,
    RETRY_TOOL,
    action_index,
    meta_action_index,
    num_actions,
)
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.tasks.benchmark import benchmark_tasks
from tests.envs.workflow.cases import every_filter, random_legal

NUM_TOOLS = 30
NO_OP = meta_action_index(META_NO_OP, NUM_TOOLS)
TASKS = benchmark_tasks()[:200]


def executions(mask):
    """Return which tools a mask lets be executed, bool (num_envs, num_tools)."""
    starts = [action_index(kind, 0, NUM_TOOLS) for kind in (INVOKE_TOOL, RETRY_TOOL, PARALLEL_EXECUTE)]
    return np.any([mask[:, start : start + NUM_TOOLS] for start in starts], axis=0)


@pytest.mark.parametrize("law", ["benchmark", "training"])
@pytest.mark.parametrize("filters", list(every_filter()))
@pytest.mark.parametrize(("required", "printed"), [("shown", False), ("hidden", True)])
def test_a_mask_is_never_empty(law, filters, required, printed):
    """Over 2.6 million steps in all; neither are 'none' duplicates legal, nor types without a meaning under a law."""
    never = np.zeros(num_actions(NUM_TOOLS), dtype=bool)
    never[[action_index(kind, NUM_TOOLS, NUM_TOOLS) for kind in range(9)]] = True
    if law == "benchmark":
        never[:] = True
        for kind in (INVOKE_TOOL, RETRY_TOOL):
            never[action_index(kind, 0, NUM_TOOLS) : action_index(kind, NUM_TOOLS, NUM_TOOLS)] = False
        never[NO_OP] = False
    options = {"law": law, "filters": filters, "required": required, "printed_rules": printed}
    envs = WorkflowVectorEnv(2048, tasks=TASKS, autoreset_mode="SAME_STEP", copy=False, **options)
    generator = np.random.default_rng(0)
    observations, _ = envs.reset(seed=0)
    for _ in range(40):
        mask = observations["action_mask"]
        assert mask.max() == 1
        assert mask.min() == 0
        legal = mask.any(axis=1)
        assert legal.all()
        assert not mask[:, never].any()
        if law == "benchmark":  # NO_OP is what remains, and only then
            assert (mask[:, NO_OP] == ~executions(mask).any(axis=1)).all()
        observations, *_ = envs.step(random_legal(mask, generator))
