"""Where tasks play: domains with their organisations, people, artefacts and occasions, and one drawn scene."""

from __future__ import annotations

import datetime
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from resilisim.seeding import Draws

TICKET_MODULUS = 10_000_000
TICKET_STEP = 7_368_787  # coprime to the modulus: tickets of one seed never meet, and neighbours look unrelated
FIRST_DAY = datetime.date(2025, 1, 6)  # tasks play within a year from here; no clock is read
NUM_DAYS = 364

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
GIVEN_NAMES = (
    *("Nadia", "Tomasz", "Ingrid", "Kwame", "Leila", "Matteo", "Sanne", "Rafael", "Yuki", "Oisin", "Priya", "Emre"),
    *("Carmen", "Henrik", "Zanele", "Bruno", "Aylin", "Dmitri", "Maeve", "Joaquim", "Freya", "Samuel", "Mei", "Anselm"),
)
FAMILY_NAMES = (
    *("Okafor", "Lindqvist", "Moreau", "Castellanos", "Brandt", "Ito", "Kowalska", "Adeyemi", "Ferreira", "Novak"),
    *("Haddad", "Jensen", "Rossi", "Murphy", "Chandra", "Vermeer", "Yilmaz", "Petrov", "Sandoval", "Keller"),
    *("Mbeki", "Halonen", "Duarte", "Whitlock"),
)


@dataclass(frozen=True, slots=True)
class Artefact:
    """Something that a domain works on: its plural, the stem of its files, the fields of a record."""

    items: str
    stem: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Domain:
    """A line of work; in `reasons`, `{items}` is the place of the artefact's plural."""

    key: str
    name: str
    organisations: tuple[str, ...]
    units: tuple[str, ...]
    roles: tuple[str, ...]
    artefacts: tuple[Artefact, ...]
    reasons: tuple[str, ...]
    events: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything about one task's setting that its texts and values have to agree on."""

    domain: Domain
    artefact: Artefact
    organisation: str
    unit: str
    person: str
    role: str
    ticket: str
    day: datetime.date
    due: datetime.date
    due_time: str
    reason: str
    event: str
    num_records: int

    @property
    def host(self) -> str:
        """Internet host of the organisation, under a top-level domain that is kept for examples."""
        return "-".join(re.findall("[a-z0-9]+", self.organisation.lower())) + ".example"


@lru_cache(maxsize=1)
def domains() -> tuple[Domain, ...]:
    """Return every domain, in a fixed order."""
    text = resources.files("resilisim.tasks").joinpath("data/domains.json").read_text(encoding="utf-8")
    return tuple(
        Domain(
            key=entry["key"],
            name=entry["name"],
            organisations=tuple(entry["organisations"]),
            units=tuple(entry["units"]),
            roles=tuple(entry["roles"]),
            artefacts=tuple(
                Artefact(item["items"], item["stem"], tuple(item["fields"])) for item in entry["artefacts"]
            ),
            reasons=tuple(entry["reasons"]),
            events=tuple(entry["events"]),
        )
        for entry in json.loads(text)
    )


def draw_scene(draws: Draws, seed: int, index: int) -> Scene:
    """Draw the setting of one task; its ticket differs from that of every other task of the same seed."""
    domain = draws.choice(domains())
    artefact = draws.choice(domain.artefacts)
    organisation = draws.choice(domain.organisations)
    day = _working_day(FIRST_DAY + datetime.timedelta(days=draws.below(NUM_DAYS)))
    return Scene(
        domain=domain,
        artefact=artefact,
        organisation=organisation,
        unit=draws.choice(domain.units),
        person=f"{draws.choice(GIVEN_NAMES)} {draws.choice(FAMILY_NAMES)}",
        role=draws.choice(domain.roles),
        ticket=_ticket(organisation, seed, index),
        day=day,
        due=_working_day(day + datetime.timedelta(days=draws.between(1, 9))),
        due_time=f"{draws.between(6, 18):02d}:{15 * draws.below(4):02d}",
        reason=draws.choice(domain.reasons).replace("{items}", artefact.items),
        event=draws.choice(domain.events),
        num_records=draws.between(120, 9800),
    )


def _ticket(organisation: str, seed: int, index: int) -> str:
    """Return a work-order number: the initials of the organisation and a number that no other index has."""
    initials = "".join(word[0] for word in organisation.split() if word[0].isalpha()).upper()[:3]
    lap, place = divmod(index, TICKET_MODULUS)
    offset = Draws("resilisim/tasks/ticket", seed).below(TICKET_MODULUS)
    number = (place * TICKET_STEP + offset) % TICKET_MODULUS
    return f"{initials}-{number:07d}" + (f"-{lap}" if lap else "")


def _working_day(day: datetime.date) -> datetime.date:
    """Return the day, or the Monday after it if it is at a weekend."""
    return day + datetime.timedelta(days=7 - day.weekday() if day.weekday() >= 5 else 0)


def spoken_date(day: datetime.date) -> str:
    """Return a date as people write it, in English whatever the locale: "Monday 6 January 2025"."""
    return f"{WEEKDAYS[day.weekday()]} {day.day} {MONTHS[day.month - 1]} {day.year}"
