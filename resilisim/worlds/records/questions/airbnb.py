"""Questions on places to stay."""

from __future__ import annotations

import statistics
from collections import Counter

from resilisim.seeding import Draws
from resilisim.worlds.records.contents import GeneratedData
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

_PLACE = "{name} in {neighbourhood} (id {id})"

look_up(
    "airbnb",
    "host",
    "host_name",
    "Who is the host of {name} in {neighbourhood}?",
    ("name", "neighbourhood"),
    by_filter=True,
)
for _name, _column, _text, _by_filter in (
    ("price", "price", f"What is the price of a night at {_PLACE}?", False),
    ("availability", "availability_365", f"On how many days of the year is {_PLACE} available?", True),
    ("last_review", "last_review", f"When was the last review of {_PLACE} written? Answer as YYYY-MM-DD.", False),
    ("number_of_reviews", "number_of_reviews", f"How many reviews has {_PLACE} received?", True),
    ("construction_year", "construction_year", f"In which year was {_PLACE} built?", False),
):
    look_up("airbnb", _name, _column, _text, ("id",), by_filter=_by_filter)


@template("airbnb", "hard")
def mean_price(data: GeneratedData, draws: Draws) -> Question | None:
    """Average a column of what two filters leave."""
    table = data.table("airbnb")
    row = random_row(table, draws)
    places = table.where(neighbourhood=row["neighbourhood"], room_type=row["room_type"])
    if len(places) < 3:
        return None
    calls = (
        *filtered("airbnb", "neighbourhood={neighbourhood}, room_type={room_type}".format_map(row)),
        values_of("price", "prices"),
        calculated("mean(${prices.values})"),
    )
    text = "What is the mean price of all places of the type {room_type} in {neighbourhood}? Round to two decimals."
    answer = float(table.columns["price"][places].mean())
    return Question(text.format_map(row), answer, calls, "${answer.result}", digits=2)


@template("airbnb", "hard")
def cheapest_for_a_short_stay(data: GeneratedData, draws: Draws) -> Question | None:
    """Find a minimum under a condition, and what belongs to it."""
    table = data.table("airbnb")
    area, nights = random_row(table, draws)["neighbourhood"], draws.between(4, 14)
    places = [k for k in table.where(neighbourhood=area) if table.columns["minimum_nights"][k] <= nights]
    best = single([int(table.columns["price"][k]) for k in places], min) if places else None
    if best is None:
        return None
    where = f"FROM airbnb WHERE neighbourhood = '{area}' AND minimum_nights <= {nights}"
    calls = (sql(f"SELECT min(price) {where}", "lowest"), sql(f"SELECT id {where} AND price = ${{lowest.rows.0.0}}"))
    text = f"Which id has the place in {area} with the lowest price among those that can be had for {nights} nights?"
    return Question(text, int(table.columns["id"][places[best]]), calls, "${found.rows.0.0}")


@template("airbnb", "hard")
def cost_of_a_stay(data: GeneratedData, draws: Draws) -> Question | None:
    """Calculate with several values of a row."""
    row = random_row(data.table("airbnb"), draws)
    nights, discount = draws.between(3, 40), draws.between(3, 20)
    calls = (
        *filtered("airbnb", f"id={row['id']}"),
        values_of("price", "price"),
        values_of("service_fee", "fee"),
        calculated(f"{nights} * ${{price.values.0}} * (1 - {discount} / 100) + ${{fee.values.0}}"),
    )
    text = (
        f"Somebody stays at {row['name']} (id {row['id']}) for {nights} nights and is given {discount} percent off the "
        "price of the nights, not off the service fee, which is paid once. What is paid in all? Round to two decimals."
    )
    answer = nights * row["price"] * (1 - discount / 100) + row["service_fee"]
    return Question(text, answer, calls, "${answer.result}", digits=2)


@template("airbnb", "hard")
def difference_of_medians(data: GeneratedData, draws: Draws) -> Question | None:
    """Compare two neighbourhoods."""
    table = data.table("airbnb")
    areas = sorted({random_row(table, draws)["neighbourhood"] for _ in range(2)})
    if len(areas) < 2:
        return None
    medians = [statistics.median(table.columns["price"][table.where(neighbourhood=area)].tolist()) for area in areas]
    query = "SELECT median(price) FROM airbnb WHERE neighbourhood = '{}'"
    calls = (
        sql(query.format(areas[0]), "first"),
        sql(query.format(areas[1]), "second"),
        calculated("abs(${first.rows.0.0} - ${second.rows.0.0})"),
    )
    text = f"By how much do the medians of the prices in {areas[0]} and in {areas[1]} differ? Give a positive number."
    return Question(text, abs(medians[0] - medians[1]), calls, "${answer.result}", digits=1)


@template("airbnb", "hard")
def most_reviewed_host(data: GeneratedData, draws: Draws) -> Question | None:
    """Group, add up, and find the largest sum."""
    table = data.table("airbnb")
    area = random_row(table, draws)["neighbourhood"]
    totals: Counter[str] = Counter()
    for place in table.where(neighbourhood=area):
        totals[table.columns["host_name"][place]] += int(table.columns["number_of_reviews"][place])
    best = single(list(totals.values()), max)
    if best is None or len(totals) < 3:
        return None
    program = (
        "totals = {}\nfor name, number in zip(hosts, reviews):\n    totals[name] = totals.get(name, 0) + number\n"
        "print(max(totals, key=lambda name: totals[name]))"
    )
    calls = (
        *filtered("airbnb", f"neighbourhood={area}"),
        values_of("host_name", "hosts"),
        values_of("number_of_reviews", "reviews"),
        python(program, hosts="${hosts.values}", reviews="${reviews.values}"),
    )
    text = f"Which host has received the most reviews for places in {area}, all places of a host there added up?"
    return Question(text, list(totals)[best], calls, "${answer.output}")


@template("airbnb", "hard")
def better_reviewed_neighbours(data: GeneratedData, draws: Draws) -> Question | None:
    """Use values of one query in another."""
    table = data.table("airbnb")
    row = random_row(table, draws)
    places = table.where(neighbourhood=row["neighbourhood"])
    more = [k for k in places if table.columns["number_of_reviews"][k] > row["number_of_reviews"]]
    if not more:
        return None
    calls = (
        sql(f"SELECT neighbourhood, number_of_reviews FROM airbnb WHERE id = {row['id']}", "this"),
        sql(
            "SELECT sum(availability_365) FROM airbnb WHERE neighbourhood = '${this.rows.0.0}' "
            "AND number_of_reviews > ${this.rows.0.1}"
        ),
    )
    text = (
        "Take all places in the neighbourhood of {name} (id {id}) that have more reviews than it has. On how many "
        "days of the year is each of them available, added up?"
    )
    answer = int(table.columns["availability_365"][more].sum())
    return Question(text.format_map(row), answer, calls, "${found.rows.0.0}")
