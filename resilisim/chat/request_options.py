"""Fields of requests that are named from outside: for all components of an agent or for single ones, as texts.

A text is `[ROLE.]KEY=VALUE`. `temperature`, `top_p`, `max_tokens` and `seed` replace what the agent asks for; any other
key becomes a field of the request as it is sent (`reasoning_effort=high`), dots leading into objects
(`chat_template_kwargs.enable_thinking=false`). Values are JSON where they can be, else texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Final

from annotated_types import Ge, Gt, Le

from resilisim.bounds import Temperature, checked
from resilisim.chat.types import ChatRequest
from resilisim.errors import InvalidInputError, unknown_name
from resilisim.provenance import canonical_json
from resilisim.redaction import is_secret_name, keep_secret

# The components that ask models; each request names its own in `ChatRequest.role`.
COMPONENT_ROLES = ("planner", "replanner", "extractor", "reasoner", "executor", "reflector", "evaluator", "agent")
DEFAULT_ROLE = "default"

# What a request has by itself; of these the model's own default can be asked for ("none").
_OWN: Final[Mapping[str, Any]] = {
    "temperature": Temperature,
    "top_p": Annotated[float, Gt(0.0), Le(1.0)],
    "max_tokens": Annotated[int, Ge(1)],
    "seed": Annotated[int, Ge(0), Le(2**63 - 1)],
}
# What a request is about, which no option may change.
_TAKEN: Final = (
    "model",
    "messages",
    "tools",
    "functions",
    "stop",
    "n",
    "stream",
    "stream_options",
    "parallel_tool_calls",
)

Fields = Mapping[str, Any]  # of one request, by name
RequestOptions = Mapping[str, Fields]  # by role, or `DEFAULT_ROLE` for all


def read_request_options(texts: Iterable[str], where: str = "model option") -> dict[str, dict[str, Any]]:
    """Read texts `[ROLE.]KEY=VALUE`; the fields of each role, those for all under "default".

    Raises:
        InvalidInputError: A text is no such option, is given twice, or its value is not what the field takes.
    """
    options: dict[str, dict[str, Any]] = {}
    for text in texts:
        path, equals, raw = (part.strip() for part in text.partition("="))
        keys = path.split(".")
        role = keys.pop(0) if len(keys) > 1 and keys[0] in COMPONENT_ROLES else DEFAULT_ROLE
        if not equals or not all(keys) or not raw:
            if is_secret_name(path):
                keep_secret(raw)
            raise InvalidInputError(f"{where} {text!r:.100}: expected [ROLE.]KEY=VALUE, such as planner.temperature=0")
        _refuse_wrong_key(keys, raw, where, role)
        _put(options.setdefault(role, {}), keys, _value(keys, raw, f"{where} {path}"), f"{where} {text!r:.100}")
    return options


def _refuse_wrong_key(keys: list[str], raw: str, where: str, role: str) -> None:
    name = ".".join(keys)
    if any(is_secret_name(key) for key in keys):
        keep_secret(raw)
        raise InvalidInputError(f"{where} {name}: holds a secret; expected keys of endpoints in the environment alone")
    if keys[0] in _TAKEN:
        raise InvalidInputError(f"{where} {name}: expected a field that the agent itself does not set")
    if role == DEFAULT_ROLE and len(keys) > 1 and keys[1] in _OWN:  # a role that is misspelt
        raise unknown_name("component role", keys[0], COMPONENT_ROLES, f"{where} {name}")


def _value(keys: list[str], raw: str, what: str) -> Any:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        value = raw
    if len(keys) > 1 or keys[0] not in _OWN:
        return value
    if raw.lower() == "none" or value is None:
        return None
    return checked(_OWN[keys[0]], what, value)


def _put(fields: dict[str, Any], keys: list[str], value: Any, what: str) -> None:
    for key in keys[:-1]:
        fields = fields.setdefault(key, {})
        if not isinstance(fields, dict):
            raise InvalidInputError(f"{what}: {key!r} has a value already")
    if keys[-1] in fields:
        raise InvalidInputError(f"{what}: this field is given twice, expected each once")
    fields[keys[-1]] = value


def merged(options: RequestOptions, others: RequestOptions) -> dict[str, dict[str, Any]]:
    """Return options with others over them."""
    return {role: _over(options.get(role, {}), others.get(role, {})) for role in {**options, **others}}


def _over(fields: Fields, others: Fields) -> dict[str, Any]:
    """Return fields with others over them; objects are joined."""
    result = dict(fields)
    for name, value in others.items():
        old = result.get(name)
        result[name] = _over(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def fields_of(options: RequestOptions, role: str) -> dict[str, Any]:
    """Return the fields for a component: those for all, with its own over them."""
    return _over(options.get(DEFAULT_ROLE, {}), options.get(role, {}))


def with_fields(request: ChatRequest, fields: Fields) -> ChatRequest:
    """Return a request with fields over what it asks for by itself."""
    if not fields:
        return request
    own = {name: value for name, value in fields.items() if name in _OWN}
    others = {name: value for name, value in fields.items() if name not in _OWN}
    return replace(request, **own, extra=_over(request.extra, others))


def shown_fields(fields: Fields) -> str:
    """Return fields as names of models show them: `temperature=0.6, reasoning_effort="high"`."""
    return ", ".join(f"{name}={canonical_json(fields[name])}" for name in sorted(fields))
