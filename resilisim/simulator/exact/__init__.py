"""The exact optimum: values of states and messages, and the references that a task's score is compared with."""

from __future__ import annotations

from resilisim.simulator.exact.judging import Judge
from resilisim.simulator.exact.optimum import solve
from resilisim.simulator.exact.plan_following import obey_plan, plan_following
from resilisim.simulator.exact.references import bound

__all__ = ["Judge", "bound", "obey_plan", "plan_following", "solve"]
