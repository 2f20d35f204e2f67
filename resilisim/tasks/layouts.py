"""The text of a task: context sentences that agree with its values, around one clause for each required tool."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any

from resilisim.provenance import canonical_json
from resilisim.seeding import Draws
from resilisim.tasks.domains import Scene, spoken_date
from resilisim.tasks.values import PLACES

_NUMBER_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@lru_cache(maxsize=1)
def _texts() -> Mapping[str, Any]:
    """Return the layouts and the pools of sentences."""
    text = resources.files("resilisim.tasks").joinpath("data/layouts.json").read_text(encoding="utf-8")
    value: Mapping[str, Any] = json.loads(text)
    return value


def describe(
    scene: Scene,
    tool_clauses: Sequence[str],
    inputs: Mapping[str, Any],
    expected_outputs: Mapping[str, Any],
    destination: str | None,
    draws: Draws,
) -> tuple[str, str]:
    """Write the description of a task.

    Args:
        scene: The setting.
        tool_clauses: One clause for each required tool, in the required order.
        inputs: The task's inputs; every one is told.
        expected_outputs: The task's expected outputs.
        destination: Where the outcome goes, if it goes somewhere and the inputs do not say so.
        draws: Source of choices.

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
        places = [expected_outputs[name] for name in PLACES if isinstance(expected_outputs.get(name), str)]
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
