"""The options of KPI-Chain."""

from __future__ import annotations

from dataclasses import dataclass

from resilisim.policies.llm.options import AgentOptions, flag, limit, number


@dataclass(frozen=True, slots=True, kw_only=True)
class KpiChainOptions(AgentOptions):
    """What KPI-Chain can be told; the defaults are the paper's."""

    theta: float = number(0.7, "confidence that is enough for an entity", least=0.0, most=1.0)
    replans: int = limit(3, "how often a task and its successors (T3, T3a, T3b) may be planned anew")
    retries: int = limit(3, "how often a component is asked again after a reply that cannot be read")
    chunk_tokens: int = limit(3000, "tokens after which an output is extracted piece by piece", least=1)
    interpolation: bool = flag(True, "whether a reference may stand within a longer text")
    unite_arrays: bool = flag(False, "whether arrays found in several pieces are put together")
    raw_response_to_replanner: bool = flag(False, "whether the replanner sees the tool's response")
    entities: bool = flag(True, "false: tasks pass on their output as text, with no test (Plan-and-Execute)")
    replanning: bool = flag(True, "false: the first failed task ends the episode")
    memory: bool = flag(True, "false: later tasks get the whole outputs of earlier ones instead of entities")
