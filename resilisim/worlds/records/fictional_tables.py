"""The four tables of the records world: flights, coffee prices, airbnb and yelp, all of them fictional.

A table is a function of seed and size alone, on every machine: its values are drawn by counters and computed with whole
numbers. Names come from syllables and dates lie in the 2040s, so that nobody can have read of them.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from resilisim.provenance import canonical_json, content_hash
from resilisim.seeding import Draws, hash_words, uniform_bits

Integers = NDArray[np.int64]

MOST_ROWS: Final = 100_000
FIRST_FLIGHT_DAY: Final = datetime.date(2041, 1, 1)
FLIGHT_DAYS: Final = 90
FIRST_COFFEE_DAY: Final = datetime.date(2040, 1, 2)  # a Monday
_NUM_AIRLINES, _NUM_AIRPORTS = 24, 60
_NUM_NEIGHBOURHOODS, _NUM_CITIES = 150, 120

_ROOM_TYPES = ("Entire home", "Private room", "Shared room", "Hotel room")
_POLICIES = ("flexible", "moderate", "strict")
_STREETS = ("Street", "Lane", "Avenue", "Row", "Terrace", "Wharf")


def words_of(text: str) -> tuple[str, ...]:
    """Return the words of a text, which a program holds more readably than a list of them."""
    return tuple(text.split())


_ONSETS = words_of("b br c ch d dr f fl g gr h j k l m n p pr qu r s sh sk st t th tr v vr w y z")
_VOWELS = words_of("a e i o u a e o ai ea io ou")
_CODAS = words_of("l n r s th m nd rn sk lm x d k v st")
_STATES = words_of("AR BO CE DU EL FO GA HI IS JO KE LU")
_TRADES = words_of("""Bakery Barbers Books Brewery Cafe Carpentry Catering Cheese Clinic Cobblers Cycles Dental Diner
Drums Eyewear Florist Framing Furniture Games Gardens Gym Hardware Honey Hostel Jewellers Kennels
Kitchen Laundry Locksmith Market Movers Music Noodles Optics Paints Pharmacy Photo Pizza Plumbing
Pottery Salon Shoes Spices Stationery Tailors Tattoo Tea Toys Tyres Upholstery Wines Yoga""")
CATEGORIES: Final = words_of("""Arts Automotive Bars Beauty Books Breakfast Children Cleaning Clothing Coffee Desserts
Education Electronics Events Fitness Flowers Furniture Groceries Health Home Hotels Music Nightlife Outdoors Pets
Restaurants Seafood Sports Travel Vegetarian""")
_ADJECTIVES = words_of("""Airy Bright Calm Compact Cosy Elegant Gabled Hidden Leafy Modern Quaint Quiet Rustic Shaded
Sunlit Tidy""")
_PLACES = words_of("""attic barn boathouse bungalow cabin cottage duplex flat loft mews studio suite tower villa
workshop""")


@dataclass(frozen=True, slots=True)
class Table:
    """A table: columns of equal length by name, each with its SQL type.

    Attributes:
        name: Its name.
        columns: Arrays of whole numbers, floats, truth values or texts (of object dtype), (num_rows,).
        types: SQL type of each column. A null is None in a text column, and -9999 in a whole-number one.
    """

    name: str
    columns: Mapping[str, NDArray[Any]]
    types: Mapping[str, str]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def row(self, place: int) -> dict[str, Any]:
        """Return a row as plain values."""
        return {name: _plain(values[place]) for name, values in self.columns.items()}

    def where(self, **equal: Any) -> Integers:
        """Return the places of the rows whose columns have these values."""
        keep = np.ones(len(self), dtype=bool)
        for name, value in equal.items():
            keep &= self.columns[name] == value
        return np.flatnonzero(keep)

    def content_hash(self) -> str:
        """Return the SHA-256 of names, types and all values."""
        values = {name: column.tolist() for name, column in self.columns.items()}
        return content_hash(canonical_json([self.name, dict(self.types), values]).encode())


NULL: Final = -9999  # no value drawn below is as low


def _plain(value: Any) -> Any:
    plain = value.item() if isinstance(value, np.generic) else value
    return None if plain == NULL else plain


class ColumnDraws:
    """Draws for whole columns: number k of a column is a function of seed, table, column and k."""

    def __init__(self, *name: object) -> None:
        self._name = name

    def below(self, column: str, rows: int, size: int) -> Integers:
        """Return whole numbers from 0 to size - 1, at most 2^31, (rows,)."""
        index = np.arange(rows, dtype=np.int64)
        bits = uniform_bits(*hash_words(*self._name, column), index, 0)
        result: Integers = ((bits >> 21) * size) >> 32
        return result

    def between(self, column: str, rows: int, low: int, high: int) -> Integers:
        """Return whole numbers from low to high, both included, (rows,)."""
        return low + self.below(column, rows, high - low + 1)

    def pick(self, column: str, rows: int, options: Sequence[str]) -> NDArray[Any]:
        """Return texts among the options, (rows,)."""
        return np.array(options, dtype=object)[self.below(column, rows, len(options))]


def fictional_words(draws: Draws, count: int, syllables: int = 2) -> list[str]:
    """Return distinct capitalised words of syllables, a few letters each."""
    words: dict[str, None] = {}
    while len(words) < count:
        parts = [draws.choice(_ONSETS) + draws.choice(_VOWELS) for _ in range(syllables)]
        words["".join([*parts, draws.choice(_CODAS)]).capitalize()] = None
    return list(words)


def fictional_people(draws: Draws, count: int) -> list[str]:
    """Return distinct first and last names."""
    first, last = fictional_words(draws, 150, 1), fictional_words(draws, 300)
    people: dict[str, None] = {}
    while len(people) < count:
        people[f"{draws.choice(first)} {draws.choice(last)}"] = None
    return list(people)


def _codes(draws: Draws, count: int, length: int) -> list[str]:
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    codes: dict[str, None] = {}
    while len(codes) < count:
        codes["".join(draws.choice(letters) for _ in range(length))] = None
    return list(codes)


def _texts(values: Iterator[str] | Sequence[str], rows: int) -> NDArray[Any]:
    return np.fromiter(values, dtype=object, count=rows)


_CLOCK = np.array([f"{minute // 60:02}:{minute % 60:02}" for minute in range(1440)], dtype=object)


def clock(minutes: Integers) -> NDArray[Any]:
    """Return times of day as HH:MM."""
    return _CLOCK[minutes % 1440]


def flights(seed: int, rows: int) -> Table:
    """Return the flights: services that fly once a day, in order of date; a cancelled flight has no times."""
    names, draws = Draws("records", seed, "flights", "names"), ColumnDraws("records", seed, "flights")
    airlines = [f"{word} Air" for word in fictional_words(names, _NUM_AIRLINES)]
    codes, airports = _codes(names, _NUM_AIRLINES, 2), _codes(names, _NUM_AIRPORTS, 3)
    services = -(-rows // FLIGHT_DAYS)
    airline = draws.below("airline", services, _NUM_AIRLINES)
    number = 100 + np.arange(services) * 7  # no number twice, whatever the airline
    origin = draws.below("origin", services, _NUM_AIRPORTS)
    dest = (origin + draws.between("dest", services, 1, _NUM_AIRPORTS - 1)) % _NUM_AIRPORTS
    x, y = (draws.below(axis, _NUM_AIRPORTS, size) for axis, size in (("x", 2600), ("y", 1400)))
    distance = 90 + np.abs(x[origin] - x[dest]) + np.abs(y[origin] - y[dest])
    planned = draws.between("planned", services, 5 * 12, 22 * 12) * 5

    day, service = np.divmod(np.arange(rows), services)
    cancelled = draws.below("cancelled", rows, 1000) < 18
    luck = draws.below("luck", rows, 1000)
    late = draws.between("late", rows, 8, 45) + np.where(luck > 960, draws.between("later", rows, 20, 240), 0)
    delay = np.where(luck < 640, draws.between("early", rows, -9, 7), late)
    taxi_out, taxi_in = draws.between("taxi out", rows, 6, 38), draws.between("taxi in", rows, 3, 19)
    air = distance[service] * 2 // 15 + 18 + draws.between("wind", rows, -8, 12)
    planned_flight = distance[service] * 2 // 15 + 48
    arrival = planned[service] + delay + taxi_out + air + taxi_in
    arrival_delay = arrival - planned[service] - planned_flight

    def flown(values: Integers) -> Integers:
        return np.where(cancelled, NULL, values)

    def flown_texts(values: NDArray[Any]) -> NDArray[Any]:
        shown = values.copy()
        shown[cancelled] = None
        return shown

    days = [(FIRST_FLIGHT_DAY + datetime.timedelta(int(step))).isoformat() for step in range(FLIGHT_DAYS)]
    columns = {
        "FlightDate": np.array(days, dtype=object)[day],
        "Airline": np.array(airlines, dtype=object)[airline[service]],
        "AirlineCode": np.array(codes, dtype=object)[airline[service]],
        "FlightNumber": number[service],
        "Origin": np.array(airports, dtype=object)[origin[service]],
        "Dest": np.array(airports, dtype=object)[dest[service]],
        "CRSDepTime": clock(planned[service]),
        "DepTime": flown_texts(clock(planned[service] + delay)),
        "DepDelay": flown(delay),
        "TaxiOut": flown(taxi_out),
        "AirTime": flown(air),
        "TaxiIn": flown(taxi_in),
        "CRSArrTime": clock(planned[service] + planned_flight),
        "ArrTime": flown_texts(clock(arrival)),
        "ArrDelay": flown(arrival_delay),
        "Distance": distance[service],
        "Cancelled": cancelled,
    }
    return _table("flights", columns, {"FlightDate": "DATE"})


def coffee(seed: int, rows: int) -> Table:
    """Return the prices of coffee on weekdays: a walk that opens where the last day closed, or near it."""
    draws = ColumnDraws("records", seed, "coffee")
    gaps, moves = draws.between("gap", rows, -60, 60).tolist(), draws.between("move", rows, -420, 425).tolist()
    opens, closes, price = [], [], 12_000
    for gap, move in zip(gaps, moves, strict=True):
        opens.append(price + gap)
        price = opens[-1] + move
        if not 4_000 <= price <= 40_000:
            price = opens[-1] - move
        closes.append(price)
    opening, closing = np.array(opens, dtype=np.int64), np.array(closes, dtype=np.int64)
    high = np.maximum(opening, closing) + draws.below("high", rows, 220)
    low = np.minimum(opening, closing) - draws.below("low", rows, 220)
    day = np.arange(rows)
    dates = np.datetime64(FIRST_COFFEE_DAY) + (day // 5 * 7 + day % 5).astype("timedelta64[D]")
    columns = {
        "Date": dates.astype(str).astype(object),
        "Open": opening / 100,
        "High": high / 100,
        "Low": low / 100,
        "Close": closing / 100,
        "Volume": draws.between("volume", rows, 4_000, 68_000),
        "Currency": _texts(["CRD"] * rows, rows),
    }
    return _table("coffee", columns, {"Date": "DATE"})


def airbnb(seed: int, rows: int) -> Table:
    """Return places to stay, each with an id and a name of its own."""
    names, draws = Draws("records", seed, "airbnb", "names"), ColumnDraws("records", seed, "airbnb")
    areas = fictional_words(names, _NUM_NEIGHBOURHOODS)
    groups = fictional_words(names, 8, 1)
    landmarks = [f"{word} {thing}" for word in fictional_words(names, 200) for thing in ("Bridge", "Gate", "Park")]
    hosts = fictional_people(names, min(12_000, 40 + rows // 3))
    area = draws.below("area", rows, len(areas))
    adjective, place = draws.pick("adjective", rows, _ADJECTIVES), draws.pick("place", rows, _PLACES)
    landmark = draws.pick("landmark", rows, landmarks)
    price = draws.between("price", rows, 50, 1199)
    reviews = draws.below("reviews", rows, 26) ** 2 + draws.below("more reviews", rows, 40)
    last = np.datetime64("2040-01-01") + draws.below("last", rows, 600).astype("timedelta64[D]")
    columns = {
        "id": 1_001_254 + np.arange(rows) * 17 + draws.below("id", rows, 17),
        "name": adjective + " " + place + " near " + landmark,
        "host_name": draws.pick("host", rows, hosts),
        "host_identity_verified": draws.below("verified", rows, 2) == 1,
        "neighbourhood_group": np.array(groups, dtype=object)[area % len(groups)],
        "neighbourhood": np.array(areas, dtype=object)[area],
        "room_type": draws.pick("room", rows, _ROOM_TYPES),
        "cancellation_policy": draws.pick("policy", rows, _POLICIES),
        "construction_year": draws.between("year", rows, 1955, 2039),
        "price": price,
        "service_fee": price * draws.between("fee", rows, 8, 22) // 100,
        "minimum_nights": draws.between("nights", rows, 1, 30),
        "number_of_reviews": reviews,
        "last_review": last.astype(str).astype(object),
        "reviews_per_month": draws.between("per month", rows, 1, 999) / 100,
        "review_rate": draws.between("rate", rows, 10, 50) / 10,
        "availability_365": draws.below("availability", rows, 366),
    }
    return _table("airbnb", columns, {"last_review": "DATE"})


def yelp(seed: int, rows: int) -> Table:
    """Return businesses, each with an id; a chain has the same name in several places."""
    names, draws = Draws("records", seed, "yelp", "names"), ColumnDraws("records", seed, "yelp")
    cities, streets = fictional_words(names, _NUM_CITIES), fictional_words(names, 400)
    brands = fictional_words(names, 3_000)
    city = draws.below("city", rows, len(cities))
    kinds = [draws.pick(f"category {place}", rows, CATEGORIES) for place in range(3)]
    categories = [", ".join(dict.fromkeys(row)) for row in zip(*kinds, strict=True)]
    opens, closes = draws.between("opens", rows, 12, 22) * 30, draws.between("closes", rows, 32, 46) * 30
    columns = {
        "business_id": _texts(
            [f"b{number:07}" for number in (draws.below("id", rows, 97) + np.arange(rows) * 97)], rows
        ),
        "name": draws.pick("brand", rows, brands) + " " + draws.pick("trade", rows, _TRADES),
        "address": draws.between("house", rows, 1, 2999).astype(str).astype(object)
        + " "
        + draws.pick("street", rows, streets)
        + " "
        + draws.pick("way", rows, _STREETS),
        "city": np.array(cities, dtype=object)[city],
        "state": np.array(_STATES, dtype=object)[city % len(_STATES)],
        "postal_code": (10_000 + city * 613 + draws.below("post", rows, 12)).astype(str).astype(object),
        "latitude": draws.between("latitude", rows, 310_000, 489_999) / 10_000,
        "longitude": draws.between("longitude", rows, -1_219_999, -700_000) / 10_000,
        "stars": draws.between("stars", rows, 2, 10) / 2,
        "review_count": 3 + draws.below("reviews", rows, 45) ** 2 + draws.below("more reviews", rows, 60),
        "is_open": draws.below("open", rows, 5) > 0,
        "categories": _texts(categories, rows),
        "opening_time": clock(opens),
        "closing_time": clock(closes),
    }
    return _table("yelp", columns, {})


TABLES: Mapping[str, Callable[[int, int], Table]] = {
    "flights": flights,
    "coffee": coffee,
    "airbnb": airbnb,
    "yelp": yelp,
}

_TYPE_OF_KIND = {"i": "BIGINT", "f": "DOUBLE", "b": "BOOLEAN", "O": "VARCHAR"}


def _table(name: str, columns: Mapping[str, NDArray[Any]], types: Mapping[str, str]) -> Table:
    return Table(
        name, columns, {key: types.get(key, _TYPE_OF_KIND[column.dtype.kind]) for key, column in columns.items()}
    )
