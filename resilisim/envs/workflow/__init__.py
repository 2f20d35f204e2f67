"""Workflow-v0: the workflow MDP, one episode at a time or thousands, over the same compiled scalar functions."""

from resilisim.envs.workflow.core import WorkflowAction, decode_action
from resilisim.envs.workflow.env import WorkflowEnv
from resilisim.envs.workflow.options import WorkflowOptions
from resilisim.envs.workflow.vector import WorkflowVectorEnv

__all__ = ["WorkflowAction", "WorkflowEnv", "WorkflowOptions", "WorkflowVectorEnv", "decode_action"]
