"""Episodes under the training law that tests play by hand."""

from __future__ import annotations

from resilisim.envs.workflow.actions import META_NO_OP, action_index, meta_action_index
from resilisim.envs.workflow.env import WorkflowEnv

NUM_TOOLS = 30
CHAIN = {
    "required_tools": [
        "file_operations_reader",
        "data_processing_parser",
        "data_processing_validator",
        "data_processing_transformer",
        "data_processing_aggregator",
    ],
    "task_type": "custom",
}
NO_OP = meta_action_index(META_NO_OP, NUM_TOOLS)


def training_env(stage=0, rate=0.0, task=CHAIN, **options):
    env = WorkflowEnv(tasks=[task], law="training", similarity=None, **options)
    env.set_stage(stage)
    env.set_running_success(rate)
    env.reset(seed=0)
    return env


def required(env):
    return list(env.core.problem(0).required)


def legal(env, kind, tool):
    return bool(env.action_masks()[action_index(kind, tool, NUM_TOOLS)])
