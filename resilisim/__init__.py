"""ResiliSim: stochastic tool tasks for language-model agents, each with its exact optimum.

    >>> import resilisim
    >>> task = resilisim.benchmark_tasks()[0]
    >>> best = resilisim.bound(task)["optimum"]  # what no agent can beat
    >>> result = resilisim.evaluate("plan-follower", [task], "optimal", seeds=10, base=0.7)
    >>> print(result.table())

Importing this package registers the Gymnasium ids and nothing heavy: compiled code, retrieval and the benchmark are
loaded where they are first used.
"""

from __future__ import annotations

import lazy_loader
from gymnasium.envs.registration import register, registry

__version__ = "0.2.0"

# Public names stand in the stub beside this file, and are looked up on first use.
__getattr__, _, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["register_environments"]

CONVERSATION_ID = "resilisim/Conversation-v0"
WORKFLOW_ID = "resilisim/Workflow-v0"


def register_environments() -> None:
    """Register the Gymnasium ids; calling it again changes nothing (the entry-point group calls it, too).

    Example:
        >>> import gymnasium, resilisim
        >>> resilisim.register_environments()
        >>> gymnasium.make("resilisim/Conversation-v0").spec.id
        'resilisim/Conversation-v0'
    """
    if CONVERSATION_ID not in registry:
        # Gymnasium's passive checker stays broken for good once a first reset was refused, say for a misspelt task.
        register(
            id=CONVERSATION_ID, entry_point="resilisim.envs.conversation:ConversationEnv", disable_env_checker=True
        )
    if WORKFLOW_ID not in registry:
        register(
            id=WORKFLOW_ID,
            entry_point="resilisim.envs.workflow.env:WorkflowEnv",
            vector_entry_point="resilisim.envs.workflow.vector:WorkflowVectorEnv",
            disable_env_checker=True,
        )


def __dir__() -> list[str]:
    """List the public names, those not yet loaded included."""
    return sorted(set(globals()) | set(__all__))


register_environments()
