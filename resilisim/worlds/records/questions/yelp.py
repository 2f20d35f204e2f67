"""Questions on businesses."""

from __future__ import annotations

from typing import Any

from resilisim.seeding import Draws
from resilisim.worlds.records.contents import GeneratedData
from resilisim.worlds.records.fictional_tables import CATEGORIES, Table
from resilisim.worlds.records.questions.template import (
    Question,
    calculated,
    filtered,
    look_up,
    python,
    random_row,
    single,
    sql,
    template,
    values_of,
)


def _business(data: GeneratedData, draws: Draws) -> tuple[Table, dict[str, Any] | None]:
    """Return a business that its name and city tell from all others."""
    table = data.table("yelp")
    row = random_row(table, draws)
    return table, row if len(table.where(name=row["name"], city=row["city"])) == 1 else None


_BUSINESS = "{name} in {city}, {state}"
for _name, _text, _by_filter, _digits in (
    ("address", f"What is the address of {_BUSINESS}?", True, 0),
    ("postal_code", f"What is the postal code of {_BUSINESS}?", False, 0),
    ("review_count", f"How many reviews has {_BUSINESS} received?", True, 0),
    ("latitude", f"At which latitude is {_BUSINESS}? Give four decimals.", False, 4),
    ("categories", f"To which categories does {_BUSINESS} belong? List all of them.", False, 0),
):
    _separator = ", " if _name == "categories" else ""
    look_up("yelp", _name, _name, _text, ("name", "city"), by_filter=_by_filter, digits=_digits, separator=_separator)
look_up("yelp", "name_at_an_address", "name", "Which business is at {address} in {city}, {state}?", ("address", "city"))


def _of_category(table: Table, city: str, category: str) -> list[int]:
    return [int(k) for k in table.where(city=city) if category in table.columns["categories"][k].split(", ")]


@template("yelp", "hard")
def mean_reviews_of_category(data: GeneratedData, draws: Draws) -> Question | None:
    """Average a column of the rows whose text holds a word."""
    table = data.table("yelp")
    city, category = random_row(table, draws)["city"], draws.choice(CATEGORIES)
    places = _of_category(table, city, category)
    if len(places) < 2:
        return None
    program = (
        "kept = [count for count, text in zip(counts, categories) if category in text.split(', ')]\n"
        "print(sum(kept) / len(kept))"
    )
    calls = (
        *filtered("yelp", f"city={city}"),
        values_of("review_count", "counts"),
        values_of("categories", "categories"),
        python(program, counts="${counts.values}", categories="${categories.values}", category=category),
    )
    text = (
        f"How many reviews have the businesses of the category {category} in {city} on average? Round to one decimal."
    )
    answer = float(table.columns["review_count"][places].mean())
    return Question(text, answer, calls, "${answer.output}", digits=1)


@template("yelp", "hard")
def most_reviewed(data: GeneratedData, draws: Draws) -> Question | None:
    """Find a maximum under conditions, and what belongs to it."""
    table = data.table("yelp")
    city, category = random_row(table, draws)["city"], draws.choice(CATEGORIES)
    places = [k for k in _of_category(table, city, category) if table.columns["is_open"][k]]
    best = single([int(table.columns["review_count"][k]) for k in places], max) if len(places) > 1 else None
    if best is None:
        return None
    where = (
        f"FROM yelp WHERE city = '{city}' AND is_open AND list_contains(string_split(categories, ', '), '{category}')"
    )
    calls = (
        sql(f"SELECT max(review_count) {where}", "most"),
        sql(f"SELECT name {where} AND review_count = ${{most.rows.0.0}}"),
    )
    text = f"Which business of the category {category} in {city} that is still open has the most reviews?"
    return Question(text, str(table.columns["name"][places[best]]), calls, "${found.rows.0.0}")


@template("yelp", "hard")
def difference_of_cities(data: GeneratedData, draws: Draws) -> Question | None:
    """Compare two cities."""
    table = data.table("yelp")
    cities = sorted({random_row(table, draws)["city"] for _ in range(2)})
    if len(cities) < 2:
        return None
    sums = [int(table.columns["review_count"][table.where(city=city)].sum()) for city in cities]
    query = "SELECT sum(review_count) FROM yelp WHERE city = '{}'"
    calls = (
        sql(query.format(cities[0]), "first"),
        sql(query.format(cities[1]), "second"),
        calculated("abs(${first.rows.0.0} - ${second.rows.0.0})"),
    )
    text = f"By how many reviews do all businesses of {cities[0]} and all businesses of {cities[1]} differ, added up?"
    return Question(text, abs(sums[0] - sums[1]), calls, "${answer.result}")


@template("yelp", "hard")
def nearest(data: GeneratedData, draws: Draws) -> Question | None:
    """Use coordinates of one row to look for another."""
    table, row = _business(data, draws)
    if row is None:
        return None
    places = [int(k) for k in table.where(city=row["city"]) if table.columns["business_id"][k] != row["business_id"]]
    distances = [
        (float(table.columns["latitude"][k]) - row["latitude"]) ** 2
        + (float(table.columns["longitude"][k]) - row["longitude"]) ** 2
        for k in places
    ]
    best = single([round(distance, 9) for distance in distances], min) if len(places) > 1 else None
    if best is None:
        return None
    where = f"name = '{row['name']}' AND city = '{row['city']}'"
    distance = "pow(latitude - ${this.rows.0.0}, 2) + pow(longitude - ${this.rows.0.1}, 2)"
    calls = (
        sql(f"SELECT latitude, longitude, business_id FROM yelp WHERE {where}", "this"),
        sql(
            f"SELECT name FROM yelp WHERE city = '{row['city']}' AND business_id != '${{this.rows.0.2}}' "
            f"ORDER BY {distance} LIMIT 1"
        ),
    )
    text = (
        "Which other business in {city} is nearest to {name}, by the sum of the squared differences of latitude and of "
        "longitude, in degrees?"
    )
    return Question(text.format_map(row), str(table.columns["name"][places[best]]), calls, "${found.rows.0.0}")


@template("yelp", "hard")
def reviews_around(data: GeneratedData, draws: Draws) -> Question | None:
    """Use a value of one row in a filter."""
    table, row = _business(data, draws)
    if row is None:
        return None
    places = table.where(postal_code=row["postal_code"])
    if len(places) < 3:
        return None
    calls = (
        *filtered("yelp", "name={name}, city={city}".format_map(row), "this"),
        values_of("postal_code", "code"),
        *filtered("yelp", "postal_code=${code.values.0}", "around"),
        values_of("review_count", "counts"),
        calculated("median(${counts.values})"),
    )
    text = (
        "Take all businesses with the postal code of {name} in {city}, itself included. What is the median of their "
        "numbers of reviews?"
    )
    counts = sorted(table.columns["review_count"][places].tolist())
    middle = len(counts) // 2
    answer = counts[middle] if len(counts) % 2 else (counts[middle - 1] + counts[middle]) / 2
    return Question(text.format_map(row), answer, calls, "${answer.result}", digits=1)


@template("yelp", "hard")
def share_that_is_open(data: GeneratedData, draws: Draws) -> Question | None:
    """Divide two counts."""
    table = data.table("yelp")
    city, stars = random_row(table, draws)["city"], draws.between(4, 9) / 2
    places = [k for k in table.where(city=city) if table.columns["stars"][k] >= stars]
    if len(places) < 5:
        return None
    where = f"FROM yelp WHERE city = '{city}' AND stars >= {stars}"
    calls = (
        sql(f"SELECT count(*) {where} AND is_open", "open"),
        sql(f"SELECT count(*) {where}", "all"),
        calculated("100 * ${open.rows.0.0} / ${all.rows.0.0}"),
    )
    text = (
        f"What percentage of the businesses in {city} with at least {stars} stars is still open? Round to two decimals."
    )
    answer = 100 * sum(bool(table.columns["is_open"][k]) for k in places) / len(places)
    return Question(text, answer, calls, "${answer.result}", digits=2)
