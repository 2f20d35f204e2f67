"""The step-limit experiment: what a limit ended is played again with more steps, on the same draws."""

import pytest

from resilisim.errors import InvalidInputError
from resilisim.evaluation import evaluate, read_manifest
from resilisim.evaluation.extension import extend_run, limit_of
from resilisim.evaluation.run.contestants import ModelSettings
from resilisim.evaluation.run.plan import PlannedEpisodes
from resilisim.evaluation.run.store import read_records
from resilisim.tasks.benchmark import benchmark_tasks, find_task
from tests.chat.loopback import LoopbackServer, completion


class Patient:
    """Calls the tools of a task in order, each until it has succeeded, after two idle questions."""

    def __init__(self, tasks) -> None:
        self.tasks = [find_task(task) for task in tasks]

    def __call__(self, seen):
        said = [str(message["content"]) for message in seen.body["messages"]]
        plan = next(task.required_tools for task in self.tasks if any(task.description in text for text in said))
        done = [name for name in plan if any(f"{name} executed successfully" in text for text in said[2:])]
        turns = sum(message["role"] == "assistant" for message in seen.body["messages"])
        if turns < 2:
            return completion(f'Thought: let me look.\nAction: tool_info {{"name": "{plan[turns % len(plan)]}"}}')
        if len(done) == len(plan):
            return completion('Thought: done.\nAction: finish {"answer": "done"}')
        return completion(f'Thought: next.\nAction: tool_call {{"name": "{plan[len(done)]}"}}')


@pytest.fixture
def tasks():
    short = [task for task in benchmark_tasks("benchmark-v1") if len(task.required_tools) == 2]
    return [task.instance_id for task in short[:6]]


@pytest.fixture
def server(tasks):
    with LoopbackServer(Patient(tasks)) as server:
        yield server


def models_at(server):
    return ModelSettings(models=(f"openai:patient@{server.base_url}",))


def keys(records):
    return {(record["instance_id"], record["prompt_type"], record["seed"]): record for record in records}


def test_only_what_a_limit_ended_is_played_again_and_on_the_same_draws(server, tasks, tmp_path):
    models = models_at(server)
    rules = {"loop_length": 0, "max_turns": 12}
    evaluate(["react[steps=5]", "exact-optimum"], tasks, "optimal", 2, out=tmp_path / "run", model=models, **rules)
    before = keys(r for r in read_records(tmp_path / "run") if r["policy"] == "react[steps=5]")
    limited = {key for key, record in before.items() if limit_of(record) == "steps"}
    assert 0 < len(limited) < len(before), "some are right within five steps"
    arguments = {"options": {"steps": 12}, "models_of": lambda policy: models}
    extended = extend_run(tmp_path / "run", tmp_path / "more", find_task, **arguments)
    after = keys(read_records(tmp_path / "more"))
    assert set(after) == limited
    assert extended.after == "react[steps=12]"
    for key, record in after.items():  # as far as the shorter one went, the longer one went the same way
        shared = len(before[key]["steps"]) - 1
        for one, other in zip(before[key]["steps"][:shared], record["steps"][:shared], strict=True):
            assert (one["message"], one["success"]) == (other["message"], other["success"])
    assert extended.num_right == sum(record["outcome"] == 1 for record in after.values()) > 0
    gained = extended.success(True).value - extended.success(False).value
    assert extended.gain.value == pytest.approx(gained) == pytest.approx(extended.num_right / len(before))
    manifest = read_manifest(tmp_path / "more")["arguments"]
    assert manifest["num_episodes"] == len(limited)
    assert manifest["again"]["run"] == read_manifest(tmp_path / "run")["hash"]
    again = extend_run(tmp_path / "run", tmp_path / "more", find_task, **arguments)
    assert again.result.call.num_already_there == len(limited)
    assert again.to_mapping() == extended.to_mapping()
    assert "12" in str(extended.table())


def test_those_that_another_policy_solved_are_a_part_of_them(server, tasks, tmp_path):
    policies = ["react[steps=4]", "plan-follower"]
    evaluate(policies, tasks, "optimal", 2, out=tmp_path / "run", model=models_at(server))
    records = keys(r for r in read_records(tmp_path / "run") if r["policy"] == "plan-follower")
    solved = {key for key, record in records.items() if record["outcome"] == 1}
    assert 0 < len(solved) < len(records)
    extend_run(
        tmp_path / "run",
        tmp_path / "more",
        find_task,
        options={"steps": 10},
        solved_by="plan-follower",
        models_of=lambda policy: models_at(server),
    )
    assert set(keys(read_records(tmp_path / "more"))) <= solved


def test_turns_are_a_limit_of_any_policy(tasks, tmp_path):
    evaluate("repairing-follower", tasks, "optimal", 3, out=tmp_path / "run", max_turns=2)
    extended = extend_run(tmp_path / "run", tmp_path / "more", find_task, options={}, max_turns=10)
    assert set(extended.ended) == {"turns"}
    assert extended.num_right > 0


def test_what_would_change_nothing_is_refused(tasks, tmp_path):
    evaluate("exact-optimum", tasks[:1], "optimal", out=tmp_path / "run", base=1.0)
    for options, words in (({}, "nothing would be different"), ({"steps": 3}, "none was")):
        with pytest.raises(InvalidInputError, match=words):
            extend_run(tmp_path / "run", tmp_path / "more", find_task, options=options)
    with pytest.raises(InvalidInputError, match="did you mean 'exact-optimum'"):
        extend_run(tmp_path / "run", tmp_path / "more", find_task, options={"steps": 3}, policy="exact-optimun")
    assert not (tmp_path / "more").exists()


def test_some_places_of_a_plan_are_a_plan():
    tasks = benchmark_tasks()[:3]
    every = PlannedEpisodes(tasks, 2, ("optimal",), (0, 1))
    some = PlannedEpisodes(tasks, 2, ("optimal",), (0, 1), places=(1, 6, 11))
    assert [(e.task, e.policy, e.seed) for e in some] == [
        (e.task, e.policy, e.seed) for e in (every[1], every[6], every[11])
    ]
    assert [e.index for e in some] == [0, 1, 2]
    assert (len(some), some.part_size, list(some.pending(lambda index: index == 1))) == (3, 3, [0, 2])
