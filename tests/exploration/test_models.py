"""Language models that throw dice: the first reply to a conversation is kept, and sets of replies are independent."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from resilisim import evaluate, explore
from resilisim.errors import InvalidInputError
from resilisim.evaluation import read_records
from resilisim.evaluation.run.rescoring import rescore_run
from resilisim.exploration import Case
from resilisim.tasks.benchmark import benchmark_tasks
from tests.chat.loopback import Answer, LoopbackServer, Seen, completion
from tests.evaluation.agent_models import endpoint, following_answer

SHORT = next(task for task in benchmark_tasks("benchmark-v1") if len(task.required_tools) == 2)
GIVES_UP = 'Thought: enough\nAction: finish {"answer": "enough"}'


def whimsical(seen: Seen) -> Answer:
    """Follow the plan, but give up at every seventh request, whatever it is."""
    return completion(GIVES_UP) if seen.number % 7 == 0 else following_answer(seen)


@pytest.mark.long
def test_replies_are_kept_by_what_was_said_before_them(tmp_path: Path) -> None:
    with LoopbackServer(whimsical) as server:
        options = {"prompts": "optimal", "plays": 12, "dice": 2, "out": tmp_path}
        found = explore("react", [SHORT], model=endpoint(server), **options)
        asked = [str(seen.body["messages"]) for seen in server.requests]
        again = explore("react", [SHORT], model=endpoint(server), **options)
        assert len(server.requests) == len(asked)
    assert again.rows == found.rows
    (row,) = found.rows
    assert row.dice == 2
    assert row.plays == 24
    assert row.low < row.estimate < row.high
    records = list(read_records(tmp_path))
    assert len(asked) < sum(len(record["agent"]["calls"]) for record in records) / 2
    assert all(asked.count(each) <= 2 for each in asked)  # once in each set
    assert math.fsum(record["weight"] for record in records) == pytest.approx(1.0 - row.unplayed, abs=1e-9)
    assert rescore_run(tmp_path).agrees


def test_a_lost_episode_of_a_model_is_shrunk_and_no_conversation_is_asked_about_twice(tmp_path: Path) -> None:
    with LoopbackServer(following_answer) as server:
        model = endpoint(server)
        evaluate("react", [SHORT], "optimal", seeds=8, model=model, out=tmp_path, max_turns=4, base=0.5)
        lost = next(record for record in read_records(tmp_path) if not record["outcome"])
        with pytest.raises(InvalidInputError, match=r"ask the models anew \(--live\)"):
            Case.of_run(tmp_path, lost["index"]).adversary()
        server.requests.clear()
        case = Case.of_run(tmp_path, lost["index"], model=model)
        pattern = case.shrink().pattern
        num_asked = len(server.requests)
        assert case.play(pattern.force)["steps"] == pattern.record["steps"]
        assert len(server.requests) == num_asked
        asked = [str(seen.body["messages"]) for seen in server.requests]
    assert len(set(asked)) == len(asked)
    assert pattern.failures
