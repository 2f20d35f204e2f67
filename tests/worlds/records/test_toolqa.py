"""The loader of ToolQA, on a small folder of its form, and on wrong ones."""

import json
import math
import pickle
import shutil

import networkx
import pytest

from resilisim import EnvironmentSettings, evaluate
from resilisim.cli.main import main
from resilisim.datasets.run_tables import episode_row, step_rows
from resilisim.errors import InvalidInputError
from resilisim.evaluation.run.rescoring import rescore_run
from resilisim.evaluation.run.store import read_failures
from resilisim.evaluation.table.leaderboard import read_leaderboard
from resilisim.reporting import write_report
from resilisim.worlds import load_world
from resilisim.worlds.records import load_toolqa


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RESILISIM_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "ToolQA"

    def write(path, text):
        file = root / "data" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())

    def line(**value):
        return json.dumps(value) + "\n"

    write("questions/easy/coffee-easy.jsonl", line(qid="easy-coffee-0", question="Open?", answer="42.75"))
    write("questions/easy/gsm8k-easy.jsonl", line(qid="easy-gsm8k-0", question="How many?", answer=147.0))
    write("questions/hard/genda-hard.jsonl", line(qid="hard-agenda-0", question="What?", answer="Art walk"))
    write("external_corpus/coffee/coffee_price.csv", "Date,Open\n2000-01-03,122.25\n2000-01-04,116.25\n")
    business = line(name="A B", stars=4.5, hours={"Monday": "8-9"})
    write("external_corpus/yelp/yelp_academic_dataset_business.json", business)
    write("external_corpus/agenda/agenda_descriptions_merged.jsonl", line(event="Ann goes to the art walk."))
    papers, authors = networkx.DiGraph(), networkx.Graph()
    papers.add_node("p1", title="One", venue={"raw": "V"}, n_citation=0)
    papers.add_edge("p1", "p2")
    authors.add_edge("a1", "a2", weight=1, papers=["p1"], n_citation=[0])
    names = {"id2title_dict": {"p1": "One", "p2": "Two"}, "id2author_dict": {"a1": "Ann", "a2": "Bo"}}
    for name, value in {"paper_net": papers, "author_net": authors, **names}.items():
        write(f"external_corpus/dblp/{name}.pkl", pickle.dumps(value))
    return root


def test_its_questions_and_its_data_are_there(folder):
    world = load_world(f"toolqa:{folder}")
    by_domain = {task.metadata["domain"]: task for task in world.tasks()}
    assert set(by_domain) == {"coffee", "arithmetic", "agenda"}
    assert world.grade(by_domain["arithmetic"], "147", []).correct
    assert world.grade(by_domain["coffee"], "42.750", []).correct
    assert not world.grade(by_domain["coffee"], "42.7", []).correct
    assert world.grade(by_domain["agenda"], "the art walk", []).correct
    workspace = world.open(by_domain["coffee"], 0)
    workspace.call("LoadDB", {"db_name": "coffee"})
    workspace.call("FilterDB", {"condition": "Date=2000-01-04"})
    assert workspace.call("GetValue", {"column_name": "Open"})["values"] == [116.25]
    assert workspace.call("SQLInterpreter", {"sql": "SELECT name, hours.Monday FROM yelp"})["rows"] == [["A B", "8-9"]]
    assert workspace.call("RetrieveAgenda", {"keyword": "art"})["passages"] == ["Ann goes to the art walk."]
    workspace.call("LoadGraph", {"graph_name": "PaperNet"})
    workspace.call("LoadGraph", {"graph_name": "AuthorNet"})
    near = workspace.call("NeighbourCheck", {"graph_name": "PaperNet", "node": "One"})["neighbours"]
    assert near == [{"node": "Two", "relation": "cites"}]
    edge = workspace.call("EdgeCheck", {"graph_name": "AuthorNet", "node1": "Bo", "node2": "Ann"})["attributes"]
    assert edge["papers"] == ["One"]
    workspace.close()
    world.records.database.close()


@pytest.mark.parametrize(
    "place",
    [
        "questions/easy/flight-easy.jsonl",
        "external_corpus/coffee/coffee_price.csv",
        "external_corpus/agenda/agenda_descriptions_merged.jsonl",
        "external_corpus/dblp/paper_net.pkl",
        "questions/easy",
    ],
)
def test_links_out_of_the_folder_are_not_followed(folder, place, tmp_path):
    secret = tmp_path / "elsewhere"
    secret.mkdir()
    (secret / "coffee-easy.jsonl").write_text("root:x:0:0\n")
    file = folder / "data" / place
    if file.is_dir():
        shutil.rmtree(file)
        file.symlink_to(secret)
    else:
        file.unlink(missing_ok=True)
        file.symlink_to(secret / "coffee-easy.jsonl")

    def read():
        world = load_toolqa(folder)
        world.records.find_passages("agenda", "art", 1)
        return world.records.graphs

    with pytest.raises(InvalidInputError, match="is a link out of its folder"):
        read()


def test_links_within_the_folder_and_to_it_are_followed(folder, tmp_path):
    easy = folder / "data/questions/easy"
    (easy / "flight-easy.jsonl").symlink_to(easy / "coffee-easy.jsonl")
    (tmp_path / "link").symlink_to(folder)
    assert len(load_toolqa(tmp_path / "link").tasks()) == 4


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("flight-medium.jsonl", "{}", "expected a name such as flight-easy.jsonl"),
        ("books-easy.jsonl", "{}", "expected a name such as flight-easy.jsonl"),
        ("flight-easy.jsonl", "{", "line 1: not valid JSON"),
        ("flight-easy.jsonl", '{"qid": "a", "question": "b"}', "line 1: field 'answer' is missing"),
        ("flight-easy.jsonl", '\n{"qid": [], "question": "b", "answer": 1}', "line 2"),
        ("flight-easy.jsonl", "[1]", "line 1"),
    ],
)
def test_wrong_files_are_refused_in_one_line(folder, file, text, problem):
    (folder / "data/questions/easy" / file).write_text(text)
    with pytest.raises(InvalidInputError) as caught:
        load_toolqa(folder)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_questions_are_played_without_a_reference_solution(folder, tmp_path, capsys):
    """Success is that of the answer; V*, ceiling and luck are absent, and every door says so."""

    def agent(session):
        return "42.75" if "Open?" in session.prompt else "Art walk"

    out = tmp_path / "run"
    result = evaluate(agents=agent, tasks=f"toolqa:{folder}", out=out)
    (row,) = result.rows
    records = list(result.records())
    assert sum(record["outcome"] for record in records) == 2
    assert {record["no_ceiling"] for record in records} == {"the task has no reference solution"}
    assert (row.success.value, row.num_without_reference, row.has_no_ceiling) == (2 / 3, 3, True)
    for estimate in (row.optimum, row.ceiling, row.luck_adjusted, row.adjusted_share, row.luck, row.regret):
        assert math.isnan(estimate.value)
    assert not row.losses
    assert "In 3 episodes the task has no reference solution" in str(result.table())
    page = write_report(out).read_text()
    assert "In 3 episodes the task has no reference solution" in page
    board = read_leaderboard([out])
    assert math.isnan(board.sections["baseline"][0].entry.summary.luck_adjusted.value)
    with pytest.raises(SystemExit):
        main(["runs", "episode", str(out), "0"])
    shown = capsys.readouterr().out
    assert "no V*: the task has no reference solution" in shown
    assert "regret" not in shown
    assert rescore_run(out).num_agreeing == 3
    for prompt in ("optimal", "flawed:missing_step"):
        with pytest.raises(InvalidInputError, match="3 of 3 tasks have no reference solution to make one of"):
            evaluate(agents=agent, tasks=f"toolqa:{folder}", prompts=prompt)


def test_a_folder_without_a_question_is_refused(folder):
    for file in (folder / "data/questions").glob("*/*"):
        file.write_text("\n")
    with pytest.raises(InvalidInputError, match="holds no question"):
        load_toolqa(folder)


def test_a_line_ends_with_a_line_feed_only(folder):
    question = {"qid": "easy-coffee-1", "question": "Open\u2028on\x85Monday?", "answer": "1"}
    (folder / "data/questions/easy/coffee-easy.jsonl").write_text(json.dumps(question, ensure_ascii=False))
    assert "Open\u2028on\x85Monday?" in [task.description for task in load_toolqa(folder).tasks()]


def test_data_that_is_not_there_is_told_and_is_an_answer_for_the_agent(tmp_path):
    """The questions alone, as the repository has them."""
    questions = tmp_path / "data/questions/easy"
    questions.mkdir(parents=True)
    line = json.dumps({"qid": "easy-scirex-0", "question": "Who?", "answer": "x"})
    (questions / "scirex-easy.jsonl").write_text(line)
    lacking = "lacks scirex in data/external_corpus"
    heard = []

    def agent(session):
        calls = {
            "RetrieveScirex": {"keyword": "who"},
            "RetrieveAgenda": {"keyword": "who"},
            "LoadGraph": {"graph_name": "PaperNet"},
            "LoadDB": {"db_name": "flights"},
        }
        heard.extend(session.call(name, parameters).error for name, parameters in calls.items())
        return "x"

    with pytest.warns(UserWarning, match=lacking):
        result = evaluate(agents=agent, tasks=f"toolqa:{tmp_path}", environment=EnvironmentSettings(law="none"))
    assert [record["outcome"] for record in result.records()] == [1]
    assert all("NOT_FOUND" in said for said in heard[:3])
    assert "flights" in heard[3]
    assert not list(read_failures(result.directory))


def test_a_folder_has_to_be_named():
    with pytest.raises(InvalidInputError, match="expected toolqa:FOLDER"):
        load_world("toolqa")


def test_exported_tables_hold_no_value_that_nobody_knows(folder, tmp_path):
    result = evaluate(agents=lambda session: "42.75", tasks=f"toolqa:{folder}", out=tmp_path / "run")
    record = next(result.records())
    row, steps = episode_row(record), step_rows(record)
    names = ("optimum", "regret", "luck", "loss_gave_up_early", "loss_other")
    assert [row[name] for name in names] == [None] * len(names)
    assert row["no_search_ceiling"] == "the task has no reference solution"
    assert [steps[0][name] for name in ("value", "action_value", "regret", "luck", "label")] == [None] * 5
