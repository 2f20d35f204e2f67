"""Where one task plays: a drawn scene, inputs and expected outputs that agree with it, and the text that tells all.

A scene has a domain with its organisations, people, artefacts and occasions. Inputs fit a tool's parameters, outputs a
tool's returns; the text puts context sentences around one clause for each required tool.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from resilisim.inputs import validated
from resilisim.provenance import canonical_json
from resilisim.seeding import Draws
from resilisim.tool_library.parameters import accepts
from resilisim.tool_library.tool import Parameter, Tool
from resilisim.tool_library.tool_schemas import example_of, properties_of

TICKET_MODULUS = 10_000_000
TICKET_STEP = 7_368_787  # coprime to the modulus: tickets of one seed never meet, and neighbours look unrelated
_FIRST_DAY = datetime.date(2025, 1, 6)  # tasks play within a year from here; no clock is read
NUM_DAYS = 364

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)

FILE_FORMATS = ("csv", "json", "xml", "parquet")
_PLACES = ("location", "archive", "converted_file", "path")  # returns that say where an outcome lies
OPTIONAL_SHARE = 0.4  # how often an optional parameter is given

_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "object": (dict,),
    "array": (list,),
}
_FIELD_TYPE_OF_SUFFIX = (
    (("_at", "_on"), "datetime"),
    (("_kg", "_kw", "_m3", "_ms", "_m3s", "_mm", "_cm", "_c", "_v", "_km", "_percent", "_min"), "number"),
    (("quantity", "units", "litres", "votes", "pieces", "pieces_left", "amount", "value", "level", "score"), "number"),
)
_NUMBER_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


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
    return validated(tuple[Domain, ...], _data("domains.json"), "domains.json")


@lru_cache(maxsize=1)
def _texts() -> Mapping[str, Any]:
    """Return the layouts, the pools of sentences and the names of people."""
    value: Mapping[str, Any] = _data("layouts.json")
    return value


def _data(name: str) -> Any:
    return json.loads(resources.files("resilisim.tasks").joinpath("data", name).read_text(encoding="utf-8"))


def draw_scene(draws: Draws, seed: int, index: int) -> Scene:
    """Draw the setting of one task; its ticket differs from that of every other task of the same seed."""
    texts = _texts()
    domain = draws.choice(domains())
    artefact = draws.choice(domain.artefacts)
    organisation = draws.choice(domain.organisations)
    day = _working_day(_FIRST_DAY + datetime.timedelta(days=draws.below(NUM_DAYS)))
    return Scene(
        domain=domain,
        artefact=artefact,
        organisation=organisation,
        unit=draws.choice(domain.units),
        person=f"{draws.choice(texts['given_names'])} {draws.choice(texts['family_names'])}",
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


def draw_inputs(tool: Tool, scene: Scene, draws: Draws) -> dict[str, Any]:
    """Draw input data for a task's first tool: every required parameter, and some of the optional ones."""
    inputs: dict[str, Any] = {}
    for parameter in tool.parameters:
        if parameter.required or draws.uniform() < OPTIONAL_SHARE:
            value = _parameter_value(parameter, tool, scene, draws)
            if tool.input_schema is not None and not accepts(tool, {parameter.name: value}):
                # A schema of somebody else's says more than a scene can know.
                value = example_of(tool.input_schema, properties_of(tool.input_schema)[0][parameter.name])
                if not parameter.required and not accepts(tool, {parameter.name: value}):
                    continue
            inputs[parameter.name] = value
    if inputs.get("output_format") is not None and inputs.get("output_format") == inputs.get("input_format"):
        others = [name for name in FILE_FORMATS if name != inputs["input_format"]]
        inputs["output_format"] = draws.choice(others)
    return inputs


def draw_expected_outputs(tool: Tool, scene: Scene, draws: Draws, destination: str | None) -> dict[str, Any]:
    """Draw what a task's last tool should return, of its types: success, metadata, what can be said in advance."""
    drawn = {entry.name: _return_value(entry.name, scene, draws, destination) for entry in tool.returns}
    expected = {entry.name: drawn[entry.name] for entry in tool.returns if _has_type(drawn[entry.name], entry.type)}
    first = tool.returns[0]
    return expected or {first.name: _typed_value(Parameter(first.name, first.type), scene, draws)}


def field_type(field: str) -> str:
    """Return the type that a field's name suggests."""
    for endings, kind in _FIELD_TYPE_OF_SUFFIX:
        if field.endswith(endings):
            return kind
    return "string"


def file_path(scene: Scene, draws: Draws, folder: str = "incoming") -> str:
    """Draw the path of a file of the scene's artefact."""
    root = draws.choice(("/data", "/srv/exchange", "/mnt/shared", "exports"))
    form = draws.choice(("csv", "json", "xml", "txt", "xlsx"))
    return f"{root}/{folder}/{scene.artefact.stem}_{scene.day.isoformat()}.{form}"


def web_address(scene: Scene, draws: Draws, verb: str = "") -> str:
    """Draw the address of a web service of the scene's organisation (under a top-level domain kept for examples)."""
    path = scene.artefact.stem.replace("_", "-")
    host = f"https://{draws.choice(('api', 'data', 'gateway'))}.{scene.host}"
    return f"{host}/v{draws.between(1, 3)}/{path}{verb}"


def _parameter_value(parameter: Parameter, tool: Tool, scene: Scene, draws: Draws) -> Any:
    """Draw one value: by constraints that leave no choice, then by name, then by type."""
    constraints = parameter.constraints
    if "const" in constraints:
        return constraints["const"]
    if constraints.get("enum"):
        return draws.choice(list(constraints["enum"]))
    value = _named_value(parameter.name, tool, scene, draws)
    if value is None or not _has_type(value, parameter.type):
        value = _typed_value(parameter, scene, draws)
    return _within_bounds(value, parameter)


def _named_value(name: str, tool: Tool, scene: Scene, draws: Draws) -> Any:
    artefact = scene.artefact
    if name == "source":
        return _source(tool, scene, draws)
    if name == "destination":
        return draw_destination(tool, scene, draws)
    if name == "path":
        return file_path(scene, draws)
    if name in ("data", "dataset", "payload", "message", "scenario", "history", "value", "content"):
        is_object = any(parameter.name == name and parameter.type == "object" for parameter in tool.parameters)
        return _batch(scene, draws) if name != "message" or is_object else f"{artefact.items} are ready"
    if name == "schema":
        return {
            "fields": {field: field_type(field) for field in artefact.fields},
            "required": list(artefact.fields[: draws.between(1, len(artefact.fields))]),
        }
    if name in ("input_format", "output_format"):
        return draws.choice(FILE_FORMATS)
    if name == "options":
        return _options(scene, draws)
    if name == "credentials":
        account = scene.domain.key.replace("_", "-")
        return {"client_id": f"svc-{account}", "secret_reference": f"vault/{account}/{artefact.stem}"}
    simple = {
        "timeout": draws.choice((15, 20, 30, 45, 60, 90)),
        "retry_count": draws.between(2, 5),
        "precision": draws.between(1, 6),
        "pattern": f"{artefact.stem}_*.{draws.choice(FILE_FORMATS)}",
        "group_by": [artefact.fields[0]],
        "condition": f"{artefact.fields[-1]} >= {scene.day.isoformat()}",
        "expression": f"sum({artefact.fields[-2]}) / count({artefact.fields[0]})",
        "objective": f"minimize waiting time before {scene.event}",
        "schedule": f"{scene.due.isoformat()}T{scene.due_time}",
        "target": f"gateway.{scene.host}:443",
        "key": f"{artefact.stem}:{scene.day.isoformat()}",
    }
    return simple.get(name)


def _batch(scene: Scene, draws: Draws) -> dict[str, Any]:
    """Describe a batch of records instead of spelling it out."""
    return {
        "batch": f"{scene.artefact.stem}-{scene.day.isoformat()}-{draws.between(100, 999)}",
        "records": scene.num_records,
        "fields": list(scene.artefact.fields),
    }


def _options(scene: Scene, draws: Draws) -> dict[str, Any]:
    every = {
        "encoding": draws.choice(("utf-8", "latin-1")),
        "time_zone": draws.choice(("UTC", "Europe/Lisbon", "Europe/Oslo", "America/Lima")),
        "limit": scene.num_records,
        "since": scene.day.isoformat(),
        "strict_mode": draws.choice((True, False)),
    }
    some = draws.shuffled(sorted(every))[: draws.between(1, 2)]
    return {name: every[name] for name in sorted(some)}


def _source(tool: Tool, scene: Scene, draws: Draws) -> str:
    """Return a place that a tool can take input from: an address, a folder or a file, by what the tool is about."""
    about = f"{tool.name} {tool.description}".lower()
    if tool.category == "network" or "url" in about:
        return web_address(scene, draws)
    if "folder" in about or "director" in about:
        return file_path(scene, draws).rpartition("/")[0] + f"/{scene.artefact.stem}/"
    if tool.category == "integration" or "connect" in about:
        return f"{draws.choice(('erp', 'crm', 'postgresql'))}://{scene.host}/{scene.artefact.stem}"
    return file_path(scene, draws)


def draw_destination(tool: Tool, scene: Scene, draws: Draws) -> str:
    """Draw a place that a tool can deliver to: a person, an address or a file, by what the tool is about."""
    about = f"{tool.name} {tool.description}".lower()
    if "notif" in about or "email" in about:
        return f"{scene.role.replace(' ', '.')}@{scene.host}"
    if tool.category == "network" or "webhook" in about:
        return web_address(scene, draws, "/results")
    return file_path(scene, draws, "outgoing")


def _has_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _PYTHON_TYPES.get(kind, ()))


def _typed_value(parameter: Parameter, scene: Scene, draws: Draws) -> Any:
    """Draw a value for a parameter whose name says nothing."""
    if parameter.default is not None and _has_type(parameter.default, parameter.type):
        return parameter.default
    kind = parameter.type
    if kind == "string":
        return f"{scene.artefact.items} of {scene.unit}"
    if kind in ("number", "integer"):
        return draws.between(1, 100)
    if kind == "boolean":
        return draws.choice((True, False))
    if kind == "array":
        return _array_value(parameter, scene, draws)
    return _batch(scene, draws)


def _array_value(parameter: Parameter, scene: Scene, draws: Draws) -> list[Any]:
    """Draw an array of the item type that the constraints name, as long as they demand."""
    length = max(2, int(parameter.constraints.get("minItems", 0)))
    length = min(length, int(parameter.constraints.get("maxItems", length)))
    items = parameter.constraints.get("items", {})
    kind = items.get("type", "string") if isinstance(items, dict) else "string"
    fields = scene.artefact.fields
    values: dict[str, list[Any]] = {
        "string": [
            fields[place % len(fields)] + ("" if place < len(fields) else str(place)) for place in range(length)
        ],
        "boolean": [place % 2 == 0 for place in range(length)],
        "object": [{**_batch(scene, draws), "part": place} for place in range(length)],
        "array": [[place] for place in range(length)],
    }
    return values.get(kind, list(range(1, length + 1)))


def _within_bounds(value: Any, parameter: Parameter) -> Any:
    """Move a number between its bounds and cut or fill a text to its length."""
    constraints = parameter.constraints
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        step = 1 if parameter.type == "integer" else 0.5
        if "exclusiveMinimum" in constraints and value <= constraints["exclusiveMinimum"]:
            value = constraints["exclusiveMinimum"] + step
        if "minimum" in constraints:
            value = max(value, constraints["minimum"])
        if "exclusiveMaximum" in constraints and value >= constraints["exclusiveMaximum"]:
            value = constraints["exclusiveMaximum"] - step
        if "maximum" in constraints:
            value = min(value, constraints["maximum"])
    if isinstance(value, str):
        value = value.ljust(int(constraints.get("minLength", 0)), "x")
        value = value[: int(constraints.get("maxLength", len(value)))]
    return value


def _return_value(name: str, scene: Scene, draws: Draws, destination: str | None) -> Any:
    """Draw a return value that can be told before the work is done; None for all others."""
    if name == "metadata":
        return {"ticket": scene.ticket, "items": scene.artefact.items, "records": scene.num_records}
    if name in ("success", "valid", "delivered"):
        return True
    if name in _PLACES:
        return destination or file_path(scene, draws, "outgoing")
    known: dict[str, Any] = {
        "violations": [],
        "status_code": 200,
        "kept_count": scene.num_records,
        "route": destination,
        "next_run": f"{scene.due.isoformat()}T{scene.due_time}",
    }
    return known.get(name)


def describe(
    scene: Scene,
    tool_clauses: Sequence[str],
    inputs: Mapping[str, Any],
    expected_outputs: Mapping[str, Any],
    destination: str | None,
    draws: Draws,
) -> tuple[str, str]:
    """Write the description of a task around one clause for each required tool; every input is told.

    The destination is where the outcome goes, if it goes somewhere and the inputs do not say so.

    Returns:
        The name of the layout that was drawn, and the text.
    """
    texts = _texts()
    layout = draws.choice(texts["layouts"])
    count = len(tool_clauses)
    lead = draws.choice(texts["leads_one" if count == 1 else "leads_many"]).format(count=_number_word(count))
    setting = {
        "domain": scene.domain.name,
        "organisation": scene.organisation,
        "unit": scene.unit,
        "person": scene.person,
        "role": scene.role,
        "role_capital": _capital(scene.role),
        "items": scene.artefact.items,
        "ticket": scene.ticket,
        "day": spoken_date(scene.day),
        "due": spoken_date(scene.due),
        "due_time": scene.due_time,
        "event": scene.event,
        "event_capital": _capital(scene.event),
    }
    text: str = layout["text"].format(
        **setting,
        reason=scene.reason,
        lead=lead,
        steps=_listed(tool_clauses, layout["style"]),
        inputs=" ".join(_input_sentences(scene, inputs, draws)),
        delivery=" ".join(_output_sentences(scene, expected_outputs, destination, draws)),
        deadline=draws.choice(texts["deadlines"]).format(**setting),
    )
    return layout["name"], text


def _listed(tool_clauses: Sequence[str], style: str) -> str:
    """Join clauses so that each stands alone: as sentences, numbered lines, bullets, or between semicolons."""
    if style == "numbered":
        return "\n".join(f"{place}. {clause}." for place, clause in enumerate(tool_clauses, start=1))
    if style == "bullets":
        return "\n".join(f"- {clause}" for clause in tool_clauses)
    if style == "semicolons":
        rest = (f"{clause[:1].lower()}{clause[1:]}" for clause in tool_clauses[1:])
        return "; ".join((tool_clauses[0], *rest)) + "."
    return " ".join(f"{clause}." for clause in tool_clauses)


def _input_sentences(scene: Scene, inputs: Mapping[str, Any], draws: Draws) -> list[str]:
    pool = _texts()["inputs"]
    sentences: list[str] = []
    for name, value in inputs.items():
        if isinstance(value, dict) and "batch" in value:
            facts = {**value, "fields": _enumerated(value["fields"])}
            sentences.append(draws.choice(pool["batch"]).format(**facts))
        elif name == "schema" and isinstance(value, dict) and value.get("required"):
            sentences.append(draws.choice(pool["schema"]).format(required=_enumerated(value["required"])))
        elif name in ("input_format", "output_format") and {"input_format", "output_format"} <= inputs.keys():
            if name == "input_format":
                formats = {key: str(inputs[key]).upper() for key in ("input_format", "output_format")}
                sentences.append(draws.choice(pool["formats"]).format(**formats))
        elif name == "credentials" and isinstance(value, dict) and {"client_id", "secret_reference"} <= value.keys():
            sentences.append(draws.choice(pool["credentials"]).format(**value))
        elif name == "options" and isinstance(value, dict) and value:
            settings = ", ".join(f"{key.replace('_', ' ')} {_shown(entry)}" for key, entry in value.items())
            sentences.append(draws.choice(pool["options"]).format(settings=settings))
        elif name in pool and not isinstance(value, (dict, list)):
            sentences.append(draws.choice(pool[name]).format(items=scene.artefact.items, value=value))
        elif value != {}:
            facts = {"name": name.replace("_", " "), "value": _shown(value)}
            sentences.append(draws.choice(pool["other"]).format(**facts))
    return sentences


def _output_sentences(
    scene: Scene, expected_outputs: Mapping[str, Any], destination: str | None, draws: Draws
) -> list[str]:
    pool = _texts()["outputs"]
    sentences = []
    if destination is not None:
        kind = "destination" if "@" in destination or "://" in destination else "location"
        sentences.append(draws.choice(pool[kind]).format(value=destination))
    else:
        places = [expected_outputs[name] for name in _PLACES if isinstance(expected_outputs.get(name), str)]
        sentences += [draws.choice(pool["location"]).format(value=place) for place in places]
    for name in ("violations", "status_code", "delivered"):
        if name in expected_outputs:
            sentences.append(draws.choice(pool[name]).format(value=expected_outputs[name]))
    sentences.append(draws.choice(pool["records"]).format(value=scene.num_records, person=scene.person))
    return sentences


def _enumerated(words: Sequence[str]) -> str:
    """Join words as people do: "a, b and c"."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return value if isinstance(value, str) else canonical_json(value)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _number_word(count: int) -> str:
    return _NUMBER_WORDS[count] if count < len(_NUMBER_WORDS) else str(count)
