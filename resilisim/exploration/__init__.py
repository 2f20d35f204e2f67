"""Exploration: the success rates of agents, computed branch by branch instead of sampled."""

from __future__ import annotations

from resilisim.exploration.explored import Exploration, explore

__all__ = ["Exploration", "explore"]
