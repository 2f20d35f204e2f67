"""Planners' scripts, so that a small model plays the parts behind: `python -m tests.doubles.agent_scripts FOLDER`.

The smallest language models write no plan that can be read, and what comes after a plan would never run with one.
docs/results/agents.md holds the commands that use these.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

CALLS = 60  # more than any of the episodes makes

_KPI_PLAN = """\
tasks:
  - task_id: T1
    task_description: Find a tool that lists the files to work on
    task_type: Tool call
    tool_name: tool_search
    input_parameters:
      - {name: query, type: string, value: list files in a folder, is_reference: false}
    expected_output_entities:
      - {name: best_tool, type: string, description: name of the first tool in the list}
    dependencies: []
    execution_status: pending
    execution_result: {}
  - task_id: T2
    task_description: Run the tool that was found
    task_type: Tool call
    tool_name: tool_call
    input_parameters:
      - {name: name, type: string, value: <JSON_PATH>T1.best_tool</JSON_PATH>, is_reference: true}
    expected_output_entities:
      - {name: file_count, type: number, description: number of files}
    dependencies: [T1]
    execution_status: pending
    execution_result: {}
  - task_id: T3
    task_description: Say how many files there are
    task_type: Reasoning
    tool_name: ""
    input_parameters:
      - {name: count, type: number, value: <JSON_PATH>T2.file_count</JSON_PATH>, is_reference: true}
    expected_output_entities:
      - {name: final_answer, type: string, description: the answer}
    dependencies: [T2]
    execution_status: pending
    execution_result: {}
"""
_STEPS = {
    "steps": [
        {"step": 1, "task": "Find a tool that lists files.", "needs": []},
        {"step": 2, "task": "Run the tool that was found.", "needs": [1]},
    ]
}
_QUESTION = "<|begin_search_query|>Which tool lists the files in a folder?<|end_search_query|>"
_SEARCH = 'Thought: I look for one.\nAction: tool_search {"query": "list files in a folder"}'
_FINISH = 'Thought: That will do.\nAction: finish {"answer": "done"}'

# File -> the reply to the first call of an episode, and the reply to each later one.
SCRIPTS = {
    "kpi_planner.jsonl": (_KPI_PLAN, _KPI_PLAN),
    "step_planner.jsonl": (json.dumps(_STEPS), json.dumps({"answer": "done"})),
    "question_planner.jsonl": (_QUESTION, "<finish>done</finish>"),
    "trial.jsonl": (_SEARCH, _FINISH),
}


def write_scripts(folder: Path) -> None:
    """Write the scripts into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (first, later) in SCRIPTS.items():
        lines = [json.dumps({"reply": reply}) for reply in (first, *[later] * (CALLS - 1))]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_scripts(Path(sys.argv[1]))
