"""Environments: what an agent sees of the simulator.

    >>> from resilisim.envs import ConversationEnv, EnvironmentSettings
    >>> env = ConversationEnv(EnvironmentSettings(base=0.7, max_turns=8))
    >>> observation, info = env.reset(seed=0)

Names are looked up on first use, so that commands can read the options without loading the simulator.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resilisim.envs.checks import check_conversation_env
    from resilisim.envs.conversation import ConversationEnv, public_info
    from resilisim.envs.session import Session
    from resilisim.envs.settings import EnvironmentSettings

__all__ = ["ConversationEnv", "EnvironmentSettings", "Session", "check_conversation_env", "public_info"]

_MODULES = {
    "ConversationEnv": "conversation",
    "EnvironmentSettings": "settings",
    "Session": "session",
    "check_conversation_env": "checks",
    "public_info": "conversation",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
