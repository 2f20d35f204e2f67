"""Questions on the agenda, whose entries are texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

from resilisim.seeding import Draws
from resilisim.worlds.records.contents import GeneratedData
from resilisim.worlds.records.questions.template import Question, calculated, python, retrieved, template
from resilisim.worlds.records.text_collections import ACTIVITIES, VENUES, Event, clock_text, same_day

_PLACE: Final = rf"(\w+ (?:{'|'.join(VENUES)}))\b"
_ACTIVITY: Final = "(" + "|".join(map(re.escape, ACTIVITIES)) + ")"
_PERSON: Final = rf"\b(?!On\b|The\b|From\b)([A-Z][a-z]+ (?!(?:{'|'.join(VENUES)})\b)[A-Z][a-z]+)\b"
_MANY: Final = 10  # passages among which those of one day of one person are
# Keeps the entries of a person's day, each as minutes of beginning and end, and the entry, in order of time.
_ENTRIES: Final = """import re
def entries(passages, person, day):
    found = []
    for text in passages:
        if person in text and day in text:
            times = [60 * int(h) + int(m) for h, m in re.findall(r"(\\d\\d):(\\d\\d)", text)]
            found.append([times[0], times[1], text])
    return sorted(found)
"""


def _event(data: GeneratedData, draws: Draws) -> Event:
    return draws.choice(data.agenda[1])


def _single(data: GeneratedData, event: Event, *fields: str) -> bool:
    """Return whether no other event agrees with this one in some fields."""
    values = attrgetter(*fields)
    return list(map(values, data.agenda[1])).count(values(event)) == 1


def _look_up(name: str, text: str, by: Sequence[str], pattern: str, answer: Callable[[Event], str]) -> None:
    """File an easy template: what the one entry says that some fields tell."""

    def make(data: GeneratedData, draws: Draws) -> Question | None:
        event = _event(data, draws)
        if not _single(data, event, *by):
            return None
        calls = (retrieved("Agenda", " ".join(getattr(event, field) for field in by)),)
        return Question(text.format(event), answer(event), calls, "${found.passages.0}", pattern)

    template("agenda", "easy", name)(make)


_WHAT: Final = "the {0.activity} of {0.person} on {0.date}"
_TOLD: Final = ("person", "activity", "date")
_DAY: Final = r"([A-Z][a-z]+ \d+(?:st|nd|rd|th), \d{4})"
_END: Final = r"\d\d:\d\d.*?(\d\d:\d\d)"
_look_up(
    "beginning",
    f"When does {_WHAT} begin? Answer as HH:MM.",
    _TOLD,
    r"(\d\d:\d\d)",
    lambda event: clock_text(event.start),
)
_look_up("end", f"When is {_WHAT} over? Answer as HH:MM.", _TOLD, _END, lambda event: clock_text(event.end))
_look_up("place", f"Where does {_WHAT} take place?", _TOLD, _PLACE, lambda event: event.place)
_look_up(
    "person",
    "Who goes to {0.place} for the {0.activity} on {0.date}?",
    ("place", "activity", "date"),
    _PERSON,
    lambda event: event.person,
)
_look_up(
    "activity",
    "What does {0.person} do at {0.place} on {0.date}?",
    ("person", "place", "date"),
    _ACTIVITY,
    lambda event: event.activity,
)
_look_up(
    "day",
    "On which day does {0.person} go to {0.place} for the {0.activity}? Answer as in: May 2nd, 2042.",
    ("person", "place", "activity"),
    _DAY,
    lambda event: event.date,
)


def _full_day(data: GeneratedData, draws: Draws, least: int = 2) -> list[Event] | None:
    """Return the events of a day on which somebody has some, in order of time."""
    event = _event(data, draws)
    events = same_day(data.agenda[1], event.person, event.date)
    return events if len(events) >= least else None


def _day_question(text: str, answer: str | float, events: list[Event], program: str) -> Question:
    first = events[0]
    calls = (
        retrieved("Agenda", f"{first.person} {first.date}", _MANY),
        python(
            f"{_ENTRIES}day = entries(passages, person, date)\n{program}",
            passages="${found.passages}",
            person=first.person,
            date=first.date,
        ),
    )
    return Question(text, answer, calls, "${answer.output}")


@template("agenda", "hard")
def gap(data: GeneratedData, draws: Draws) -> Question | None:
    """Subtract times of two texts."""
    events = _full_day(data, draws)
    if events is None:
        return None
    text = (
        f"How many minutes lie between the end of the first event that {events[0].person} has on {events[0].date} "
        "and the beginning of the second?"
    )
    return _day_question(text, events[1].start - events[0].end, events, "print(day[1][0] - day[0][1])")


@template("agenda", "hard")
def total(data: GeneratedData, draws: Draws) -> Question | None:
    """Add times of several texts."""
    events = _full_day(data, draws)
    if events is None:
        return None
    text = f"How many minutes do all events of {events[0].person} on {events[0].date} last, added up?"
    answer = sum(event.end - event.start for event in events)
    return _day_question(text, answer, events, "print(sum(end - start for start, end, text in day))")


@template("agenda", "hard")
def last_place(data: GeneratedData, draws: Draws) -> Question | None:
    """Compare times of several texts, and read what belongs to the latest."""
    events = _full_day(data, draws)
    if events is None:
        return None
    text = f"Where is the last event that {events[0].person} has on {events[0].date}?"
    program = f'print(re.findall(r"{_PLACE}", day[-1][2])[0])'
    return _day_question(text, events[-1].place, events, program)


@template("agenda", "hard")
def after_that(data: GeneratedData, draws: Draws) -> Question | None:
    """Find a day in one text, and look for others of this day."""
    events = _full_day(data, draws)
    if events is None:
        return None
    first, following = events[0], events[1]
    if not _single(data, first, "person", "activity", "place"):
        return None
    find_day = 'import re\nprint(re.findall(r"[A-Z][a-z]+ \\d+(?:st|nd|rd|th), \\d{4}", text)[0], end="")'
    calls = (
        retrieved("Agenda", f"{first.person} {first.activity} {first.place}"),
        python(find_day, "day", text="${found.passages.0}"),
        retrieved("Agenda", f"{first.person} ${{day.output}}", _MANY, "others"),
        python(
            f"{_ENTRIES}print(re.findall(activities, entries(passages, person, date)[1][2])[0])",
            passages="${others.passages}",
            person=first.person,
            date="${day.output}",
            activities=_ACTIVITY,
        ),
    )
    text = (
        f"On the day on which {first.person} has the {first.activity} at {first.place}, what is the next event of "
        f"{first.person} after it?"
    )
    return Question(text, following.activity, calls, "${answer.output}")


def _two_days(data: GeneratedData, draws: Draws) -> tuple[list[Event], list[Event]] | None:
    """Return the events of two people on the same day."""
    ours = _full_day(data, draws, 1)
    assert ours is not None
    others = sorted({event.person for event in data.agenda[1] if event.date == ours[0].date} - {ours[0].person})
    return (ours, same_day(data.agenda[1], draws.choice(others), ours[0].date)) if others else None


def _two_day_calls(days: tuple[list[Event], list[Event]], program: str) -> tuple[dict[str, object], ...]:
    first, second = (events[0] for events in days)
    return (
        retrieved("Agenda", f"{first.person} {first.date}", _MANY, "one"),
        retrieved("Agenda", f"{second.person} {second.date}", _MANY, "other"),
        python(
            f"{_ENTRIES}mine, theirs = entries(one, people[0], date), entries(other, people[1], date)\n{program}",
            one="${one.passages}",
            other="${other.passages}",
            people=[first.person, second.person],
            date=first.date,
        ),
    )


@template("agenda", "hard")
def both_free(data: GeneratedData, draws: Draws) -> Question | None:
    """Compare the days of two people."""
    days = _two_days(data, draws)
    if days is None:
        return None
    program = "last = max(end for start, end, text in mine + theirs)\nprint(f'{last // 60:02}:{last % 60:02}')"
    text = (
        f"{days[0][0].person} and {days[1][0].person} want to meet on {days[0][0].date} when all events that both of "
        "them have that day are over. From what time on can they? Answer as HH:MM."
    )
    answer = clock_text(max(event.end for events in days for event in events))
    return Question(text, answer, _two_day_calls(days, program), "${answer.output}")


@template("agenda", "hard")
def busier(data: GeneratedData, draws: Draws) -> Question | None:
    """Compare sums over the days of two people."""
    days = _two_days(data, draws)
    if days is None:
        return None
    sums = [sum(event.end - event.start for event in events) for events in days]
    program = (
        "mine, theirs = (sum(end - start for start, end, text in day) for day in (mine, theirs))\n"
        "print(mine, '-', theirs)"
    )
    calls = (*_two_day_calls(days, program), calculated("abs(${answer.output})", "difference"))
    text = (
        f"On {days[0][0].date}, add up the minutes that the events of {days[0][0].person} last, and those of "
        f"{days[1][0].person}. By how many minutes do the sums differ?"
    )
    return Question(text, abs(sums[0] - sums[1]), calls, "${difference.result}")
