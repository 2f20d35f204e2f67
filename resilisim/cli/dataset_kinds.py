"""What each kind of dataset can be asked for: options of the command line turned into the kind's spec."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from resilisim.cli.prompts import make_spec as make_prompt_spec
from resilisim.errors import InvalidInputError, unknown_name
from resilisim.workflows.prompt_choice import FLAWED, parse_prompt_choice

if TYPE_CHECKING:
    from resilisim.datasets import SourceSpec

KINDS = ("prompts", "conversations", "preferences")

# Parameter of the command -> field of the specs.
SPEC_FIELDS: Mapping[str, str] = {
    "prompt_type": "types",
    "flaw": "flaws",
    "severity": "severities",
    "method": "methods",
    "seed": "seed",
    "plan_format": "plan_format",
    "alternatives": "alternatives",
    "semantic_match": "semantic_match",
    "templates": "templates",
    "prompt": "prompts",
    "seeds": "seeds",
    "first_seed": "first_seed",
    "policy": "policy",
    "search": "search",
    "pass_parameters": "pass_parameters",
    "call_arguments": "call_arguments",
    "explore": "explore",
    "min_margin": "min_margin",
}
# Parameter of the command -> field of the environment's settings.
ENVIRONMENT_FIELDS: Mapping[str, str] = {
    "success_probability": "base",
    "not_executed": "not_executed",
    "failed": "failed",
    "history": "history",
    "turns": "max_turns",
    "max_consecutive_failures": "max_consecutive_failures",
    "loop_length": "loop_length",
    "planner": "planner",
    "parameters": "parameters",
    "search_detail": "search_detail",
    "payload": "payload",
    "listed": "tools",
    "protocol": "protocol",
    "prompt_style": "prompt_style",
    "salt": "salt",
    "embedding_model": "embedding_model",
}
# What an environment needs in which something is done, and a prompt alone does not depend on.
ONLY_FOR_EPISODES = ("parameters", "search_detail", "payload", "salt")
# What does not decide the bytes of a dataset.
NOT_IN_THE_CARD = ("out", "workers", "overwrite", "as_json")


def given_options(context: typer.Context) -> dict[str, Any]:
    """Return the parameters of a command that stood on the command line, with their values."""
    return {name: value for name, value in context.params.items() if _is_given(context, name)}


def make_spec(kind: str, given: Mapping[str, Any], context: typer.Context) -> SourceSpec:
    """Return the spec that the given options mean.

    Args:
        kind: A name of `KINDS`.
        given: What `given_options` returned.
        context: Knows how options are written.

    Raises:
        InvalidInputError: The kind does not exist or does not take an option, or the spec refuses a value.
    """
    if kind not in KINDS:
        raise unknown_name("kind", kind, KINDS, "option --kind")
    spec_class = _spec_class(kind)
    own_fields = {field.name for field in fields(spec_class)}
    taken = [name for name, field in SPEC_FIELDS.items() if field in own_fields]
    taken += [name for name in ENVIRONMENT_FIELDS if kind != "prompts" or name not in ONLY_FOR_EPISODES]
    for name in given:
        if name in SPEC_FIELDS.keys() | ENVIRONMENT_FIELDS.keys() and name not in taken:
            others = ", ".join(_option(context, other) for other in taken if other in SPEC_FIELDS)
            raise InvalidInputError(
                f"option {_option(context, name)} does nothing for kind {kind!r}: expected one of {others}, "
                "or an option of the environment"
            )
    environment = replace(spec_class().environment, **_environment_values(given))
    if kind == "prompts":
        return make_prompt_spec(
            given.get("prompt_type"),
            given.get("flaw"),
            given.get("severity"),
            given.get("method"),
            given.get("seed", 0),
            environment,
            given.get("plan_format", "markdown"),
            given.get("alternatives", True),
            given.get("semantic_match"),
            given.get("templates"),
        )
    if given.keys() & {"flaw", "severity"} and "flawed" not in given.get("prompt", ()):
        raise InvalidInputError(
            "--flaw and --severity are about the prompt type flawed: add --prompt flawed, or write --prompt "
            "flawed:FLAW:SEVERITY"
        )
    values = {field: _plain(given[name]) for name, field in SPEC_FIELDS.items() if name in given}
    spec: SourceSpec = spec_class(**values, environment=environment)
    return spec


def plays_flawed_prompts(spec: SourceSpec) -> bool:
    """Tell whether a spec's episodes have flawed prompts, which not every task can have."""
    return any(parse_prompt_choice(prompt).type == FLAWED for prompt in getattr(spec, "prompts", ()))


def card_command(context: typer.Context, given: Mapping[str, Any]) -> str:
    """Return the command for the card: without what does not decide the bytes, and without paths of this machine."""
    words = ["resilisim", "dataset", "export"]
    for parameter in context.command.params:
        name = str(parameter.name)
        if name not in given or name in NOT_IN_THE_CARD:
            continue
        value = given[name]
        if isinstance(value, bool):
            words.append(parameter.opts[0] if value else parameter.secondary_opts[0])
            continue
        for item in value if isinstance(value, list | tuple) else [value]:
            words += [parameter.opts[0], Path(item).name if _is_path(item) else str(item)]
    return shlex.join([*words, "--out", "DIR"])


def _spec_class(kind: str) -> Any:
    if kind == "prompts":
        from resilisim.datasets.prompts import PromptSpec

        return PromptSpec
    if kind == "conversations":
        from resilisim.datasets.conversations import ConversationSpec

        return ConversationSpec
    from resilisim.datasets.preferences import PreferenceSpec

    return PreferenceSpec


def _environment_values(given: Mapping[str, Any]) -> dict[str, Any]:
    values = {field: given[name] for name, field in ENVIRONMENT_FIELDS.items() if name in given}
    if "tools" in values:
        values["tools"] = "listed" if values["tools"] else "discovery"
    return values


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _is_given(context: typer.Context, name: str) -> bool:
    # The source's class is not public in every version of typer, its name is stable.
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _is_path(value: object) -> bool:
    return isinstance(value, Path) or (isinstance(value, str) and os.path.exists(value))


def _option(context: typer.Context, name: str) -> str:
    return next(str(parameter.opts[0]) for parameter in context.command.params if parameter.name == name)
