"""Input values that fit a tool's parameters and expected outputs that fit its returns, in the setting of a scene."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resilisim.seeding import Draws
from resilisim.tasks.domains import Scene
from resilisim.tool_library.model import Parameter, Tool

FORMATS = ("csv", "json", "xml", "parquet")
PLACES = ("location", "archive", "converted_file", "path")  # returns that say where an outcome lies
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


def draw_inputs(tool: Tool, scene: Scene, draws: Draws) -> dict[str, Any]:
    """Draw input data for a task's first tool: every required parameter, and some of the optional ones."""
    inputs: dict[str, Any] = {}
    for parameter in tool.parameters:
        if parameter.required or draws.uniform() < OPTIONAL_SHARE:
            inputs[parameter.name] = _parameter_value(parameter, tool, scene, draws)
    if inputs.get("output_format") is not None and inputs.get("output_format") == inputs.get("input_format"):
        others = [name for name in FORMATS if name != inputs["input_format"]]
        inputs["output_format"] = draws.choice(others)
    return inputs


def draw_expected_outputs(tool: Tool, scene: Scene, draws: Draws, destination: str | None) -> dict[str, Any]:
    """Draw what a task's last tool should return: success, the metadata, and what else can be said in advance.

    Args:
        tool: The last required tool.
        scene: The setting.
        draws: Source of choices.
        destination: Where the outcome goes, if that is known.

    Returns:
        Values under names of the tool's returns, of their types; at least one.
    """
    expected: dict[str, Any] = {}
    for entry in tool.returns:
        value = _return_value(entry.name, scene, draws, destination)
        if value is not None and _has_type(value, entry.type):
            expected[entry.name] = value
    if not expected:
        first = tool.returns[0]
        expected[first.name] = _typed_value(Parameter(first.name, first.type), scene, draws)
    return expected


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
    if name in ("data", "dataset", "payload", "message", "scenario", "history", "value", "content"):
        return _batch(scene, draws) if name != "message" or _wants_object(tool, name) else f"{artefact.items} are ready"
    if name == "schema":
        return {
            "fields": {field: field_type(field) for field in artefact.fields},
            "required": list(artefact.fields[: draws.between(1, len(artefact.fields))]),
        }
    if name in ("input_format", "output_format"):
        return draws.choice(FORMATS)
    if name == "options":
        return _options(scene, draws)
    if name == "credentials":
        account = scene.domain.key.replace("_", "-")
        return {"client_id": f"svc-{account}", "secret_reference": f"vault/{account}/{artefact.stem}"}
    simple = {
        "timeout": draws.choice((15, 20, 30, 45, 60, 90)),
        "retry_count": draws.between(2, 5),
        "precision": draws.between(1, 6),
        "pattern": f"{artefact.stem}_*.{draws.choice(FORMATS)}",
        "group_by": [artefact.fields[0]],
        "condition": f"{artefact.fields[-1]} >= {scene.day.isoformat()}",
        "expression": f"sum({artefact.fields[-2]}) / count({artefact.fields[0]})",
        "objective": f"minimize waiting time before {scene.event}",
        "schedule": f"{scene.due.isoformat()}T{scene.due_time}",
        "target": f"gateway.{scene.host}:443",
        "key": f"{artefact.stem}:{scene.day.isoformat()}",
    }
    return simple.get(name)


def _wants_object(tool: Tool, name: str) -> bool:
    return any(parameter.name == name and parameter.type == "object" for parameter in tool.parameters)


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
    chosen = draws.shuffled(sorted(every))[: draws.between(1, 2)]
    return {name: every[name] for name in sorted(chosen)}


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
    if name in PLACES:
        return destination or file_path(scene, draws, "outgoing")
    known: dict[str, Any] = {
        "violations": [],
        "status_code": 200,
        "kept_count": scene.num_records,
        "route": destination,
        "next_run": f"{scene.due.isoformat()}T{scene.due_time}",
    }
    return known.get(name)
