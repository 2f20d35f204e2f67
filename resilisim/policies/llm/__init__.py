"""LLM agents as policies: loops around a chat model, all over the same tools, limits and records."""

from resilisim.options import option
from resilisim.policies.llm.agent_options import AgentOptions
from resilisim.policies.llm.agent_run import AgentRun
from resilisim.policies.llm.policy import LlmPolicy

__all__ = ["AgentOptions", "AgentRun", "LlmPolicy", "option"]
