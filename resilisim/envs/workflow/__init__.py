"""Workflow-v0: the workflow MDP, scalar and batched, over one kernel of scalar functions."""
