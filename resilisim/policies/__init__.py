"""Policies: agents that act in Conversation-v0, the shipped ones and anybody's."""

from resilisim.envs.session import Info
from resilisim.policies.base import Policy, is_privileged, policy_name
from resilisim.policies.registry import BUILT_IN_POLICIES, ENTRY_POINT_GROUP, make_policy, policy_names

__all__ = [
    "BUILT_IN_POLICIES",
    "ENTRY_POINT_GROUP",
    "Info",
    "Policy",
    "is_privileged",
    "make_policy",
    "policy_name",
    "policy_names",
]
