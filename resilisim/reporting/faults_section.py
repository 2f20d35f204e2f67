"""Of a run that was read from traces: which failures were the tools', and which faults the agents'."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from typing_extensions import TypedDict  # pydantic cannot read that of `typing` before Python 3.12

from resilisim.errors import StoreError
from resilisim.injection.traces.faults import FAULT_WORDS
from resilisim.injection.traces.recording import FAULTS_NAME
from resilisim.inputs import read_json, read_text, validated
from resilisim.reporting.page import Block, Section, say
from resilisim.tables.table import Table

_MOST_PLACES: Final = 20
_KINDS: Final = {
    "lost": "answer lost",
    "wait": "wait",
    "access": "access",
    "input": "input",
    "other": "other",
    "misuse": "bad call",
}


class _Fault(TypedDict):
    kind: str
    episode: int
    call: int
    tool: str
    words: str
    source: str


class _Faults(TypedDict):
    schema: str
    law: str
    traces: int
    calls: int
    tools: dict[str, dict[str, int]]
    agent: dict[str, int]
    faults: list[_Fault]
    untold: list[str]
    lost: dict[str, float] | None


def faults_section(directory: Path | str) -> Section | None:
    """Return the section on whose faults the failures in traces were; None of a run that was played here."""
    path = Path(directory) / FAULTS_NAME
    if not path.is_file():
        return None
    value: Any = read_json(read_text(path, "faults"), str(path))
    faults = validated(_Faults, {"lost": None, **value}, str(path), error=StoreError)
    blocks: list[Block] = []
    if faults["lost"] is not None:
        points = {name: f"{value:.1f}" for name, value in faults["lost"].items()}
        blocks.append(say("faults_lost", **points))
    rows = [
        [tool, counts.get("calls", 0), *(counts.get(kind, 0) for kind in _KINDS)]
        for tool, counts in faults["tools"].items()
    ]
    blocks.append(Table.of_values(say("faults_of_tools"), ["tool", "calls", *_KINDS.values()], rows))
    if faults["faults"]:
        counted = [[FAULT_WORDS.get(kind, kind), count] for kind, count in faults["agent"].items()]
        blocks.append(Table.of_values(say("faults_of_agents"), ["what", "times"], counted))
        places = [
            [FAULT_WORDS.get(each["kind"], each["kind"]), each["source"], each["call"], each["tool"], each["words"]]
            for each in faults["faults"][:_MOST_PLACES]
        ]
        heads = ["what", "trace", "call", "tool", "what it had been told"]
        blocks.append(Table.of_values(say("faults_places"), heads, places))
    blocks += faults["untold"]
    return Section("faults", "Faults of tools, faults of agents", blocks)
