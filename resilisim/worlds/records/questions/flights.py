"""Questions on flights."""

from __future__ import annotations

from typing import Any

import numpy as np

from resilisim.seeding import Draws
from resilisim.worlds.records.contents import GeneratedData
from resilisim.worlds.records.fictional_tables import Table
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

_FLIGHT = "flight {AirlineCode}{FlightNumber} from {Origin} to {Dest} on {FlightDate}"
_KEY = "FlightNumber = {FlightNumber} AND FlightDate = '{FlightDate}'"


def _flown(data: GeneratedData, draws: Draws) -> tuple[Table, dict[str, Any] | None]:
    table = data.table("flights")
    row = random_row(table, draws)
    return table, None if row["Cancelled"] else row


_KEY_COLUMNS = ("FlightNumber", "FlightDate")
for _name, _column, _text, _by_filter in (
    ("departure_time", "DepTime", f"At what time did {_FLIGHT} really depart? Answer as HH:MM.", True),
    (
        "arrival_delay",
        "ArrDelay",
        f"How many minutes late did {_FLIGHT} arrive? A negative number means that it was early.",
        False,
    ),
    ("air_time", "AirTime", f"How many minutes was {_FLIGHT} in the air?", True),
):
    look_up("flights", _name, _column, _text, _KEY_COLUMNS, by_filter=_by_filter, unless="Cancelled")
look_up(
    "flights",
    "number_of_flight",
    "FlightNumber",
    "Which flight number has the flight of {Airline} from {Origin} to {Dest} that was planned to depart at "
    "{CRSDepTime} on {FlightDate}?",
    ("Airline", "Origin", "Dest", "FlightDate", "CRSDepTime"),
)


@template("flights", "easy")
def distance(data: GeneratedData, draws: Draws) -> Question | None:
    """Look up a distance."""
    row = random_row(data.table("flights"), draws)
    query = "SELECT DISTINCT Distance FROM flights WHERE FlightNumber = {FlightNumber}".format_map(row)
    text = "How many miles does flight {AirlineCode}{FlightNumber} cover from {Origin} to {Dest}?".format_map(row)
    return Question(text, row["Distance"], (sql(query),), "${found.rows.0.0}")


look_up(
    "flights",
    "planned_arrival",
    "CRSArrTime",
    f"At what time was {_FLIGHT} planned to arrive? Answer as HH:MM.",
    _KEY_COLUMNS,
)


@template("flights", "hard")
def mean_delay(data: GeneratedData, draws: Draws) -> Question | None:
    """Average a column of what two filters leave."""
    table, row = _flown(data, draws)
    if row is None:
        return None
    places = table.where(Origin=row["Origin"], FlightDate=row["FlightDate"], Cancelled=False)
    if len(places) < 5:
        return None
    calls = (
        *filtered("flights", "Origin={Origin}, FlightDate={FlightDate}, Cancelled=false".format_map(row)),
        values_of("DepDelay", "delays"),
        calculated("mean(${delays.values})"),
    )
    text = (
        "What was the mean departure delay, in minutes, of all flights that left {Origin} on {FlightDate}, cancelled "
        "ones not counted? Early departures count as negative. Round to one decimal."
    )
    answer = float(np.mean(table.columns["DepDelay"][places]))
    return Question(text.format_map(row), answer, calls, "${answer.result}", digits=1)


@template("flights", "hard")
def longest_in_the_air(data: GeneratedData, draws: Draws) -> Question | None:
    """Find a maximum, and what belongs to it."""
    table, row = _flown(data, draws)
    if row is None:
        return None
    places = table.where(Origin=row["Origin"], FlightDate=row["FlightDate"], Cancelled=False)
    best = single(table.columns["AirTime"][places].tolist(), max)
    if best is None or len(places) < 4:
        return None
    where = "FROM flights WHERE Origin = '{Origin}' AND FlightDate = '{FlightDate}'".format_map(row)
    calls = (
        sql(f"SELECT max(AirTime) {where}", "longest"),
        sql(f"SELECT FlightNumber {where} AND AirTime = ${{longest.rows.0.0}}"),
    )
    text = "Which flight number had the flight out of {Origin} on {FlightDate} that was longest in the air?"
    return Question(text.format_map(row), int(table.columns["FlightNumber"][places[best]]), calls, "${found.rows.0.0}")


@template("flights", "hard")
def difference_of_airlines(data: GeneratedData, draws: Draws) -> Question | None:
    """Compare two sums."""
    table, row = _flown(data, draws)
    other = random_row(table, draws)["Airline"]
    if row is None or other == row["Airline"]:
        return None

    def late(airline: str) -> int:
        delays = table.columns["ArrDelay"][table.where(Airline=airline, FlightDate=row["FlightDate"], Cancelled=False)]
        return int(delays[delays > 0].sum())

    query = "SELECT sum(ArrDelay) FROM flights WHERE Airline = '{}' AND FlightDate = '{}' AND ArrDelay > 0"
    calls = (
        sql(query.format(row["Airline"], row["FlightDate"]), "first"),
        sql(query.format(other, row["FlightDate"]), "second"),
        calculated("abs(${first.rows.0.0} - ${second.rows.0.0})"),
    )
    if not late(row["Airline"]) or not late(other):
        return None
    text = (
        f"On {row['FlightDate']}, add up the minutes by which the flights of {row['Airline']} arrived late, and the "
        f"same for {other}; early arrivals count as nothing. By how many minutes do the two sums differ?"
    )
    return Question(text, abs(late(row["Airline"]) - late(other)), calls, "${answer.result}")


@template("flights", "hard")
def mean_speed(data: GeneratedData, draws: Draws) -> Question | None:
    """Divide two sums of columns."""
    table = data.table("flights")
    row = random_row(table, draws)
    places = table.where(FlightNumber=row["FlightNumber"], Cancelled=False)
    miles, minutes = (int(table.columns[name][places].sum()) for name in ("Distance", "AirTime"))
    calls = (
        *filtered("flights", f"FlightNumber={row['FlightNumber']}, Cancelled=false"),
        values_of("Distance", "miles"),
        values_of("AirTime", "minutes"),
        calculated("sum(${miles.values}) / sum(${minutes.values})"),
    )
    text = (
        "Over all days on which flight {AirlineCode}{FlightNumber} was not cancelled, how many miles did it fly for "
        "each minute in the air (all miles divided by all minutes)? Round to three decimals."
    )
    return Question(text.format_map(row), miles / minutes, calls, "${answer.result}", digits=3)


@template("flights", "hard")
def share_of_late_departures(data: GeneratedData, draws: Draws) -> Question | None:
    """Divide two counts."""
    table = data.table("flights")
    row = random_row(table, draws)
    limit = 5 * draws.between(2, 6)
    places = table.where(Origin=row["Origin"], Cancelled=False)
    late = int((table.columns["DepDelay"][places] > limit).sum())
    where = f"FROM flights WHERE Origin = '{row['Origin']}' AND NOT Cancelled"
    calls = (
        sql(f"SELECT count(*) {where} AND DepDelay > {limit}", "late"),
        sql(f"SELECT count(*) {where}", "all"),
        calculated("100 * ${late.rows.0.0} / ${all.rows.0.0}"),
    )
    text = (
        f"What percentage of the flights that left {row['Origin']}, cancelled ones not counted, departed more than "
        f"{limit} minutes late? Round to two decimals."
    )
    return Question(text, 100 * late / len(places), calls, "${answer.result}", digits=2)


@template("flights", "hard")
def next_departure(data: GeneratedData, draws: Draws) -> Question | None:
    """Use a value of one query in another."""
    table, row = _flown(data, draws)
    if row is None or row["ArrTime"] < row["DepTime"]:
        return None
    places = table.where(Origin=row["Dest"], FlightDate=row["FlightDate"])
    later = [place for place in places if table.columns["CRSDepTime"][place] > row["ArrTime"]]
    first = single([table.columns["CRSDepTime"][place] for place in later], min) if later else None
    if first is None:
        return None
    calls = (
        sql(f"SELECT ArrTime, Dest FROM flights WHERE {_KEY}".format_map(row), "arrived"),
        sql(
            f"SELECT FlightNumber FROM flights WHERE Origin = '${{arrived.rows.0.1}}' AND FlightDate = "
            f"'{row['FlightDate']}' AND CRSDepTime > '${{arrived.rows.0.0}}' ORDER BY CRSDepTime LIMIT 1"
        ),
    )
    text = (
        f"Somebody arrives with {_FLIGHT}. Which flight number has the first flight of that day that is planned to "
        "leave {Dest} after the real time of that arrival?"
    )
    return Question(text.format_map(row), int(table.columns["FlightNumber"][later[first]]), calls, "${found.rows.0.0}")


@template("flights", "hard")
def worst_day(data: GeneratedData, draws: Draws) -> Question | None:
    """Find where a long column is largest, and what another column says there."""
    table = data.table("flights")
    number = random_row(table, draws)["FlightNumber"]
    places = table.where(FlightNumber=number, Cancelled=False)
    worst = single(table.columns["ArrDelay"][places].tolist(), max)
    if worst is None:
        return None
    calls = (
        *filtered("flights", f"FlightNumber={number}, Cancelled=false"),
        values_of("ArrDelay", "delays"),
        values_of("FlightDate", "days"),
        python("print(days[delays.index(max(delays))])", days="${days.values}", delays="${delays.values}"),
    )
    text = f"On which day did flight number {number} arrive with its greatest delay? Answer as YYYY-MM-DD."
    return Question(text, str(table.columns["FlightDate"][places[worst]]), calls, "${answer.output}")
