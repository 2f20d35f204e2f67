from __future__ import annotations

import json
from pathlib import Path

import pytest

from resilisim.errors import ExactLimitError
from resilisim.simulator import load_law, shipped_laws
from resilisim.simulator.law import law_schema
from tests.cli.conftest import Command

SOLVED = ("optimum", "optimum_gap", "plan_following", "plan_following_with_search")


def test_one_tool_in_few_turns_is_a_geometric_series(command):
    # p falls by the factor 0.9 with every failure: 0.8, 0.72, 0.648.
    values = command("bound", "--required", "file_operations_reader", "--turns", "3", "--json").json()
    assert values.keys() == {*SOLVED, "clairvoyant", "clairvoyant_se", "first_call", "knowledge"}
    assert values["optimum"] == pytest.approx(1 - 0.2 * 0.28 * 0.352, abs=1e-12)
    assert values["plan_following_with_search"] == pytest.approx(1 - 0.2 * 0.28, abs=1e-12)
    assert (values["first_call"], values["knowledge"]) == ("file_operations_reader", "observing")
    assert values["clairvoyant_se"] >= 0.0
    certain = command("bound", "--required", "file_operations_reader", "--success-probability", "1", "--json").json()
    assert certain["optimum"] == 1.0


def test_task_and_its_tools_have_the_same_solved_references(command):
    task = command("tasks", "list", "--limit", "1", "--json").json()[0]
    by_id = command("bound", "--task", task["instance_id"], "--clairvoyant-seeds", "0", "--json").json()
    by_tools = command(
        "bound", "--required", ",".join(task["required_tools"]), "--clairvoyant-seeds", "0", "--json"
    ).json()
    assert {name: by_id[name] for name in by_tools} == by_tools
    assert by_id["first_call"] in command("bound", "--task", task["instance_id"], "--clairvoyant-seeds", "0").out


def test_means_of_a_file_are_the_means_of_its_tasks(command, tmp_path):
    lists = [
        ["file_operations_reader"],
        ["file_operations_reader"],
        ["file_operations_reader", "data_processing_parser"],
    ]
    path = tmp_path / "tasks.jsonl"
    lines = [json.dumps({"instance_id": f"task_{n}", "required_tools": tools}) for n, tools in enumerate(lists)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = command("bound", "--task", "all", "--tasks", path, "--clairvoyant-seeds", "0", "--json").json()
    assert [row["task_type"] for row in rows] == ["custom", "all"]
    assert [row["tasks"] for row in rows] == [3, 3]
    single = [
        command("bound", "--required", ",".join(tools), "--clairvoyant-seeds", "0", "--json").json() for tools in lists
    ]
    for name in SOLVED:
        assert rows[-1][name] == pytest.approx(sum(values[name] for values in single) / 3, abs=1e-12)
    assert "clairvoyant" not in rows[-1]


def test_means_of_all_hold_the_clairvoyant_one_with_its_standard_error(command, tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"instance_id": "a", "required_tools": ["file_operations_reader"]}\n', encoding="utf-8")
    arguments = ["bound", "--task", "all", "--tasks", path, "--turns", "1", "--clairvoyant-seeds", "400"]
    row = command(*arguments, "--json").json()[0]
    # One turn and nothing to choose: the clairvoyant agent succeeds exactly when the draw does.
    assert row["optimum"] == pytest.approx(0.8)
    assert row["clairvoyant_se"] == pytest.approx((row["clairvoyant"] * (1 - row["clairvoyant"]) / 399) ** 0.5)
    assert abs(row["clairvoyant"] - 0.8) < 5 * row["clairvoyant_se"]
    assert "custom" in command(*arguments).out


def bound_of(command, tools, *options):
    return command("bound", "--required", tools, "--clairvoyant-seeds", "0", "--json", *options).json()


def test_the_constants_of_the_law_are_options(command):
    def best(tools, *options):
        return bound_of(command, tools, *options)["optimum"]

    aggregator = "data_processing_aggregator"
    assert best(aggregator, "--turns", "1", "--not-executed", "0.25") == pytest.approx(0.8 * 0.25)
    assert best("file_operations_reader", "--turns", "2", "--history", "0.5") == pytest.approx(1 - 0.2 * 0.6)
    # Two turns: the parser has to be executed first, and whether it succeeded matters by the factor `failed`.
    two_turns = ["--turns", "2", "--not-executed", "0", "--history", "1", "--failed"]
    assert best(aggregator, *two_turns, "1") == pytest.approx(0.8)
    assert best(aggregator, *two_turns, "0") == pytest.approx(0.64)
    three = "file_operations_reader,data_processing_transformer,file_operations_writer"  # SPEC section 7
    assert best(three) == pytest.approx(0.923321, abs=1e-6)
    assert best(three, "--max-consecutive-failures", "0") == pytest.approx(0.929769, abs=1e-6)


def test_the_gap_is_shown_only_where_there_is_one(command, monkeypatch):
    exact = bound_of(command, "file_operations_reader")
    assert exact["optimum_gap"] == 0.0
    arguments = ["bound", "--required", "file_operations_reader", "--clairvoyant-seeds", "0"]
    assert "optimum_gap" not in command(*arguments).out
    monkeypatch.setattr(
        "resilisim.cli.evaluation.bound.computed_bounds", lambda *_, **__: {**exact, "optimum_gap": 0.0625}
    )
    assert "0.062500" in command(*arguments).out


@pytest.fixture
def too_large(tmp_path, monkeypatch):
    """A library with a tool of sixteen unlike dependencies, too many for a little memory, and tasks without it.

    As if there were so many tools that nothing bounds their lists, either.
    """

    def unbounded(problem, **_):
        raise ExactLimitError("no states are left to bound it by")

    monkeypatch.setattr("resilisim.simulator.exact.search.MAX_MEMO_BYTES", 1_000_000)
    monkeypatch.setattr("resilisim.simulator.exact.optimum.solve_reachable", unbounded)
    library, tasks = tmp_path / "library.json", tmp_path / "tasks.jsonl"
    names = [f"part_{number}" for number in range(16)]
    tools = [
        {"name": name, "description": f"Makes {name}.", "success_probability": 0.5 + 0.01 * number}
        for number, name in enumerate(names)
    ]
    tools.append({"name": "whole", "description": "Joins the parts.", "dependencies": names})
    library.write_text(json.dumps(tools), encoding="utf-8")
    lines = [
        {"instance_id": "a", "task_type": "joining", "required_tools": ["whole"]},
        {"instance_id": "b", "task_type": "making", "required_tools": ["part_0"]},
        {"instance_id": "c", "task_type": "making", "required_tools": ["part_1", "whole"]},
    ]
    tasks.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return ["--library", library, "--tasks", tasks, "--turns", "20"]


def test_tasks_that_are_too_large_do_not_stop_the_others(command, too_large):
    outcome = command("bound", "--task", "all", *too_large, "--json")
    assert outcome.code == 0, outcome.err
    rows = {row["task_type"]: row for row in outcome.json()}
    assert outcome.err.endswith("2 of 3 tasks are too large to be solved; the means leave them out\n")
    assert [(rows[name]["tasks"], rows[name]["unsolved"]) for name in ("joining", "making", "all")] == [
        (1, 1),
        (2, 1),
        (3, 2),
    ]
    alone = command("bound", "--task", "b", *too_large, "--clairvoyant-seeds", "0", "--json").json()
    for name in SOLVED:
        assert rows["joining"][name] is None
        assert rows["making"][name] == rows["all"][name] == pytest.approx(alone[name])
    assert rows["joining"]["clairvoyant"] is rows["joining"]["clairvoyant_se"] is None
    text = command("bound", "--task", "all", *too_large)
    assert text.code == 0
    assert "unsolved" in text.out
    assert "states" in command("bound", "--task", "a", *too_large).refusal()


def test_the_laws_that_ship_are_listed_and_shown(command: Command) -> None:
    listed = command("law", "list", "--json").json()
    assert [law["name"] for law in listed] == list(shipped_laws())
    for law in listed:
        shown = command("law", "show", law["name"], "--json").json()
        found = load_law(law["name"])
        assert shown["hash"] == found.content_hash
        assert {name for name in shown if name in found.parts} == set(law["parts"])
    outages = command("law", "show", "outages")
    assert "begins" in outages.out
    assert "agents can wait" in outages.err
    assert "two ceilings" in outages.err
    assert "agents can wait" not in command("law", "show", "meaningful-errors").err


def test_the_schema_is_that_of_the_model(command: Command) -> None:
    assert json.loads(command("law", "schema").out) == law_schema()


def test_a_file_is_checked(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("base: 0.9\nbases: {utility_cache: 0.5}\n")
    done = command("law", "check", path, "--json")
    assert done.json() == {"name": "mine", "parts": [], "hash": load_law(path).content_hash}
    assert "mine.yaml is a law: no parts; hash" in command("law", "check", path).out


def test_a_law_is_fitted_written_checked_and_shown(command: Command, tmp_path: Path) -> None:
    lines = [
        {"tool": f"find_{'ab'[k % 2]}", "error": "TIMEOUT" if k % 5 == 0 else None, "seconds": 0.1} for k in range(60)
    ]
    (tmp_path / "calls.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("mine.yaml", "mine.json"):
        out = tmp_path / name
        done = command("law", "fit", tmp_path, "--latency", "--out", out)
        assert done.code == 0, done.err
        assert "find_a" in done.out
        assert "TIMEOUT: 6" in done.out
        assert "These calls have no order" in done.err
        assert f"wrote {out}" in done.err
        law = load_law(out)
        assert (law.name, law.base, law.bases) == ("mine", 0.8, {"find_a": 0.8, "find_b": 0.8})
        assert law.latency is not None
        assert "--library FILE or --own-tools" in command("law", "check", out).refusal()
        assert "is a law" in command("law", "check", out, "--own-tools").out
        assert command("law", "show", out, "--json").json()["errors"] == {"TIMEOUT": 12.0}
    fitted = command("law", "fit", tmp_path, "--json").json()
    assert fitted["law"]["bases"] == {"find_a": 0.8, "find_b": 0.8}
    assert [row["calls"] for row in fitted["tools"]] == [30, 30]
    assert fitted["tools"][0]["base"]["low"] == pytest.approx(0.6143, abs=1e-4)


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("errors: {MAINTENANCE: 3}", "unknown error code 'MAINTENANCE' in errors (no tool documents it"),
        ("errors: {TIMEOUTS: 3}", "did you mean 'TIMEOUT'?"),
        ("error_kinds: {input_codes: [INVALID_INPUTS]}", "did you mean 'INVALID_INPUT'?"),
        ("bases: {reader: 0.5, writer: 0.6}", "unknown tool 'reader'"),
        ("broken: {probability: 0.1, tools: [netwrk]}", "did you mean 'network'?"),
        ("equivalents: {utility_cache: [utility_cash]}", "did you mean 'utility_cache'?"),
    ],
)
def test_names_that_a_library_does_not_have_are_refused(
    text: str, refusal: str, command: Command, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    assert refusal in command("law", "check", path).refusal()
    assert "is a law" in command("law", "check", path, "--own-tools").out


def test_a_law_for_the_tools_of_a_world_is_checked_by_its_library(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "apis.yaml"
    path.write_text("bases: {joke_fetcher: 0.5, word_fetcher: 0.7}\n")
    assert "apis.yaml is a law" in command("law", "check", path, "--tasks", "apis-v1").out
    assert "unknown tool 'joke_fetcher'" in command("law", "check", path, "--tasks", "records-v1").refusal()


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        ([], "RECORDS"),
        (["."], "holds no recorded calls"),
        ([".", "--out", "law.txt"], "expected a name that ends in .yaml, .yml, .json"),
        ([".", "--failures", "none"], "none"),
    ],
)
def test_what_cannot_be_fitted_is_one_line(
    arguments: list[str], refusal: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal in command("law", "fit", *arguments).refusal()


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("bas: 0.9", "unknown field 'bas': did you mean 'base'"),
        ("rate_limit: {calls: 0, window: 3}", "field 'rate_limit', field 'calls': got 0; expected a whole number"),
        ("errors: {TIMEOUT: 0}", "errors has no weight above 0"),
        ("errors: {TIMEOUT: -1}", "field 'errors'"),
        ("base: [", "not valid YAML"),
        ("bases: {utility_cahce: 0.5}", "unknown tool 'utility_cahce': did you mean 'utility_cache'"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(text: str, refusal: str, command: Command, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    assert refusal in command("law", "check", path).refusal()
