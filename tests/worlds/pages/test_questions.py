"""Questions: right by brute force over the facts, found by the searches of their references, not to be guessed."""

import gzip
import hashlib
import json
import re
from collections import Counter
from importlib import resources

import pytest

from resilisim.errors import InvalidInputError
from resilisim.provenance import encode_json_line
from resilisim.tasks.split import SPLITS
from resilisim.worlds.answers import normalized
from resilisim.worlds.pages import guess_rates
from resilisim.worlds.pages.generated import (
    ENCYCLOPEDIA_SHA256,
    PAGES_FILE,
    PAGES_SHA256,
    PAGES_VERSION,
    QUESTION_KINDS,
    Recipe,
    encyclopedia_hash,
    generated_world,
    pages_v1,
)
from resilisim.worlds.pages.questions import solve

RECIPE = Recipe()
WORLD = pages_v1()
TASKS = WORLD.tasks()


@pytest.fixture(scope="module")
def encyclopedia():
    return WORLD.encyclopedia


def brute_force(query):
    """Return what a query means, from the list of facts alone."""
    facts = RECIPE.graph.facts
    operator, *rest = query
    if operator == "is":
        return {rest[0]}
    if operator in ("least", "most"):
        candidates = set().union(*map(brute_force, rest[1:]))
        years = {fact.subject: fact.value for fact in facts if fact.relation == rest[0] and fact.subject in candidates}
        best = (min if operator == "least" else max)(years.values())
        return {subject for subject, year in years.items() if year == best}
    if operator in ("of", "with"):
        inner = brute_force(rest[1])
        pairs = [(fact.subject, fact.value) for fact in facts if fact.relation == rest[0]]
        if operator == "of":
            return {value for subject, value in pairs if subject in inner}
        return {subject for subject, value in pairs if value in inner}
    first, second = map(brute_force, rest)
    return {"and": first & second, "or": first | second, "but": first - second}[operator]


def test_there_are_enough_questions_of_each_kind():
    assert min(Counter(task.task_type for task in TASKS).values()) >= 100
    assert {task.task_type for task in TASKS} == set(QUESTION_KINDS) == {task.task_type for task in TASKS[:6]}
    assert len({task.instance_id for task in TASKS}) == len(TASKS)
    assert Counter(len(task.metadata["reference"]) for task in TASKS if task.task_type == "hops").keys() == {2, 3, 4}


def test_answers_are_the_only_ones_by_brute_force_over_the_facts():
    for task in TASKS:
        found = [brute_force(query) for query in task.metadata["queries"]]
        right = [one if isinstance(one, str) else one[0] for one in task.metadata["right"]]
        if task.metadata["form"] == "list":
            assert {*map(str, found[0])} == {*right}
            assert 2 <= len(right) <= 12
        elif task.metadata["form"] == "turns":
            assert [set(map(str, one)) for one in found] == [{one} for one in right]
        else:
            assert [set(map(str, one)) for one in found] == [{right[0]}]


def test_references_are_executed_and_find_the_evidence(encyclopedia):
    for task in TASKS[::5]:  # of each kind; making the set again executes all
        meta = task.metadata
        known = normalized(" ".join(meta["questions"]))
        for call, sentences in zip(meta["reference"], meta["evidence"], strict=True):
            query = call["parameters"]["query"]
            assert normalized(query) in known  # from the question, or from what an earlier page said
            found = [page["text"] for page in encyclopedia.search(query)]
            assert any(all(sentence in text for sentence in sentences) for text in found)
            known += " " + normalized(" ".join(found))
        for answer in meta["right"]:
            assert normalized(answer if isinstance(answer, str) else answer[0]) in known


def test_a_question_whose_reference_fails_is_not_shipped():
    recipe = Recipe(size=60, seed=5, questions=8)
    kept = recipe.tasks("w")
    broken = Recipe(size=60, seed=5, questions=8)
    hidden = broken.pages[0].title, {page["title"] for page in broken.encyclopedia.search(broken.pages[0].title)}
    assert hidden[0] in hidden[1]
    used = Counter(call["parameters"]["query"] for task in kept for call in task.metadata["reference"])
    lost = used.most_common(1)[0][0]
    search = broken.encyclopedia.search
    broken.encyclopedia.search = lambda query: [page for page in search(query) if page["title"] != lost]
    assert not any(
        lost == call["parameters"]["query"] for task in broken.tasks("w") for call in task.metadata["reference"]
    )


def test_no_question_tells_its_answer_and_guessing_gets_less_than_a_twentieth():
    for task in TASKS:
        text = f" {normalized(task.description)} "
        assert not any(f" {normalized(str(answer))} " in text for answer in task.metadata["right"])
    assert max(guess_rates(TASKS).values()) < 0.05


def test_conversations_change_their_topic_and_refer_to_what_was_said():
    for task in TASKS:
        if task.task_type == "conversation":
            turns = task.metadata["questions"]
            assert 4 <= len(turns) <= 7
            assert len(task.metadata["reference"]) >= 3
            assert all(re.search(r"\b(he|she|that|the) ?", turn) for turn in turns[1:])
            assert not any(call["parameters"]["query"] in " ".join(turns) for call in task.metadata["reference"][1:])
            assert not any(re.search(r"of (he|she)\b|taught (he|she)\b", turn) for turn in turns)


def test_set_questions_need_each_of_their_lists():
    for task in TASKS:
        if task.task_type == "sets":
            operator, first, second = task.metadata["queries"][0]
            whole = brute_force([operator, first, second])
            assert whole not in (brute_force(first), brute_force(second))
            assert not re.search(r"\b(union|intersection|difference|both)\b", task.description)


def test_queries_are_solved_as_brute_force_solves_them():
    for task in TASKS[:60]:
        for query in task.metadata["queries"]:
            assert set(solve(RECIPE.graph, query)) == brute_force(query)


@pytest.mark.long
def test_the_command_makes_the_shipped_bytes_again(encyclopedia):
    data = gzip.decompress(resources.files("resilisim.worlds.pages").joinpath(PAGES_FILE).read_bytes())
    assert hashlib.sha256(data).hexdigest() == PAGES_SHA256
    assert encyclopedia_hash(encyclopedia) == ENCYCLOPEDIA_SHA256
    RECIPE.__dict__["encyclopedia"] = encyclopedia  # as just made from the recipe
    assert b"".join(encode_json_line(task.to_mapping()) for task in RECIPE.tasks(PAGES_VERSION)) == data


def test_splits_are_by_question():
    shares = Counter(task.metadata["split"] for task in TASKS)
    assert set(shares) == set(SPLITS)
    assert 0.6 < shares["train"] / len(TASKS) < 0.8


def test_worlds_of_other_sizes_and_seeds():
    world = generated_world("size=60,seed=7,questions=6")
    assert world.name == "pages:size=60,seed=7,questions=6"
    assert Counter(task.task_type for task in world.tasks())["hops"] == 6
    again = generated_world(world.name.partition(":")[2])
    assert [task.to_json() for task in again.tasks()] == [task.to_json() for task in world.tasks()]
    other = generated_world("size=60,seed=8,questions=6")
    assert not {task.instance_id for task in other.tasks()} & {task.instance_id for task in world.tasks()}
    json.dumps(world.tasks()[0].to_mapping())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("size=30", "size is 30: expected at least 60"),
        ("sise=90", "unknown field 'sise': did you mean 'size'?"),
        ("size", "got 'size'; expected a field and a whole number"),
        ("seed=-1", "got 'seed=-1'; expected a field and a whole number"),
        ("questions=0", "questions is 0: expected at least 1"),
    ],
)
def test_recipes_that_cannot_be_made_are_refused(options, message):
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        generated_world(options)
