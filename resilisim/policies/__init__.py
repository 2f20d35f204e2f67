"""Policies and agents that act in Conversation-v0, the shipped ones and anybody's."""

from resilisim.envs.reply import CallResult
from resilisim.envs.session import EpisodeEnded, ToolFailed
from resilisim.envs.session_tools import SessionTool
from resilisim.policies.base import AgentFailed, Policy, SessionAgent
from resilisim.policies.registry import make_policy, policy_names
from resilisim.policies.usage import track_usage

__all__ = [
    "AgentFailed",
    "CallResult",
    "EpisodeEnded",
    "Policy",
    "SessionAgent",
    "SessionTool",
    "ToolFailed",
    "make_policy",
    "policy_names",
    "track_usage",
]
