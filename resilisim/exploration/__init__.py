"""Exploration: success rates of agents computed branch by branch, and the failures that make them lose."""

from __future__ import annotations

from resilisim.exploration.explored import Exploration, explore
from resilisim.exploration.failures.case import Case
from resilisim.exploration.programs import explore_program

__all__ = ["Case", "Exploration", "explore", "explore_program"]
