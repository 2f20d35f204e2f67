"""HotpotQA and LOFT files, written by hand in their published formats."""

import json
import re

import pytest

from resilisim import EnvironmentSettings, evaluate
from resilisim.errors import InvalidInputError
from resilisim.worlds import load_world
from resilisim.worlds.pages import hotpotqa_world, loft_world

HOTPOT = {
    "_id": "5a7",
    "question": "Which river runs through the birthplace of Ena Vosk?",
    "answer": "Mirren",
    "supporting_facts": [["Ena Vosk", 0], ["Ostrel", 1]],
    "context": [
        ["Ena Vosk", ["Ena Vosk was born in Ostrel.", " She painted."]],
        ["Ostrel", ["Ostrel is a town.", " It lies on the Mirren."]],
        ["Vane", ["Vane is a village."]],
    ],
    "type": "bridge",
    "level": "hard",
}
CORPUS = [
    {"pid": "p0", "title_text": "Ena Vosk", "passage_text": "Ena Vosk was born in Ostrel.", "metadata": {}},
    {"pid": "p1", "title_text": "Ostrel", "passage_text": "Ostrel is a town.", "metadata": {}},
    {"pid": "p2", "title_text": "Ostrel", "passage_text": "It lies on the Mirren.", "metadata": {}},
]
QUERY = {
    "qid": "q1",
    "query_text": "Where was Ena Vosk born?",
    "metadata": {"qrels": [["p0", 1], ["p1", 1], ["p2", 1]]},
    "answers": ["Ostrel", "town of Ostrel"],
}
TURNS = QUERY | {"query_text": ["Where was Ena Vosk born?", "On which river?"], "answers": [["Ostrel"], ["Mirren"]]}


def hotpot_file(folder, *questions):
    file = folder / "dev.json"
    file.write_text(json.dumps(questions))
    return file


def loft_folder(folder, queries=(QUERY,), corpus=CORPUS):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dev_queries.jsonl").write_text("".join(json.dumps(one) + "\n" for one in queries))
    (folder / "corpus.jsonl").write_text("".join(json.dumps(one) + "\n" for one in corpus))
    return folder


def test_hotpotqa_over_its_contexts(tmp_path):
    file = hotpot_file(
        tmp_path, HOTPOT, HOTPOT | {"_id": "6", "question": "Is Vane larger?", "answer": "no", "type": "comparison"}
    )
    world = load_world(f"hotpotqa:{file}")
    first, second = world.tasks()
    assert (first.task_type, second.task_type, first.metadata["id"]) == ("bridge", "comparison", "5a7")
    assert [call["parameters"]["query"] for call in first.metadata["reference"]] == ["Ena Vosk", "Ostrel"]
    assert first.metadata["evidence"] == [["Ena Vosk was born in Ostrel."], [" It lies on the Mirren."]]
    found = world.open(first, 0).call("search", {"query": "Ostrel"})["pages"][0]
    assert found == {"title": "Ostrel", "text": "Ostrel is a town. It lies on the Mirren."}
    assert world.grade(first, "the Mirren", []).correct
    assert world.grade(second, "no, it is not", []).score == 0.0  # a yes or a no shares tokens with nothing else


HUGGING_FACE = {
    **{name: HOTPOT[name] for name in ("question", "answer", "type", "level")},
    "id": "5a7",
    "supporting_facts": {"title": ["Ena Vosk", "Ostrel"], "sent_id": [0, 1]},
    "context": {
        "title": [title for title, _ in HOTPOT["context"]],
        "sentences": [sentences for _, sentences in HOTPOT["context"]],
    },
}


@pytest.mark.parametrize("given", [HUGGING_FACE, {k: v for k, v in HUGGING_FACE.items() if k != "id"}, HOTPOT])
@pytest.mark.parametrize("as_lines", [False, True])
def test_hotpotqa_in_each_layout_is_the_same_and_is_played(tmp_path, given, as_lines):
    file = tmp_path / "dev.json"
    other = given | {"question": "Is Vane\u2028larger?", "answer": "no"}
    lines = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in (given, other))
    file.write_text(lines if as_lines else json.dumps([given, other]))
    world = load_world(f"hotpotqa:{file}")
    official = load_world(
        f"hotpotqa:{hotpot_file(tmp_path, HOTPOT, HOTPOT | {'question': other['question'], 'answer': 'no'})}"
    )
    for task, expected in zip(world.tasks(), official.tasks(), strict=True):
        for name in ("evidence", "reference", "answers", "questions"):
            assert task.metadata[name] == expected.metadata[name]

    def agent(session):
        session.call("search", {"query": "Ostrel"})
        return "Mirren"

    result = evaluate(agents=agent, tasks=f"hotpotqa:{file}", seeds=2, environment=EnvironmentSettings(law="none"))
    assert sorted((r["index"], r["outcome"]) for r in result.records()) == [(0, 1), (1, 1), (2, 0), (3, 0)]


def test_supporting_facts_that_name_no_sentence_are_no_evidence(tmp_path):
    """The published files hold some."""
    facts = [["Ena Vosk", 0], ["Ostrel", 2], ["Elsewhere", 0]]
    (task,) = load_world(f"hotpotqa:{hotpot_file(tmp_path, HOTPOT | {'supporting_facts': facts})}").tasks()
    assert task.metadata["evidence"] == [["Ena Vosk was born in Ostrel."]]
    assert [call["parameters"]["query"] for call in task.metadata["reference"]] == ["Ena Vosk", "Ostrel", "Elsewhere"]


def test_pages_may_stand_in_a_folder(tmp_path):
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "Ostrel.txt").write_text("Ostrel, a whole article.")
    (pages / "Ena Vosk.md").write_text("Ena Vosk, another one.")
    worlds = [
        load_world(f"hotpotqa:{hotpot_file(tmp_path, HOTPOT)},{pages}"),
        loft_world(loft_folder(tmp_path / "loft"), pages=pages),
    ]
    for world in worlds:
        found = world.open(world.tasks()[0], 0).call("search", {"query": "Ostrel"})["pages"][0]
        assert found == {"title": "Ostrel", "text": "Ostrel, a whole article."}


def test_loft_scores_by_its_own_definitions(tmp_path):
    world = load_world(f"loft:{loft_folder(tmp_path / 'musique')}")
    (task,) = world.tasks()
    assert [call["parameters"]["query"] for call in task.metadata["reference"]] == ["Ena Vosk", "Ostrel"]
    assert (
        world.open(task, 0).call("search", {"query": "Ostrel"})["pages"][0]["text"]
        == "Ostrel is a town.\n\nIt lies on the Mirren."
    )
    assert world.grade(task, "It was the town of Ostrel", []).correct
    assert world.grade(task, "Ostr", []).score == 0.0


def test_lists_and_conversations_of_loft(tmp_path):
    (task,) = loft_world(loft_folder(tmp_path / "quest" / "128k")).tasks()
    assert (task.task_type, task.metadata["form"]) == ("list", "list")
    world = loft_world(loft_folder(tmp_path / "topiocqa", [TURNS]))
    (task,) = world.tasks()
    assert (task.task_type, task.metadata["form"]) == ("conversation", "turns")
    assert world.grade(task, "Ostrel; the Mirren", []).correct
    assert world.grade(task, "Ostrel; unknown", []).score == 0.5


MALFORMED_HOTPOT = [
    ("[", "not valid JSON at"),
    ("{}", "item 1, field 'question': is missing"),
    ('{"data": [\n]}', "line 1: not valid JSON"),
    ("[]", "expected a non-empty array of questions"),
    ("[3]", "item 1: got 3"),
    (
        json.dumps([{key: value for key, value in HOTPOT.items() if key != "answer"}]),
        "item 1, field 'answer': is missing",
    ),
    (json.dumps([HOTPOT | {"answer": ""}]), "item 1, field 'answer': got \"\"; expected a non-empty string"),
    (
        json.dumps([HOTPOT | {"context": {"title": ["Ostrel"]}}]),
        "field 'context': expected pairs, or the columns title",
    ),
    (json.dumps([HOTPOT | {"supporting_facts": {"title": ["Ostrel"], "sent_id": []}}]), "columns title and sent_id"),
    (json.dumps([HOTPOT | {"supporting_facts": {"title": "Ostrel", "sent_id": [0]}}]), "columns title and sent_id"),
    (json.dumps([HOTPOT | {"supporting_facts": ["Ostrel"]}]), "field 'supporting_facts', item 1: got \"Ostrel\""),
    (json.dumps([HOTPOT | {"context": [["Ostrel"]]}]), "field 'context', item 1"),
]


@pytest.mark.parametrize(("text", "message"), MALFORMED_HOTPOT)
def test_files_that_are_not_hotpotqa_are_refused(tmp_path, text, message):
    file = tmp_path / "dev.json"
    file.write_text(text)
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        hotpotqa_world(file)


MALFORMED_LOFT = [
    ([], CORPUS, "is empty; expected one JSON object a line"),
    ([QUERY], [], "is empty; expected one JSON object a line"),
    ([QUERY | {"answers": []}], CORPUS, "line 1, field 'answers': got 0; expected a non-empty list of answers"),
    ([QUERY | {"answers": [["Ostrel"]]}], CORPUS, "line 1, field 'answers'"),
    ([TURNS | {"answers": [["Ostrel"]]}], CORPUS, "got 1; expected a list of answers for each turn"),
    ([TURNS | {"answers": [["Ostrel"], []]}], CORPUS, "a turn has none"),
    ([QUERY | {"qid": 3}], CORPUS, "line 1, field 'qid': got 3"),
    ([QUERY | {"metadata": {"qrels": [["p9", 1]]}}], CORPUS, "no passage 'p9' in corpus.jsonl"),
    *(
        ([QUERY | {"metadata": {"qrels": qrels}}], CORPUS, "field 'qrels': got")
        for qrels in (5, True, "p0", {"p0": 1}, ["p0"], [[]], [[None]], [[["p0"], 1]], [[1.5]])
    ),
    ([QUERY], [*CORPUS, CORPUS[0]], "line 4: passage 'p0' was there before"),
    ([QUERY], [{"pid": "p0", "title_text": "x"}], "field 'passage_text': is missing"),
]


@pytest.mark.parametrize(("queries", "corpus", "message"), MALFORMED_LOFT)
def test_folders_that_are_not_loft_are_refused(tmp_path, queries, corpus, message):
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        loft_world(loft_folder(tmp_path / "nq", queries, corpus))


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match=r"HotpotQA file .* does not exist"):
        hotpotqa_world(tmp_path / "dev.json")
    with pytest.raises(InvalidInputError, match=r"expected text files called TITLE.txt"):
        hotpotqa_world(hotpot_file(tmp_path, HOTPOT), pages=tmp_path / "nowhere")
    (tmp_path / "Ostrel.txt").write_text("a")
    (tmp_path / "Ostrel.md").write_text("b")
    with pytest.raises(InvalidInputError, match="two files for 'Ostrel'"):
        hotpotqa_world(hotpot_file(tmp_path, HOTPOT), pages=tmp_path)
