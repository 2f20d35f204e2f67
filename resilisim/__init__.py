"""ResiliSim: stochastic tool tasks for language-model agents, each with its exact optimum.

    >>> import resilisim
    >>> task = resilisim.benchmark_tasks()[0]
    >>> best = resilisim.bound(task)["known_probabilities"]  # what no agent can beat
    >>> result = resilisim.evaluate("plan-follower", [task], "optimal", seeds=10, base=0.7)
    >>> print(result.table())

Importing this package registers the Gymnasium ids and nothing heavy: compiled code, retrieval and the benchmark are
loaded where they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gymnasium.envs.registration import register, registry

from resilisim.errors import ResiliSimError

if TYPE_CHECKING:
    from resilisim.envs import EnvironmentSettings
    from resilisim.evaluation import (
        ModelSettings,
        compare_runs,
        evaluate,
        open_session,
        read_results,
    )
    from resilisim.injection import InjectedFailure, fit_law, inject
    from resilisim.policies import EpisodeEnded, ToolFailed, make_policy, track_usage
    from resilisim.reporting import write_report
    from resilisim.simulator import Law, load_law
    from resilisim.simulator.exact import references as bound
    from resilisim.tasks import Task
    from resilisim.tasks.benchmark import benchmark_tasks
    from resilisim.tool_library import ToolLibrary, default_library, load_library

__version__ = "0.1.0"

__all__ = [
    "EnvironmentSettings",
    "EpisodeEnded",
    "InjectedFailure",
    "Law",
    "ModelSettings",
    "ResiliSimError",
    "Task",
    "ToolFailed",
    "ToolLibrary",
    "__version__",
    "benchmark_tasks",
    "bound",
    "compare_runs",
    "default_library",
    "evaluate",
    "fit_law",
    "inject",
    "load_law",
    "load_library",
    "make_policy",
    "open_session",
    "read_results",
    "register_environments",
    "track_usage",
    "write_report",
]

# Public name -> where it stands, looked up on first use (PEP 562).
_LAZY_NAMES = {
    "EnvironmentSettings": "resilisim.envs.settings:EnvironmentSettings",
    "EpisodeEnded": "resilisim.policies:EpisodeEnded",
    "InjectedFailure": "resilisim.injection:InjectedFailure",
    "Law": "resilisim.simulator:Law",
    "ModelSettings": "resilisim.evaluation:ModelSettings",
    "Task": "resilisim.tasks:Task",
    "ToolFailed": "resilisim.policies:ToolFailed",
    "ToolLibrary": "resilisim.tool_library:ToolLibrary",
    "benchmark_tasks": "resilisim.tasks.benchmark:benchmark_tasks",
    "bound": "resilisim.simulator.exact:references",
    "compare_runs": "resilisim.evaluation:compare_runs",
    "default_library": "resilisim.tool_library:default_library",
    "evaluate": "resilisim.evaluation:evaluate",
    "fit_law": "resilisim.injection:fit_law",
    "inject": "resilisim.injection:inject",
    "load_law": "resilisim.simulator:load_law",
    "load_library": "resilisim.tool_library:load_library",
    "make_policy": "resilisim.policies:make_policy",
    "open_session": "resilisim.evaluation:open_session",
    "read_results": "resilisim.evaluation:read_results",
    "track_usage": "resilisim.policies:track_usage",
    "write_report": "resilisim.reporting:write_report",
}

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


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _LAZY_NAMES:
        raise AttributeError(f"module 'resilisim' has no attribute {name!r}")
    module, _, attribute = _LAZY_NAMES[name].partition(":")
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, those not yet loaded included."""
    return sorted(set(globals()) | set(__all__))


register_environments()
