"""Fields of requests: in manifests, in records, in what replies are found by; and what tables say of them."""

import json

import pytest

from resilisim.errors import InvalidInputError
from resilisim.evaluation import compare_runs, evaluate, read_manifest
from resilisim.evaluation.run.contestants import ModelSettings
from resilisim.evaluation.run.replay import find_episode, replay_episode
from resilisim.reporting.agent_sections import agent_tables
from resilisim.tasks.benchmark import benchmark_tasks, find_task

FINISH = 'Thought: done\nAction: finish {"answer": "done"}'
COLD, WARM, PLANNER = "react", "react[temperature=0.6]", "react[model_options=top_p=0.5;agent.temperature=0.9]"


@pytest.fixture
def models(tmp_path):
    """Models that end every episode at once."""
    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps({"reply": FINISH}) + "\n")
    return lambda *options: ModelSettings(models=(f"scripted:{script}",), model_options=options)


def settings_of(result):
    return {record["policy"]: record["agent"]["calls"][0]["settings"] for record in result.records()}


def test_an_agents_own_fields_stand_over_those_of_the_run(models, tmp_path):
    options = ("reasoning_effort=low", "agent.temperature=0.3")
    result = evaluate([COLD, PLANNER], 1, "optimal", out=tmp_path / "run", model=models(*options))
    used = settings_of(result)
    assert (used[COLD]["temperature"], used[COLD]["extra"]) == (0.3, {"reasoning_effort": "low"})
    assert (used[PLANNER]["temperature"], used[PLANNER]["top_p"]) == (0.9, 0.5)
    arguments = read_manifest(tmp_path / "run")["arguments"]
    assert arguments["model_options"] == list(options)
    named = arguments["models_of_policies"]
    assert named[COLD]["agent"].endswith(', reasoning_effort="low", temperature=0.3')
    assert named[PLANNER]["agent"].endswith(', reasoning_effort="low", temperature=0.9, top_p=0.5')
    for index in (0, 1):  # the models are not asked again, and what they were asked with is the same
        record = find_episode(tmp_path / "run", str(index))
        again = replay_episode(tmp_path / "run", record, find_task, None)
        assert again["agent"]["calls"][0]["settings"] == used[record["policy"]]


def test_tables_say_that_agents_were_sampled_differently(models, tmp_path):
    mixed = evaluate([COLD, WARM], 2, "optimal", out=tmp_path / "mixed", model=models())
    note = agent_tables(mixed.agents())[0].notes[-1]
    assert note.startswith(f"Models were sampled differently ({COLD}: temperature 0; {WARM}: temperature 0.6)")
    assert compare_runs(tmp_path / "mixed", tmp_path / "mixed").sampled_differently == note
    same = evaluate([COLD, WARM], 2, "optimal", out=tmp_path / "same", model=models("temperature=0.6", "top_p=1"))
    assert "sampled differently" not in str(agent_tables(same.agents())[0].notes)
    assert compare_runs(tmp_path / "same", tmp_path / "same").sampled_differently is None


def test_wrong_options_are_refused_before_anything_is_played(models, tmp_path):
    with pytest.raises(InvalidInputError, match="did you mean 'planner'"):
        models("planer.temperature=0")
    with pytest.raises(InvalidInputError, match="option model_options"):
        evaluate("react[model_options=temperature=9]", benchmark_tasks()[:1], out=tmp_path / "x", model=models())
    assert not (tmp_path / "x").exists()
