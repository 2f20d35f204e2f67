"""Runs checked against a published set: honest ones are taken, and whatever was changed, left out or added is found."""

from __future__ import annotations

import copy
import json
import math
import shutil
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation import evaluate
from resilisim.evaluation.episode.rejudging import rejudged
from resilisim.evaluation.episode.texts import opened, stored
from resilisim.evaluation.run.chain import CHAIN_NAME, Chain
from resilisim.evaluation.run.plan import hash_tasks
from resilisim.evaluation.run.store import EPISODES_NAME, FAILURES_NAME, RunStore, begun, read_manifest, read_records
from resilisim.evaluation.submission import (
    OPEN_SET,
    SHOWN_OF_A_KIND,
    Luck,
    check_submission,
    define_set,
    load_set,
    write_set,
)
from resilisim.policies.llm.agents.reflexion import Reflexion
from resilisim.policies.registry import BUILT_IN_POLICIES, LLM_POLICIES, PRIVILEGED_POLICIES, make_policy
from resilisim.provenance import content_hash, encode_json_line
from resilisim.seeding import Draws
from resilisim.tasks.benchmark import BENCHMARK_VERSION, benchmark_identity, benchmark_tasks
from resilisim.tasks.sources import sample_tasks
from resilisim.tasks.split import split_of
from resilisim.tool_library import default_library
from tests.evaluation.agent_models import Doubting

SALT = "spring"
TASKS = [task for task in benchmark_tasks()[::600] if len(task.required_tools) > 2][:3]
PROMPTS = ["optimal", "flawed:missing_step"]


def play(out, policies=("plan-follower", "random"), **options):
    given = {"tasks": TASKS, "prompts": PROMPTS, "seeds": 2, "salt": SALT, "record_texts": "all"}
    evaluate(policies, out=out, progress=False, **{**given, **options})
    return out


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the folder of a run of 24 episodes."""
    return play(tmp_path_factory.mktemp("run") / "run")


@pytest.fixture(scope="module")
def published(run):
    """Return the set that it was played on."""
    return define_set(run, "spring-v1")


def changed(run, target, *, change=None, arguments=None):
    """Copy a run; `change` gets its opened records and returns those of the copy, `arguments` changes the manifest."""
    manifest = read_manifest(run)
    if arguments is not None:
        arguments(manifest["arguments"])
        manifest["hash"] = content_hash(manifest["arguments"])
    records = [copy.deepcopy(opened(record)) for record in read_records(run)]
    records = records if change is None else change(records)
    for record in records:
        if arguments is not None:
            record["manifest"] = manifest["hash"]
    target.mkdir()
    (target / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    lines = [encode_json_line(stored(record, "all" if "texts" in record else "none")) for record in records]
    (target / EPISODES_NAME).write_bytes(b"".join(lines))
    return rechained(target, lines)


def rechained(target, lines):
    """Make a chain for the lines of a folder, as somebody with patience would."""
    (target / CHAIN_NAME).unlink(missing_ok=True)
    chain = Chain(target, read_manifest(target)["hash"])
    chain.begin({})
    for line in lines:
        chain.add("episodes", line)
    chain.close()
    return target


def test_an_honest_run_is_taken_whatever_the_number_of_workers_and_the_order(run, published, tmp_path):
    counted = []
    found = check_submission(run, published, progress=counted.append)
    assert found.is_accepted, found.refusals
    assert (found.num_episodes, found.num_expected, sum(counted)) == (24, 24, 24)
    assert (found.policies, found.set_name, found.notes) == (("plan-follower", "random"), "spring-v1", ())
    assert [(luck.policy, luck.prompt_type, luck.num_episodes) for luck in found.luck] == [
        (policy, prompt, 6) for policy in found.policies for prompt in PROMPTS
    ]
    assert check_submission(run, published, workers=2) == found
    other_order = play(tmp_path / "order", prompts=PROMPTS[::-1], seeds=[1, 0])
    assert check_submission(other_order, published).is_accepted


def everywhere(change):
    def each(records):
        for record in records:
            change(record)
        return records

    return each


def at(number, change):
    def one(records):
        change(records[number])
        return records

    return one


def put(*place, value):
    def change(record):
        part = record
        for name in place[:-1]:
            part = part[name]
        part[place[-1]] = value

    return change


def failed_step(record):
    return next(step for step in record["steps"] if step["success"] is False)


def with_success(record):
    """Turn the first failure of an episode into a success, as somebody would who wants the point."""
    step = failed_step(record)
    step["success"], step["error"] = True, None


def without_flaw(record):
    record["flaw"] = None


def with_other_call(record):
    """Say that the agent had written something else than what is scored."""
    record["steps"][0]["message"] = "<tool_call>utility_logger</tool_call>"


def with_failures(records):
    return next(number for number, record in enumerate(records) if any(step["error"] for step in record["steps"]))


# What somebody does to a run, and the kind of its refusal, with words that it has to hold.
TAMPERED = {
    "left out": (lambda records: records[:7] + records[8:], "missing", "episode 7: it is missing (task_"),
    "only successes": (lambda records: [one for one in records if one["outcome"]], "missing", "expected all"),
    "doubled": (lambda records: [*records, records[3]], "doubled", "episode 3: it stands there twice"),
    "outcome": (
        at(11, lambda record: record.update(outcome=1 - record["outcome"])),
        "record",
        "episode 11: outcome is ",
    ),
    "score": (at(5, put("score", "level", value="partial_success")), "record", "episode 5: score.level is"),
    "optimum": (at(0, put("optimum", value=0.5)), "record", "optimum is 0.5"),
    "regret": (everywhere(put("regret", value=0.0)), "record", "regret is 0.0"),
    "luck": (at(2, put("luck", value=0.9)), "record", "luck is 0.9"),
    "success": (
        lambda records: at(with_failures(records), with_success)(records),
        "record",
        "is a failure, the record denies it",
    ),
    "cut off": (at(1, lambda record: record["steps"].pop()), "texts", ""),
    "seed": (at(4, put("seed", value=9)), "other_episode", "episode 4: seed is 9, expected 0"),
    "salt": (at(4, put("salt", value="mine")), "other_episode", "salt is 'mine' in the record and 'spring' in"),
    "no salt": (everywhere(put("salt", value="")), "other_episode", "salt is '' in the record"),
    "law": (at(4, put("law", "base", value=0.9)), "other_episode", "base is 0.9 in the record and 0.8 in"),
    "turns": (at(4, put("rules", "max_turns", value=20)), "other_episode", "max_turns is 20 in the record and 10"),
    "easier task": (
        at(4, lambda record: record["required_tools"].pop()),
        "other_episode",
        "episode 4: required_tools is [",
    ),
    "another task": (at(4, put("instance_id", value="task_0")), "other_episode", "instance_id is 'task_0', expected"),
    "prompt": (at(4, put("prompt_type", value="optimal[1]")), "other_episode", "prompt_type is 'optimal[1]'"),
    "policy": (at(4, put("policy", value="mine")), "other_episode", "policy is 'mine', expected 'random'"),
    "index": (at(4, put("index", value=99)), "other_episode", "episode 99: it is outside the run, expected a number"),
    "another run": (at(4, put("manifest", value="0" * 64)), "other_episode", "it belongs to another run"),
    "privileged": (everywhere(put("privileged", value=True)), "privileged", "policy plan-follower is privileged"),
    "no texts": (everywhere(lambda record: record.pop("texts")), "texts", "its texts were left out"),
    "another prompt": (
        at(6, put("texts", "prompt", value="Do it.")),
        "replay",
        "texts.prompt is 'Do it.' in the record and '# Task",
    ),
    "another reply": (at(6, put("texts", "replies", 0, value="Done.")), "replay", "texts.replies[0] is "),
    "another call": (at(0, with_other_call), "replay", "sent the same messages, "),
    "another error": (
        lambda records: at(with_failures(records), lambda record: failed_step(record).update(error="MINE"))(records),
        "replay",
        ".error is ",
    ),
    "no flaw": (everywhere(without_flaw), "replay", "flaw is "),
    "ceiling": (
        at(0, put("optimum_after_searches", value=0.1)),
        "record",
        "optimum_after_searches is 0.1 in the record and None",
    ),
    "protocol": (at(0, put("steps", 0, "kind", value="search")), "record", "executes nothing, but its success"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_what_was_changed_is_found(run, published, tmp_path, name):
    change, kind, words = TAMPERED[name]
    found = check_submission(changed(run, tmp_path / "copy", change=change), published)
    assert not found.is_accepted
    lines = [str(refusal) for refusal in found.refusals if refusal.kind == kind]
    assert lines, found.refusals
    assert any(words in line for line in lines), lines
    assert "\n" not in "".join(lines)
    assert all(sum(each.kind == kind for each in found.refusals) <= SHOWN_OF_A_KIND for kind in found.num_refusals)


def test_a_lower_ceiling_that_fits_the_record_is_found_by_the_replay(tmp_path):
    run = play(tmp_path / "run", "random", prompts="baseline", seeds=1)
    published = define_set(run, "found-v1")
    assert check_submission(run, published).is_accepted

    def lower(record):
        record["searches_needed"] += 1
        record["optimum_after_searches"] = rejudged(record, default_library())["optimum_after_searches"]

    found = check_submission(changed(run, tmp_path / "copy", change=everywhere(lower)), published)
    assert found.num_refusals == {"replay": 3}
    assert "searches_needed is " in str(found.refusals[0]) or "optimum_after_searches is " in str(found.refusals[0])


# A change of the manifest, and what is said of it.
OTHER_RUNS = {
    "benchmark": (
        lambda one: one["benchmark"].update(version="benchmark-v0"),
        "benchmark version is",
        BENCHMARK_VERSION,
    ),
    "texts": (lambda one: one["benchmark"].update(texts=1), "revision of the texts that agents read is 1", "2"),
    "library": (lambda one: one.update(library="0" * 64), 'tool library is "000', default_library().content_hash[:9]),
    "law": (lambda one: one["environment"].update(base=0.9), "law (base success probability) is 0.9", "0.8"),
    "turns": (lambda one: one["environment"].update(max_turns=20), "end rule max_turns is 20", "10"),
    "salt": (lambda one: one["environment"].update(salt="m"), 'salt of the draws is "m"', '"spring"'),
    "listed": (lambda one: one["environment"].update(tools="listed"), "option tools is", '"discovery"'),
    "search": (lambda one: one["environment"].update(search="lexical"), "tool search is", '"semantic"'),
    "unknown": (lambda one: one["environment"].update(bases=1), "options of its environment are not known", "bases"),
    "seeds": (lambda one: one.update(seeds=[0, 7]), "seeds[1] is 7", "1"),
    "more seeds": (lambda one: one.update(seeds=[0, 1, 2]), "seeds is [0,1,2]", "[0,1]"),
    "prompts": (lambda one: one.update(prompts=["optimal"]), 'prompts is ["optimal"]', "flawed:missing_step"),
    "tasks": (lambda one: one["tasks"].update(count=2), "tasks.count is 2", "3"),
    "other tasks": (lambda one: one["tasks"].update(sha256="0"), 'tasks.sha256 is "0"', hash_tasks(TASKS)[:9]),
    "size": (lambda one: one.update(num_episodes=12), "it plans 12 episodes", "24"),
    "no policy": (lambda one: one.update(policy_names=[]), "policies are []", "at least one"),
    "doubled": (lambda one: one.update(policy_names=["a", "a"]), 'policies are ["a","a"]', "each once"),
    "hidden": (lambda one: one.update(policies=[]), "policies are []", "one for each of"),
    "more": (lambda one: one.update(hints=True), "it has the argument 'hints'", "none of that name"),
}


@pytest.mark.parametrize("name", OTHER_RUNS)
def test_another_run_is_refused_with_what_is_other(run, published, tmp_path, name):
    change, value, expected = OTHER_RUNS[name]
    found = check_submission(changed(run, tmp_path / "copy", arguments=change), published)
    (refusal,) = [one for one in found.refusals if value in one.text]
    assert refusal.kind == "run"
    assert expected in refusal.text.rpartition(value)[2]
    assert (found.num_episodes, found.notes) == (0, ("episodes were not looked at, as the run is another one",))


@pytest.mark.parametrize(
    ("name", "value"),
    [("policies", None), ("policy_names", [["a"]]), ("prompts", 3), ("environment", -1), ("num_episodes", "many")],
)
def test_arguments_that_no_run_has_are_refused_in_one_line(run, published, tmp_path, name, value):
    folder = changed(run, tmp_path / "copy", arguments=lambda one: one.update({name: value}))
    with pytest.raises(StoreError, match=rf"^manifest of .*{name}.*expected [^\n]*$"):
        check_submission(folder, published)


def test_privileged_policies_are_refused_whatever_their_records_say(tmp_path, published):
    names = [name for name in BUILT_IN_POLICIES if name not in (*LLM_POLICIES, "trained")]
    assert {name for name in names if getattr(make_policy(name), "privileged", False)} | {"trained"} == set(
        PRIVILEGED_POLICIES
    )
    seen = play(tmp_path / "seen", "exact-optimum")
    hidden = changed(seen, tmp_path / "hidden", change=everywhere(put("privileged", value=False)))
    assert check_submission(seen, published).num_refusals == {"privileged": 13}
    found = check_submission(hidden, published)
    assert [str(each) for each in found.refusals] == [
        "policy exact-optimum is exact-optimum, which sees the state, expected one that does not"
    ]


def test_agents_that_try_again_are_refused_and_others_need_all_that_was_said(tmp_path, published):
    def reflexion(trials):
        return Reflexion(models=Doubting(), trials=trials)

    again = play(tmp_path / "again", partial(reflexion, "fresh"))
    found = check_submission(again, published)
    assert found.num_refusals == {"tries_again": 12}
    assert "in the same draws, expected the first try alone" in str(found.refusals[0])
    once = play(tmp_path / "once", partial(reflexion, "shared"))
    assert check_submission(once, published).is_accepted
    silent = play(tmp_path / "silent", partial(reflexion, "shared"), record_texts="none")
    assert check_submission(silent, published).num_refusals == {"texts": 12}


def call_the_first_tool(session):
    session.tools[0]()
    return "done"


def test_agents_with_a_loop_of_their_own_have_sets_too(tmp_path):
    run = tmp_path / "run"
    evaluate(agents=call_the_first_tool, tasks=TASKS, prompts="baseline", seeds=2, out=run, salt=SALT, progress=False)
    published = define_set(run, "functions-v1")
    assert (published.environment["protocol"], published.environment["tools"]) == ("native", "native")
    assert check_submission(run, published).is_accepted


def test_a_private_set_names_only_the_hash_of_its_salt(run, tmp_path):
    write_set(tmp_path / "set.json", define_set(run, "secret-v1", private=True))
    assert SALT not in (tmp_path / "set.json").read_text(encoding="utf-8")
    published = load_set(tmp_path / "set.json")
    with pytest.raises(InvalidInputError, match="is private, it names only the hash of its salt"):
        check_submission(run, published)
    with pytest.raises(InvalidInputError, match="the salt has the SHA-256"):
        check_submission(run, published, salt="summer")
    assert check_submission(run, published, salt=SALT).is_accepted
    other = changed(run, tmp_path / "other", arguments=lambda one: one["environment"].update(salt="known to all"))
    (refusal,) = check_submission(other, published, salt=SALT).refusals
    assert published.salt_sha256 in refusal.text
    assert SALT not in refusal.text


def test_what_broke_is_told(run, published, tmp_path):
    copied = changed(run, tmp_path / "copy", change=lambda records: records[:-1])
    broken = begun(3, "random", "optimal", "task_0", 0) | {"error": "endpoint", "reason": "it was down"}
    lines = [encode_json_line({**broken, "index": index}) for index in (3, 23)]
    (copied / FAILURES_NAME).write_bytes(b"".join(lines))
    found = check_submission(copied, published)
    assert [str(each).rpartition(", ")[2] for each in found.refusals if each.kind == "missing"] == [
        "expected all episodes; it broke: it was down"
    ]
    assert found.notes == ("1 episode broke and was played again, the first is episode 3: it was down",)


@pytest.mark.parametrize(
    ("failures", "words"),
    [
        ([{}, {}], "episode 3: it was handed out 2 times, expected once"),
        ([{"reason": "ConnectionError", "messages": ["another message"]}], "was played again in another way"),
        ([{}], None),
        ([{"reason": "ConnectionError", "messages": []}], None),
    ],
)
def test_an_episode_that_was_looked_at_twice_is_refused(run, published, tmp_path, failures, words):
    shutil.copytree(run, tmp_path / "copy")
    task = next(record["instance_id"] for record in read_records(run) if record["index"] == 3)
    with RunStore(tmp_path / "copy", read_manifest(run)["arguments"], 24) as store:
        for failure in failures:
            store.append_failure(encode_json_line({**begun(3, "plan-follower", "flawed", task, 1), **failure}))
    found = check_submission(tmp_path / "copy", published)
    assert set(found.num_refusals) == (set() if words is None else {"tries_again"})
    assert words is None or words in str(found.refusals[0])


@given(seed=st.integers(0, 10**9), chance=st.floats(0.05, 0.95), size=st.floats(0.01, 1.0))
def test_ordinary_luck_is_not_taken_for_knowledge_of_the_draws_and_knowledge_is(seed, chance, size):
    draws = Draws("tests/submission", seed)
    won = [(1.0 - chance if draws.uniform() < chance else -chance) * size for _ in range(300)]
    variance = 300 * chance * (1.0 - chance) * size**2
    assert Luck("honest", "optimal", 300, math.fsum(won), variance).bound > 1e-6
    assert (
        Luck("knows", "optimal", 300, 300 * (1.0 - chance) * size, variance).bound < 1e-2 or chance > 0.9 or size < 0.5
    )
    assert Luck("unlucky", "optimal", 300, -100.0, variance).bound == 1.0


def test_too_much_luck_is_refused(run, published, tmp_path, monkeypatch):
    monkeypatch.setattr("resilisim.evaluation.submission.DRAWS_LEVEL", 4.0)
    found = check_submission(run, published)
    assert set(found.num_refusals) == {"draws"}
    assert "which an agent that does not know the draws has at most" in str(found.refusals[0])


@pytest.mark.parametrize(("name", "version"), [(OPEN_SET, BENCHMARK_VERSION), ("open-v1", "benchmark-v1")])
def test_the_open_sets_are_what_their_page_says(name, version):
    published = load_set(name)
    tasks = sample_tasks(list(benchmark_tasks(version)), 100, split="test")
    assert published.tasks == [task.instance_id for task in tasks]
    assert {split_of(task.required_tools) for task in tasks} == {"test"}
    assert published.tasks_sha256 == hash_tasks(tasks)
    assert published.benchmark == benchmark_identity(tasks)
    assert published.library == default_library().content_hash
    assert (published.seeds, published.prompts, published.num_episodes) == ([0, 1, 2], ["baseline", "optimal"], 600)
    assert published.settings() == EnvironmentSettings(salt=f"resilisim/{name}")
    assert not published.is_private


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seeds": []}, "field 'seeds': got []"),
        ({"extra": 1}, "unknown field 'extra'"),
        ({"environment": {"base": 2}}, "base is 2"),
        ({"environment": {"bas": 0.8}}, "did you mean 'base'"),
        ({"environment": {"salt": ""}}, "expected one that is not empty"),
        ({"environment": {"salt": "other"}}, "the salt of set 'spring-v1' is 'other'"),
        ({"salt_sha256": "0"}, "salt_sha256"),
    ],
)
def test_a_file_that_is_no_set_is_refused_in_one_line(published, tmp_path, change, words):
    path = tmp_path / "set.json"
    path.write_text(json.dumps({**json.loads(published.to_json()), **change}), encoding="utf-8")
    with pytest.raises(InvalidInputError) as refused:
        check_submission(tmp_path, load_set(path), salt=SALT)
    assert words in str(refused.value)


def test_a_set_that_does_not_exist_or_lacks_tasks_is_refused(run, published, tmp_path):
    for name, words in (("opn-v2", "did you mean 'open-v2'"), (tmp_path / "no.json", "does not exist")):
        with pytest.raises(InvalidInputError, match=words):
            load_set(name)
    with pytest.raises(InvalidInputError, match="is not among the tasks: expected all of them"):
        check_submission(run, published, tasks=TASKS[1:])
    part = changed(run, tmp_path / "part", change=lambda records: records[:3])
    with pytest.raises(InvalidInputError, match="holds episodes of 1 of its 3 tasks"):
        define_set(part, "part-v1")
    assert check_submission(run, published, tasks=TASKS).is_accepted


def test_the_file_of_a_set_is_read_as_it_was_written(published, tmp_path: Path):
    write_set(tmp_path / "set.json", published)
    assert load_set(tmp_path / "set.json") == published
