"""Injection: your own functions, servers and APIs under a law, and the law that fits calls that were recorded."""

from __future__ import annotations

from resilisim.injection.call import InjectedFailure
from resilisim.injection.functions import inject
from resilisim.injection.law_fit import FittedLaw, fit_law
from resilisim.injection.program_runs import run_program

__all__ = ["FittedLaw", "InjectedFailure", "fit_law", "inject", "run_program"]
