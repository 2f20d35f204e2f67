"""Graphs and pages: every fact is where it should be, and nothing else is asserted."""

import re
from collections import Counter

import pytest

from resilisim.chat.types import estimated_tokens
from resilisim.errors import InvalidInputError
from resilisim.worlds.answers import normalized
from resilisim.worlds.pages.graph import Entity, Fact, Graph, generate_graph, texts
from resilisim.worlds.pages.prose import LEAST_PAGE_TOKENS, MOST_PAGE_TOKENS, mention, write_pages
from resilisim.worlds.pages.questions import LINKS, YEARS

GRAPH = generate_graph(size=60, seed=3)
PAGES = write_pages(GRAPH, seed=3)


def test_the_same_seed_gives_the_same_graph_and_pages():
    again = generate_graph(size=60, seed=3)
    assert again.facts == GRAPH.facts
    assert write_pages(again, seed=3) == PAGES
    assert generate_graph(size=60, seed=4).facts != GRAPH.facts
    assert write_pages(GRAPH, seed=4) != PAGES


def test_relations_lead_to_entities_that_exist_and_lives_hold_together():
    for fact in GRAPH.facts:
        assert fact.relation in (*YEARS, *LINKS[GRAPH.entities[fact.subject].kind])
        assert isinstance(fact.value, int) if fact.relation in YEARS else fact.value in GRAPH.entities
    for person in GRAPH.of_kind("person"):
        born, died = GRAPH.value(person.title, "born"), GRAPH.value(person.title, "died")
        assert born + 40 < died
        teacher, school, spouse = (GRAPH.value(person.title, one) for one in ("taught_by", "studied_at", "married_to"))
        assert teacher is None or GRAPH.value(teacher, "born") + 18 <= born
        assert school is None or GRAPH.value(school, "founded") <= born + 20
        assert spouse is None or GRAPH.value(spouse, "married_to") == person.title
        for work in GRAPH.subjects("made_by", person.title):
            assert born + 21 <= GRAPH.value(work, "year") <= died
            issuer = GRAPH.value(work, "issued_by")
            assert issuer is None or GRAPH.value(issuer, "founded") <= GRAPH.value(work, "year")


def test_subjects_are_the_other_direction_of_values():
    for fact in GRAPH.facts:
        assert fact.subject in GRAPH.subjects(fact.relation, fact.value)
        assert GRAPH.value(fact.subject, fact.relation) == fact.value
    assert GRAPH.subjects("born_in", "Nowhere") == ()


def test_a_relation_has_one_value():
    one = Entity("Ostrel", "city", "city")
    with pytest.raises(AssertionError, match="two values"):
        Graph([one], [Fact("Ostrel", "chartered", 1200), Fact("Ostrel", "chartered", 1300)])


def test_pages_are_as_long_as_promised():
    lengths = [estimated_tokens(page.text) for page in write_pages(generate_graph(), seed=0)]
    assert min(lengths) >= LEAST_PAGE_TOKENS
    assert max(lengths) <= MOST_PAGE_TOKENS
    assert max(lengths) > 0.9 * MOST_PAGE_TOKENS


def test_each_fact_stands_on_its_page_in_the_sentence_that_is_named_as_evidence():
    for page in PAGES:
        assert page.text.startswith(f"{page.title}\n\n")
        facts = {fact.relation: fact.value for fact in GRAPH.facts_of[page.title]}
        for relation, value in facts.items():
            sentence = page.evidence[relation]
            assert sentence in page.text
            assert str(value) in sentence
        for key, sentence in page.evidence.items():
            if key.startswith("list:"):
                listed = GRAPH.subjects(key.removeprefix("list:"), page.title)
                assert listed
                assert all(name in sentence for name in listed)


def test_what_a_page_says_of_entities_is_true_or_denied():
    """Read pages back with the templates' own words: "X was born in Y." and the like hold in the graph."""
    templates = {
        "born_in": [r"came into the world in (\w+),", r"was a native of (\w+) and"],
        "made_by": [r"was (?:written|painted|composed) by ([\w ]+?)\."],
        "seat": [r"has its seat in (\w+)\."],
    }
    full_names = sorted(GRAPH.entities, key=len, reverse=True)
    seen = Counter()
    for page in PAGES:
        for sentence in re.split(r"(?<=\.)\s", page.text):
            for relation, patterns in templates.items():
                found = next((match for one in patterns if (match := re.search(one, sentence))), None)
                if found is None:
                    continue
                starts = (sentence, sentence.removeprefix("The "))
                subject = next((one for one in full_names if any(text.startswith(one) for text in starts)), page.title)
                assert GRAPH.value(subject, relation) == found[1], sentence
                seen[relation] += 1
    assert set(seen) == set(templates)


def test_names_near_each_other_are_told_apart():
    confusable = [page for page in PAGES if "Not to be confused with" in page.text]
    assert len(confusable) > len(PAGES) / 10
    denials = sum(any(word in page.text for word in ("a mistake", "was turned down", "fell through")) for page in PAGES)
    assert denials > len(PAGES) / 10


def test_no_invented_name_is_a_word_of_the_templates():
    words = set(re.findall(r"[a-z]+", str(texts("relations")) + str(texts("digressions"))))
    names = {part.lower() for kind in ("person", "city", "region", "river") for one in GRAPH.of_kind(kind)
             for part in one.title.split() if part != "River"}  # fmt: skip
    assert not names & words


def test_titles_differ_in_more_than_an_article():
    assert len({normalized(title) for title in GRAPH.entities}) == len(GRAPH.entities)
    large = generate_graph(size=400, seed=1).entities
    assert len({normalized(title) for title in large}) == len(large)


def test_mentions_have_an_article_where_english_wants_one():
    kinds = {"event": True, "river": True, "society": True, "person": False, "city": False, "work": False}
    for kind, wanted in kinds.items():
        assert mention(GRAPH.of_kind(kind)[0]).startswith("the ") == wanted


@pytest.mark.parametrize(
    ("size", "seed", "message"),
    [
        (59, 0, "the size of an encyclopedia is 59: expected at least 60 and at most 20,000"),
        (60, -1, "the seed of an encyclopedia is -1: expected at least 0"),
        ("x", 0, "the size of an encyclopedia is 'x': expected a whole number"),
    ],
)
def test_sizes_and_seeds_out_of_range_are_refused(size, seed, message):
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        generate_graph(size, seed)
