"""Environments: what an agent sees of the simulator.

    >>> from resilisim.envs import ConversationEnv, EnvironmentSettings
    >>> env = ConversationEnv(EnvironmentSettings(base=0.7, max_turns=8))
    >>> observation, info = env.reset(seed=0)

Names are looked up on first use, so that commands can read the options without loading the simulator.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
