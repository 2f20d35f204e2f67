"""Questions on the price of coffee."""

from __future__ import annotations

import itertools

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

for _name, _column, _words, _by_filter in (
    ("opening_price", "Open", "opening price", True),
    ("closing_price", "Close", "closing price", False),
    ("highest_price", "High", "highest price", True),
    ("lowest_price", "Low", "lowest price", False),
    ("volume", "Volume", "trading volume", False),
):
    _text, _digits = f"What was the {_words} of coffee on {{Date}}?", 0 if _column == "Volume" else 2
    look_up("coffee", _name, _column, _text, ("Date",), by_filter=_by_filter, digits=_digits)


@template("coffee", "easy")
def change_of_the_day(data: GeneratedData, draws: Draws) -> Question | None:
    """Subtract two values of a row."""
    row = random_row(data.table("coffee"), draws)
    calls = (
        sql(f"SELECT Open, Close FROM coffee WHERE Date = '{row['Date']}'"),
        calculated("${found.rows.0.1} - ${found.rows.0.0}"),
    )
    text = f"By how much did the price of coffee change from opening to closing on {row['Date']}? A fall is negative."
    return Question(text, row["Close"] - row["Open"], calls, "${answer.result}", digits=2)


def _span(data: GeneratedData, draws: Draws, least: int, most: int) -> tuple[str, str, slice]:
    """Return the first and the last day of some days of trade, and their places."""
    table = data.table("coffee")
    length = draws.between(least, most)
    first = draws.below(len(table) - length)
    days = table.columns["Date"]
    return str(days[first]), str(days[first + length - 1]), slice(first, first + length)


@template("coffee", "hard")
def mean_close(data: GeneratedData, draws: Draws) -> Question | None:
    """Average a column between two days."""
    first, last, places = _span(data, draws, 20, 250)
    closes = data.table("coffee").columns["Close"][places].tolist()
    calls = (
        *filtered("coffee", f"Date>={first}, Date<={last}"),
        values_of("Close", "closes"),
        calculated("mean(${closes.values})"),
    )
    text = f"What was the mean closing price of coffee from {first} to {last}, both included? Round to two decimals."
    return Question(text, sum(closes) / len(closes), calls, "${answer.result}", digits=2)


@template("coffee", "hard")
def day_of_the_highest_close(data: GeneratedData, draws: Draws) -> Question | None:
    """Find a maximum, and when it was."""
    first, last, places = _span(data, draws, 60, 500)
    columns = data.table("coffee").columns
    best = single(columns["Close"][places].tolist(), max)
    if best is None:
        return None
    where = f"FROM coffee WHERE Date BETWEEN '{first}' AND '{last}'"
    calls = (
        sql(f"SELECT max(Close) {where}", "highest"),
        sql(f"SELECT Date {where} AND Close = ${{highest.rows.0.0}}"),
    )
    text = f"On which day from {first} to {last} did coffee have its highest closing price? Answer as YYYY-MM-DD."
    return Question(text, str(columns["Date"][places][best]), calls, "${found.rows.0.0}")


@template("coffee", "hard")
def difference_of_months(data: GeneratedData, draws: Draws) -> Question | None:
    """Compare two averages."""
    table = data.table("coffee")
    months = sorted({random_row(table, draws)["Date"][:7] for _ in range(2)})
    if len(months) < 2:
        return None
    means = []
    for month in months:
        values = [
            high
            for high, day in zip(table.columns["High"].tolist(), table.columns["Date"], strict=True)
            if day[:7] == month
        ]
        means.append(sum(values) / len(values))
    query = "SELECT avg(High) FROM coffee WHERE strftime(Date, '%Y-%m') = '{}'"
    calls = (
        sql(query.format(months[0]), "first"),
        sql(query.format(months[1]), "second"),
        calculated("abs(${first.rows.0.0} - ${second.rows.0.0})"),
    )
    text = (
        f"By how much do the means of the daily highest prices of coffee in {months[0]} and in {months[1]} differ? "
        "Give a positive number, rounded to two decimals."
    )
    return Question(text, abs(means[0] - means[1]), calls, "${answer.result}", digits=2)


@template("coffee", "hard")
def greatest_rise(data: GeneratedData, draws: Draws) -> Question | None:
    """Compare neighbours within a long column."""
    first, last, places = _span(data, draws, 60, 300)
    columns = data.table("coffee").columns
    closes = columns["Close"][places].tolist()
    rises = [round(after - before, 2) for before, after in itertools.pairwise(closes)]
    best = single(rises, max)
    if best is None:
        return None
    program = (
        "rises = [round(closes[k + 1] - closes[k], 2) for k in range(len(closes) - 1)]\n"
        "print(days[rises.index(max(rises)) + 1])"
    )
    calls = (
        *filtered("coffee", f"Date>={first}, Date<={last}"),
        values_of("Close", "closes"),
        values_of("Date", "days"),
        python(program, closes="${closes.values}", days="${days.values}"),
    )
    text = (
        f"From {first} to {last}, on which day had the closing price of coffee risen most against that of the day of "
        "trade before it (both within these days)? Answer as YYYY-MM-DD."
    )
    return Question(text, str(columns["Date"][places][best + 1]), calls, "${answer.output}")


@template("coffee", "hard")
def days_of_gain(data: GeneratedData, draws: Draws) -> Question | None:
    """Count where one column is above another."""
    first, last, places = _span(data, draws, 100, 800)
    columns = data.table("coffee").columns
    calls = (
        *filtered("coffee", f"Date>={first}, Date<={last}"),
        values_of("Open", "opens"),
        values_of("Close", "closes"),
        python(
            "print(sum(1 for before, after in zip(opens, closes) if after > before))",
            opens="${opens.values}",
            closes="${closes.values}",
        ),
    )
    text = f"On how many days of trade from {first} to {last}, both included, did coffee close higher than it opened?"
    gains = int((columns["Close"][places] > columns["Open"][places]).sum())
    return Question(text, gains, calls, "${answer.output}")


@template("coffee", "hard")
def profit(data: GeneratedData, draws: Draws) -> Question | None:
    """Calculate with values of two days."""
    first, last, places = _span(data, draws, 15, 400)
    columns = data.table("coffee").columns
    bags, fee = 10 * draws.between(3, 60), draws.between(1, 4)
    bought, sold = (round(float(columns[name][places][at]), 2) for name, at in (("Open", 0), ("Close", -1)))
    calls = (
        sql(f"SELECT Open FROM coffee WHERE Date = '{first}'", "bought"),
        sql(f"SELECT Close FROM coffee WHERE Date = '{last}'", "sold"),
        calculated(f"{bags} * ${{sold.rows.0.0}} * (1 - {fee} / 100) - {bags} * ${{bought.rows.0.0}}"),
    )
    text = (
        f"A trader bought {bags} bags of coffee at the opening price of {first} and sold them at the closing price of "
        f"{last}, when {fee} percent of what was paid for them went to a broker. How much did the trader gain (a "
        "loss is negative)? Round to two decimals."
    )
    answer = bags * sold * (1 - fee / 100) - bags * bought
    return Question(text, answer, calls, "${answer.result}", digits=2)
