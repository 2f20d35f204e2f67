"""The two collections of texts of the records world: an agenda, and paragraphs of scientific papers.

Each text states facts that stand in no table; the facts beside it are what questions are made of and never shown.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from resilisim.seeding import Draws
from resilisim.worlds.records.fictional_tables import ColumnDraws, fictional_people, fictional_words, words_of

MOST_AGENDA_EVENTS: Final = 20_000
MOST_PARAGRAPHS: Final = 5_000
_FIRST_DAY: Final = datetime.date(2042, 1, 1)
_DAYS = 365
_PARTS_OF_DAY = (7 * 60, 12 * 60 + 30, 18 * 60)  # when something can begin; nobody is in two places at once
_NUM_PEOPLE = 90

_ACTIVITIES = """archery lesson|art walk|astronomy evening|bakery course|ballet class|beekeeping talk|blood
donation|book club|boxing match|bridge tournament|budget review|chess match|choir rehearsal|cider
tasting|climbing session|cooking course|dental appointment|drum workshop|fencing bout|film
night|flower show|glassblowing course|history lecture|jazz concert|job interview|kite
festival|language exchange|magic show|model railway fair|museum tour|orchestra rehearsal|origami
evening|parents' meeting|piano lesson|poetry reading|pottery class|puppet theatre|quiz night|robotics
meeting|rowing practice|school reunion|sculpture course|sewing circle|squash match|street market|sword
dance|theatre premiere|tree planting|union meeting|wood carving"""
ACTIVITIES: Final = tuple(_ACTIVITIES.replace("\n", " ").split("|"))
VENUES: Final = ("Hall", "Pavilion", "Library", "Cellar", "Court", "Studio", "Arcade", "Chapel")
_AGENDA_TEXTS = (
    "On {date}, {person} has the {activity} at {place}. It lasts from {start} to {end}.",
    "{person}: {activity}, {date}, {start} to {end}, {place}.",
    "{date}. From {start} to {end} {person} will be at {place} for the {activity}.",
    "The {activity} of {date} takes {person} to {place}; it begins at {start} and is over at {end}.",
    "{person} goes to {place} on {date} for the {activity} ({start} to {end}).",
)

TASKS_OF_RESEARCH: Final = tuple(
    """Anomaly Detection|Bird Call Recognition|Cell Segmentation|Code Repair|Crop Yield Forecasting|Depth Estimation|
Dialogue Tracking|Entity Linking|Flood Mapping|Gait Analysis|Handwriting Transcription|Keyphrase Extraction|Lip Reading|
Melody Completion|Molecule Ranking|News Deduplication|Object Counting|Pose Tracking|Query Rewriting|Rumour Detection|
Sign Translation|Speech Separation|Table Parsing|Traffic Forecasting""".replace("\n", "").split("|")
)
METRICS: Final = ("accuracy", "F1", "recall", "precision", "mean IoU", "BLEU", "AUC", "NDCG")
_RESULT_TEXTS = (
    "On the {dataset} dataset for {task}, {method} reaches {article} {metric} of {score}.",
    "For {task}, we report {article} {metric} of {score} for {method} on {dataset}.",
    "{method} obtains {article} {metric} of {score} on {dataset} when it is trained for {task}.",
    "Evaluated for {task} on {dataset}, {method} has {article} {metric} of {score}.",
)
_FILLER = """All runs use the same budget of updates and the same schedule.|The gap narrows when less data is
used.|We tune the learning rate on held-out data only.|Ablations show that the second stage matters
most.|Labels were checked by three annotators.|Training takes two days on one machine.|Larger batches
did not help.|Errors concentrate on rare classes.|The baseline was trained again with our code.|We
average over five seeds.|Augmentation is kept to a minimum.|Qualitative examples are given in the
appendix.|A smaller variant loses little.|Inference is fast enough for interactive use.|We leave
calibration to later work.|Distillation was tried and discarded.|Preprocessing follows earlier
work.|The decoder shares its weights with the encoder."""
_FILLER_SENTENCES: Final = tuple(_FILLER.replace("\n", " ").split("|"))


@dataclass(frozen=True, slots=True)
class Event:
    """An entry of the agenda; times are minutes of the day."""

    person: str
    activity: str
    date: str
    start: int
    end: int
    place: str


@dataclass(frozen=True, slots=True)
class Result:
    """A result that a paper reports; the score is in percent, with two decimals."""

    method: str
    task: str
    dataset: str
    metric: str
    score: float


def clock_text(minutes: int) -> str:
    """Return a time of day as HH:MM."""
    return f"{minutes // 60:02}:{minutes % 60:02}"


_MONTHS = words_of("January February March April May June July August September October November December")


def day_text(day: datetime.date) -> str:
    """Return a date in words, such as "May 2nd, 2042": a search by words does not take it for a time of day."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10 if day.day // 10 != 1 else 0, "th")
    return f"{_MONTHS[day.month - 1]} {day.day}{ending}, {day.year}"


def agenda(seed: int, count: int) -> tuple[list[str], list[Event]]:
    """Return texts and events, one each, in no order; nobody is at two events at a time."""
    draws, names = ColumnDraws("records", seed, "agenda"), Draws("records", seed, "agenda", "names")
    people = fictional_people(names, _NUM_PEOPLE)
    places = [f"{word} {names.choice(VENUES)}" for word in fictional_words(names, 160)]
    slots = np.argsort(draws.below("slots", _NUM_PEOPLE * _DAYS * 3, 2**31 - 1), kind="stable")[:count]
    days = [day_text(_FIRST_DAY + datetime.timedelta(day)) for day in range(_DAYS)]
    activity, place = draws.below("activity", count, len(ACTIVITIES)), draws.below("place", count, len(places))
    delay, length = draws.below("delay", count, 13), draws.between("length", count, 9, 36)
    wording = draws.below("wording", count, len(_AGENDA_TEXTS))
    events, texts = [], []
    for k, slot in enumerate(slots.tolist()):
        person, rest = divmod(slot, _DAYS * 3)
        day, part = divmod(rest, 3)
        start = _PARTS_OF_DAY[part] + 5 * int(delay[k])
        event = Event(
            people[person], ACTIVITIES[activity[k]], days[day], start, start + 5 * int(length[k]), places[place[k]]
        )
        events.append(event)
        texts.append(
            _AGENDA_TEXTS[wording[k]].format(
                person=event.person,
                activity=event.activity,
                date=event.date,
                place=event.place,
                start=clock_text(event.start),
                end=clock_text(event.end),
            )
        )
    return texts, events


def papers(seed: int, count: int) -> tuple[list[str], list[Result]]:
    """Return paragraphs and the results that they report, one to three each; no result is reported twice."""
    draws = Draws("records", seed, "papers")
    methods = [
        f"{word}{draws.choice(('Net', 'Former', '-B', '-XL', 'Mix', 'RNN'))}" for word in fictional_words(draws, 400)
    ]
    datasets = [f"{word}-{draws.between(10, 99)}" for word in fictional_words(draws, max(4, count // 6))]
    task_of = {dataset: draws.choice(TASKS_OF_RESEARCH) for dataset in datasets}
    metrics_of = {dataset: draws.shuffled(METRICS)[:2] for dataset in datasets}
    seen: set[tuple[str, str, str]] = set()
    texts, results = [], []
    for _ in range(count):
        method, dataset = draws.choice(methods), draws.choice(datasets)
        sentences = [draws.choice(_FILLER_SENTENCES) for _ in range(draws.between(4, 9))]
        for metric in metrics_of[dataset][: draws.between(1, 2)]:
            if (method, dataset, metric) in seen:
                continue
            seen.add((method, dataset, metric))
            result = Result(method, task_of[dataset], dataset, metric, draws.between(3_000, 9_899) / 100)
            results.append(result)
            sentences.insert(draws.below(len(sentences) + 1), _reported(result, draws.choice(_RESULT_TEXTS)))
        texts.append(" ".join(sentences))
    return texts, results


def _reported(result: Result, wording: str) -> str:
    article = "an" if result.metric[0] in "aFANA" and result.metric != "BLEU" else "a"
    return wording.format(
        method=result.method,
        task=result.task,
        dataset=result.dataset,
        metric=result.metric,
        score=f"{result.score:.2f}",
        article=article,
    )


def same_day(events: Sequence[Event], person: str, date: str) -> list[Event]:
    """Return the events of a person on a day, in order of time."""
    return sorted(
        (event for event in events if event.person == person and event.date == date), key=lambda event: event.start
    )
