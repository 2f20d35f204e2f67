"""The name under which verifiers finds ResiliSim (`vf-eval resilisim-verifiers`): its ids name modules without dots."""

from resilisim.integrations.verifiers_env import WorkflowEnv, WorkflowHarness, WorkflowTaskset

__all__ = ["WorkflowEnv", "WorkflowHarness", "WorkflowTaskset"]
