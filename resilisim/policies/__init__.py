"""Policies and agents that act in Conversation-v0, the shipped ones and anybody's."""

from resilisim.envs.functions import SessionTool
from resilisim.envs.reply import CallResult, Info
from resilisim.envs.session import EpisodeEnded, ToolFailed
from resilisim.policies.base import AgentFailed, Policy, SessionAgent, is_privileged, policy_name
from resilisim.policies.function_agent import FunctionAgent
from resilisim.policies.registry import BUILT_IN_POLICIES, ENTRY_POINT_GROUP, make_policy, policy_names
from resilisim.policies.usage import track_usage

__all__ = [
    "BUILT_IN_POLICIES",
    "ENTRY_POINT_GROUP",
    "AgentFailed",
    "CallResult",
    "EpisodeEnded",
    "FunctionAgent",
    "Info",
    "Policy",
    "SessionAgent",
    "SessionTool",
    "ToolFailed",
    "is_privileged",
    "make_policy",
    "policy_name",
    "policy_names",
    "track_usage",
]
