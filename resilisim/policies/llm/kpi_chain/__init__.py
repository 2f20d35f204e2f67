"""KPI-Chain: plans whose tasks carry typed entities as the test of their success, and continuation after failures."""

from resilisim.policies.llm.kpi_chain.agent import KpiChain
from resilisim.policies.llm.kpi_chain.entities import LabelledExtraction, ThresholdPoint, threshold_sweep
from resilisim.policies.llm.kpi_chain.plan import KpiChainOptions

__all__ = ["KpiChain", "KpiChainOptions", "LabelledExtraction", "ThresholdPoint", "threshold_sweep"]
