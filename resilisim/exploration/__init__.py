"""Exploration: the success rates of agents, computed branch by branch instead of sampled."""

from __future__ import annotations

from resilisim.exploration.explored import Exploration, explore
from resilisim.exploration.programs import explore_program

__all__ = ["Exploration", "explore", "explore_program"]
