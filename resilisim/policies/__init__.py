"""Policies and agents that act in Conversation-v0, the shipped ones and anybody's."""

from resilisim.envs.session import EpisodeEnded, Info
from resilisim.policies.agent_session import AgentSession, CallResult, SessionTool, ToolFailed, track_usage
from resilisim.policies.base import AgentFailed, Policy, SessionAgent, is_privileged, policy_name
from resilisim.policies.function_agent import FunctionAgent
from resilisim.policies.registry import BUILT_IN_POLICIES, ENTRY_POINT_GROUP, make_policy, policy_names

__all__ = [
    "BUILT_IN_POLICIES",
    "ENTRY_POINT_GROUP",
    "AgentFailed",
    "AgentSession",
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
