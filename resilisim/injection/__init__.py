"""Injection: your own functions, servers and APIs under a law, and the law that fits calls that were recorded."""

from __future__ import annotations

from resilisim.injection.call import InjectedFailure
from resilisim.injection.functions import inject
from resilisim.injection.law_fit import FittedLaw, FittedTool, fit_law
from resilisim.injection.real_apis import real_api_tables

__all__ = [
    "FittedLaw",
    "FittedTool",
    "InjectedFailure",
    "fit_law",
    "inject",
    "real_api_tables",
]
