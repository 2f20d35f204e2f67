"""The scripts of docs/results/agents.md bring their agents to the component behind the scripted one."""

import json

import pytest

from benchmarks.agent_scripts import CALLS, SCRIPTS, write_scripts
from resilisim.evaluation import evaluate


@pytest.mark.parametrize(
    ("agent", "role", "script", "behind"),
    [
        ("kpi-chain", "planner", "kpi_planner.jsonl", "extractor"),
        ("plan-and-execute", "planner", "step_planner.jsonl", "executor"),
        ("rp-react", "planner", "question_planner.jsonl", "executor"),
        ("reflexion", "agent", "trial.jsonl", "evaluator"),
    ],
)
def test_a_script_brings_its_agent_to_what_comes_behind(tmp_path, agent, role, script, behind):
    write_scripts(tmp_path)
    garbage = tmp_path / "garbage.jsonl"
    garbage.write_text((json.dumps({"reply": "no form at all"}) + "\n") * CALLS)
    models = (f"scripted:{garbage}", f"{role}=scripted:{tmp_path / script}")
    result = evaluate(f"{agent}[max_llm_calls=4]", 1, "optimal", 1, model=models)
    (sums,) = result.agents()
    assert behind in sums.components
    assert set(SCRIPTS) == {path.name for path in tmp_path.glob("*.jsonl")} - {garbage.name}
