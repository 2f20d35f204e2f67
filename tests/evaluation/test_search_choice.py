"""What answers searches is chosen by name, stands in every record, and belongs to what an episode is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.settings import EnvironmentSettings
from resilisim.envs.workflow.context import resolve_similarity
from resilisim.errors import InvalidInputError, MissingExtraError, ResiliSimError, StoreError
from resilisim.evaluation import compare_runs, evaluate
from resilisim.evaluation.robustness import profile
from resilisim.evaluation.run.merge import merge_runs
from resilisim.evaluation.run.rescoring import rescore_run
from resilisim.evaluation.run.store import read_manifest
from resilisim.evaluation.table.comparing import incomparable
from resilisim.run_folder import refuse_other_arguments
from resilisim.simulator.exact import bound
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.searches import searches_needed
from resilisim.tool_library import default_library
from resilisim.tool_library.retrieval import ToolRetriever, default_retriever
from resilisim.workflows.steps import semantic_match_by_retrieval
from tests.evaluation.toy_policies import Quitter, Searching, toy_tasks

LIBRARY = default_library()
TASKS = benchmark_tasks()
SOME = TASKS[::250]
WORDS = default_retriever(LIBRARY, "lexical")
QUERY = "read a file"


@pytest.fixture
def no_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every search by meaning fail, as without the extra."""

    def missing(*arguments: Any) -> Any:
        raise MissingExtraError("not installed")

    for name in ("embed", "similarities", "tool_similarities"):
        monkeypatch.setattr(ToolRetriever, name, missing)


@pytest.mark.parametrize(
    "env",
    [
        ConversationEnv(search="lexical"),
        ConversationEnv(EnvironmentSettings(search="lexical")),
        ConversationEnv(EnvironmentSettings(search="semantic"), search="lexical"),
    ],
    ids=["by name", "in the settings", "in place of the settings'"],
)
@pytest.mark.usefixtures("no_meaning")
def test_every_way_to_choose_it_gives_the_same_answers(env: ConversationEnv) -> None:
    env.reset(seed=0, options={"task": TASKS[0]})
    info = env.step(f"<tool_search>{QUERY}</tool_search>")[4]
    assert info["search"] == [{"name": hit.name, "score": hit.score} for hit in WORDS.search(QUERY)]
    assert env.settings == EnvironmentSettings(search="lexical")


def test_a_function_answers_whatever_the_settings_say() -> None:
    env = ConversationEnv(EnvironmentSettings(search="lexical"), search=lambda query, k: [])
    env.reset(seed=0)
    assert env.step(f"<tool_search>{QUERY}</tool_search>")[4]["search"] == []
    with pytest.raises(InvalidInputError, match="unknown search 'lexcal': did you mean 'lexical'"):
        ConversationEnv(search="lexcal")


@pytest.mark.usefixtures("no_meaning")
def test_ceilings_are_those_of_the_chosen_search() -> None:
    env = ConversationEnv(search="lexical")
    found = [searches_needed(task, LIBRARY, WORDS.search_many) for task in SOME]
    assert [env.searches_needed(task) for task in SOME] == found
    records = evaluate(Quitter, SOME, search="lexical").records()
    assert [record["searches_needed"] for record in records] == [searches.fewest for searches in found]
    values = [bound(task, clairvoyant_seeds=0, search_many=WORDS.search_many) for task in SOME]
    assert [value["searches_needed"] for value in values] == [searches.fewest for searches in found]
    assert found != [searches_needed(task, LIBRARY) for task in SOME]  # the shipped numbers of the other search


@pytest.mark.usefixtures("no_meaning")
def test_a_run_says_what_answered_its_searches(tmp_path: Path) -> None:
    result = evaluate(Searching, TASKS[:3], search="lexical", out=tmp_path / "run")
    assert read_manifest(tmp_path / "run")["arguments"]["environment"]["search"] == "lexical"
    for task, record in zip(TASKS[:3], result.records(), strict=True):
        assert record["search"] == "lexical"
        assert record["searches_needed"] == searches_needed(task, LIBRARY, WORDS.search_many).fewest
    assert rescore_run(tmp_path / "run").num_agreeing == 3
    path = tmp_path / "run" / "episodes.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace('"search":"lexical",', "", 1), encoding="utf-8")
    summary = rescore_run(tmp_path / "run")
    assert "search is 'semantic' in the record and 'lexical' in the manifest" in str(summary)


def test_runs_by_meaning_are_what_they_were_before_there_was_a_choice(tmp_path: Path) -> None:
    result = evaluate(Quitter, toy_tasks(2), "optimal", out=tmp_path / "run")
    manifest = read_manifest(tmp_path / "run")
    assert "search" not in manifest["arguments"]["environment"]
    assert all("search" not in record for record in result.records())
    arguments = manifest["arguments"]
    spelt_out = {**arguments, "environment": {**arguments["environment"], "search": "semantic"}}
    assert incomparable(manifest, {**manifest, "arguments": spelt_out}) is None
    refuse_other_arguments(tmp_path, arguments, spelt_out)


@pytest.mark.parametrize("first", ["lexical", "semantic"])
def test_runs_of_both_searches_do_not_mix(first: str, tmp_path: Path) -> None:
    second = {"lexical": "semantic", "semantic": "lexical"}[first]
    arguments: dict[str, Any] = {"policies": Quitter, "tasks": toy_tasks(2), "prompts": "optimal"}
    a, b = tmp_path / "a", tmp_path / "b"
    evaluate(**arguments, search=first, out=a)
    evaluate(**arguments, search=second, out=b)
    places = f'environment.search is "{first}" there and "{second}" here'
    refused: list[tuple[Any, type[ResiliSimError], str]] = [
        (lambda: evaluate(**arguments, search=second, out=a), StoreError, places),
        (lambda: merge_runs([b, a], tmp_path / "merged"), StoreError, places),
        (
            lambda: compare_runs(a, b),
            InvalidInputError,
            f"cannot be compared: tool search is '{first}' in one and '{second}' in the other",
        ),
    ]
    for attempt, kind, words in refused:
        with pytest.raises(kind) as caught:
            attempt()
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_profile_goes_on_with_its_own_search_only(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"axes": "turns", "turns": [4], "out": tmp_path}
    profile("plan-follower", toy_tasks(1), 1, standard=EnvironmentSettings(search="lexical"), **arguments)
    with pytest.raises(StoreError, match=r'environment.search is "lexical" there and "semantic" here'):
        profile("plan-follower", toy_tasks(1), 1, **arguments)


@pytest.mark.usefixtures("no_meaning")
def test_flaws_and_similarities_follow_the_search() -> None:
    flawed = "flawed:semantic_drift:light:semantic_mismatch"
    result = evaluate("plan-follower", TASKS[:4], flawed, search="lexical")
    assert all(record["flaw"]["edits"] for record in result.records() if record["flaw"])
    found = resolve_similarity("lexical", LIBRARY, TASKS[:3])
    match = semantic_match_by_retrieval(WORDS)
    for row, task in zip(found, TASKS[:3], strict=True):
        assert row.tolist() == np.array(match(task.description, LIBRARY.names), dtype=np.float32).tolist()
