"""What is generated: the same from the same seed, of the form that questions rely on, and as its texts say it."""

import dataclasses
import datetime
import itertools

import numpy as np
import pytest

from resilisim.errors import InvalidInputError
from resilisim.worlds.records.contents import GeneratedData, Recipe
from resilisim.worlds.records.fictional_tables import NULL, TABLES
from resilisim.worlds.records.text_collections import clock_text, day_text
from tests.worlds.records.conftest import SMALL

# Any change of what a seed gives is another version of the shipped set.
HASHES = {
    "flights": "202af1a53a59",
    "coffee": "a3486cb0d553",
    "airbnb": "381ff4140529",
    "yelp": "e6897ef52521",
    "agenda": "d10a289df25e",
    "scirex": "0940fd3d3bb1",
    "graphs": "3f8441f837cf",
}


def test_a_seed_gives_the_same_everywhere_and_another_seed_something_else(data):
    assert {name: digest[:12] for name, digest in data.hashes().items()} == HASHES
    other = GeneratedData(dataclasses.replace(SMALL, seed=4))
    assert other.table("coffee").content_hash() != data.table("coffee").content_hash()
    assert set(other.agenda[0]).isdisjoint(data.agenda[0])


def test_a_larger_table_begins_with_other_rows_but_has_the_same_columns():
    for name, make in TABLES.items():
        small, large = make(0, 900), make(0, 1_800)
        assert (len(small), len(large)) == (900, 1_800)
        assert small.types == large.types, name


def test_keys_are_unique(data):
    flights = data.table("flights")
    keys = set(zip(flights.columns["FlightDate"], flights.columns["FlightNumber"], strict=True))
    assert len(keys) == len(flights)
    for table, key in (("airbnb", "id"), ("yelp", "business_id"), ("coffee", "Date")):
        assert len(set(data.table(table).columns[key])) == len(data.table(table))


def test_flights_add_up_and_cancelled_ones_have_no_times(data):
    columns = data.table("flights").columns
    gone = columns["Cancelled"].astype(bool)
    assert 0.005 < gone.mean() < 0.05
    for name in ("DepDelay", "TaxiOut", "AirTime", "TaxiIn", "ArrDelay"):
        assert ((columns[name] == NULL) == gone).all()
    assert all((time is None) == is_gone for time, is_gone in zip(columns["ArrTime"], gone, strict=True))
    minutes = {
        name: np.array([60 * int(text[:2]) + int(text[3:]) for text in columns[name][~gone]])
        for name in ("CRSDepTime", "DepTime", "ArrTime", "CRSArrTime")
    }
    flown = {name: columns[name][~gone] for name in ("DepDelay", "TaxiOut", "AirTime", "TaxiIn", "ArrDelay")}
    under_way = flown["TaxiOut"] + flown["AirTime"] + flown["TaxiIn"]
    assert ((minutes["CRSDepTime"] + flown["DepDelay"] - minutes["DepTime"]) % 1440 == 0).all()
    assert ((minutes["DepTime"] + under_way - minutes["ArrTime"]) % 1440 == 0).all()
    assert ((minutes["CRSArrTime"] + flown["ArrDelay"] - minutes["ArrTime"]) % 1440 == 0).all()


def test_coffee_is_traded_on_weekdays_between_low_and_high(data):
    columns = data.table("coffee").columns
    assert {datetime.date.fromisoformat(day).weekday() for day in columns["Date"]} == set(range(5))
    assert (columns["Low"] <= np.minimum(columns["Open"], columns["Close"])).all()
    assert (columns["High"] >= np.maximum(columns["Open"], columns["Close"])).all()
    assert (columns["Low"] > 0).all()


def test_nobody_is_in_two_places_at_once_and_texts_say_what_events_are(data):
    passages, events = data.agenda
    for text, event in zip(passages, events, strict=True):
        said = (event.person, event.activity, event.date, event.place, clock_text(event.start), clock_text(event.end))
        assert all(part in text for part in said)
    days = sorted(events, key=lambda event: (event.person, event.date, event.start))
    for first, second in itertools.pairwise(days):
        assert (first.person, first.date) != (second.person, second.date) or first.end < second.start


def test_paragraphs_report_each_result_once(data):
    passages, results = data.scirex
    assert len({(one.method, one.dataset, one.metric) for one in results}) == len(results)
    for one in results[::7]:
        where = [text for text in passages if all(part in text for part in (one.method, one.dataset, one.metric))]
        assert any(f"{one.score:.2f}" in text for text in where)


def test_graphs_agree_with_each_other(data):
    papers, authors = data.graphs.papers, data.graphs.authors
    assert all(papers.nodes[cited]["year"] <= papers.nodes[citing]["year"] for citing, cited in papers.edges)
    for title, about in papers.nodes(data=True):
        for first, second in itertools.combinations(about["authors"], 2):
            assert title in authors.edges[first, second]["papers"]
    written = {title for _, about in authors.nodes(data=True) for title in about["papers"]}
    assert written == set(papers)


@pytest.mark.parametrize(
    ("day", "text"),
    [
        (1, "May 1st"),
        (2, "May 2nd"),
        (3, "May 3rd"),
        (4, "May 4th"),
        (11, "May 11th"),
        (12, "May 12th"),
        (22, "May 22nd"),
    ],
)
def test_days_in_words(day, text):
    assert day_text(datetime.date(2042, 5, day)) == f"{text}, 2042"


WRONG = [{"flights": 10}, {"yelp": 100_001}, {"papers": 3}, {"coffee": "many"}, {"questions": 0}, {"seed": -1}]


@pytest.mark.parametrize("size", WRONG)
def test_sizes_out_of_range_are_refused(size):
    with pytest.raises(InvalidInputError, match=f"^{next(iter(size))} is "):
        Recipe(**size)
