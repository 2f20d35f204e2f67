"""Policies by name: built in, from installed packages (entry points), or as `module:attribute`."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import itertools
import json
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from resilisim.errors import InvalidInputError, MissingExtraError, ResiliSimError, install_line, unknown_name
from resilisim.inputs import error_line, import_attribute, look_into_working_directory
from resilisim.policies.base import Policy
from resilisim.policies.function_agent import AGENT_PREFIX, FunctionAgent
from resilisim.policies.ppo import SHIPPED_CHECKPOINTS, split_look_ahead
from resilisim.redaction import is_secret_name, keep_secret, shown_command, without_named

ENTRY_POINT_GROUP = "resilisim.policies"

# Name -> module:attribute, imported only when the policy is made.
BUILT_IN_POLICIES: Mapping[str, str] = {
    "random": "resilisim.policies.scripted:RandomPolicy",
    "plan-follower": "resilisim.policies.scripted:PlanFollower",
    "repairing-follower": "resilisim.policies.scripted:RepairingFollower",
    "exact-optimum": "resilisim.policies.scripted:ExactOptimumPolicy",
    "retry-backoff": "resilisim.policies.recovery:RetryBackoff",
    "circuit-breaker": "resilisim.policies.recovery:CircuitBreaker",
    "alternative-first": "resilisim.policies.recovery:AlternativeFirst",
    "learned-names": "resilisim.policies.learned_names:LearnedNames",
    "trained": "resilisim.policies.ppo.policy:TrainedPolicy",
    "reference": "resilisim.policies.scripted:ReferencePolicy",
    "direct": "resilisim.policies.llm.agents.direct:Direct",
    "react": "resilisim.policies.llm.agents.react:ReAct",
    "plan-and-execute": "resilisim.policies.llm.agents.plan_execute:PlanAndExecute",
    "code-act": "resilisim.policies.llm.agents.code_act:CodeAct",
    "reflexion": "resilisim.policies.llm.agents.reflexion:Reflexion",
    "rp-react": "resilisim.policies.llm.agents.rp_react:RPReAct",
    "kpi-chain": "resilisim.policies.llm.kpi_chain.agent:KpiChain",
}
# Those that ask a language model.
LLM_POLICIES = ("direct", "react", "plan-and-execute", "code-act", "reflexion", "rp-react", "kpi-chain")
# Those that see the state; trained policies in folders (CHECKPOINT_PREFIX) do, too.
PRIVILEGED_POLICIES = ("exact-optimum", "reference", "trained")
# Built-in policies that need packages of an extra.
EXTRAS: Mapping[str, str] = {"trained": "train"}
# command:CMD is a program that plays over MCP: a door to the software of others, named here as those of plug-ins are.
COMMAND_PREFIX = "command:"
COMMAND_AGENT = "resilisim.integrations.mcp:CommandAgent"
# policy:DIR is the trained policy whose checkpoint lies in the folder DIR, or that ships under a name; policy:DIR+2
# looks two calls ahead.
CHECKPOINT_PREFIX = "policy:"
_WITH_OPTIONS = re.compile(r"(?P<name>[^\[\]]+)\[(?P<options>[^\[\]]*)\]\Z", re.DOTALL)


def policy_names() -> tuple[str, ...]:
    """Return the names of all policies that are installed: the built-in ones, then those of plug-ins.

    Example:
        >>> from resilisim.policies import policy_names
        >>> policy_names()[:4]
        ('random', 'plan-follower', 'repairing-follower', 'exact-optimum')
    """
    return (*BUILT_IN_POLICIES, *(name for name in sorted(_plug_ins()) if name not in BUILT_IN_POLICIES))


def checkpoint_hashes(names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of the descriptions of the checkpoints that planners and policies read.

    A description names the hash of its weights, so two policies that were trained one after the other into one folder
    have different ones. Names that read no checkpoint are left out.
    """
    hashes: dict[str, str] = {}
    for spec in names:
        name, _ = split_options(spec)
        if name == "trained" or _is_checkpoint(name):
            folder = "default" if name == "trained" else name.removeprefix(CHECKPOINT_PREFIX)
            _built_in("trained", f"checkpoint {name!r}")
            checkpoint = importlib.import_module("resilisim.policies.ppo.checkpoint")
            hashes[spec] = checkpoint.description_hash(folder)
    return hashes


def make_policy(spec: str, *, offered: Mapping[str, Any] | None = None, **arguments: Any) -> Policy:
    """Make a policy.

    The text `spec` is all that another process needs to make the same policy.

    Args:
        spec: A name (`policy_names`); "policy:DIR" for the trained policy in a folder, "policy:default" or
            "policy:benchmark" for one that ships, "policy:default+2" for one that looks two calls ahead;
            "agent:module:function" for an agent that is a function of a session, "command:CMD" for a program; or
            `module:attribute` of a class, a function that returns a policy, or a policy. Modules are found as usual,
            and also in the working directory. Options may follow in brackets, separated by commas, as in
            "kpi-chain[theta=0.8,replanning=false]"; the policy is then shown under the whole text.
        offered: Arguments that are passed only if the policy has a parameter of that name (such as `seed`, `library`).
        **arguments: Arguments that the policy must take.

    Raises:
        InvalidInputError: There is no such policy, it cannot be imported or made, does not take an argument, or has not
            both `reset` and `act`.
        MissingExtraError: It needs packages that are not installed.

    Example:
        >>> from resilisim.policies import make_policy
        >>> policy = make_policy("random[finish_probability=0.1]", seed=3)
        >>> policy.reset("Read the file.", {})
        >>> policy.act("Read the file.", {"turns_left": 0})
        '<finish/>'
    """
    name, options = split_options(spec)
    arguments = {**options, **arguments}
    target, where = _find(name)
    if inspect.isclass(target) or not _has_policy_methods(target):
        policy = _call(target, where, dict(offered or {}), arguments)
    elif arguments:
        names = ", ".join(sorted(arguments))
        raise InvalidInputError(f"{where} is a policy already: expected no arguments, got {names}")
    else:
        policy = target
    for method in () if callable(getattr(policy, "play_session", None)) else ("reset", "act"):
        if not callable(getattr(policy, method, None)):
            kind = type(policy).__name__
            raise InvalidInputError(
                f"{where} gives a {kind} without {method}(): "
                "expected reset(observation, info) and act(observation, info)"
            )
    if options:
        try:
            policy.name = shown_spec(spec.strip())
        except AttributeError as error:
            raise InvalidInputError(f"{where} cannot be shown under its options: {error_line(error)}") from error
    made: Policy = policy
    return made


def alternatives(spec: str) -> list[str]:
    """Return the policies that a text means whose options have several values with `|` between them: each with each."""
    match = None if spec.startswith(COMMAND_PREFIX) else _WITH_OPTIONS.match(spec.strip())
    if match is None or "|" not in match["options"]:
        return [spec]
    choices = []
    for part in match["options"].split(","):
        option, equals, values = part.partition("=")
        choices.append([f"{option}{equals}{value.strip()}" for value in values.split("|")])
    return [f"{match['name'].strip()}[{','.join(chosen)}]" for chosen in itertools.product(*choices)]


def with_option(spec: str, name: str, value: object) -> str:
    """Return the text of a policy with an option more; as it is if it names this option already."""
    _, options = split_options(spec)
    if name in options:
        return spec
    bare = spec.strip()
    return f"{bare[:-1].rstrip(', ')},{name}={value}]" if options else f"{bare.removesuffix('[]')}[{name}={value}]"


def with_changed(spec: str, changes: Mapping[str, object]) -> str:
    """Return the text of a policy in which some options have other values."""
    name, _ = split_options(spec)
    match = _WITH_OPTIONS.match(spec.strip())
    parts = [] if match is None else [part.strip() for part in match["options"].split(",") if part.strip()]
    kept = [part for part in parts if part.partition("=")[0].strip() not in changes]
    options = ",".join([*kept, *(f"{option}={value}" for option, value in changes.items())])
    return f"{name}[{options}]" if options else name


def split_options(spec: str) -> tuple[str, dict[str, Any]]:
    """Split "name[option=value,...]" into the name and the options; values are JSON where they can be, else texts."""
    if spec.startswith(COMMAND_PREFIX):  # whose brackets are its own
        return spec, {}
    match = _WITH_OPTIONS.match(spec.strip())
    if match is None:
        if "[" in spec and "]" not in spec:
            raise InvalidInputError(f"policy {spec!r}: the bracket is not closed, expected name[option=value,...]")
        return spec, {}
    options: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in match["options"].split(","))):
        option, equals, value = (text.strip() for text in part.partition("="))
        if not equals or not option.isidentifier():
            raise InvalidInputError(f"policy {spec!r}: {part!r} is no option, expected name=value")
        if option in options:
            raise InvalidInputError(f"policy {spec!r}: option {option!r} is given twice")
        options[option] = _option_value(value)
        if is_secret_name(option):
            keep_secret(value, str(options[option]))
    return match["name"].strip(), options


def shown_spec(spec: str) -> str:
    """Return the text of a policy as it is written and shown: without secrets in its options or arguments."""
    if spec.startswith(COMMAND_PREFIX):
        return COMMAND_PREFIX + shown_command(spec.removeprefix(COMMAND_PREFIX))
    return without_named(spec)


def _option_value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _plug_ins() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}


def _find(spec: str) -> tuple[Any, str]:
    """Return what a spec names, and what it is called in messages."""
    where = f"policy {shown_spec(spec)!r}"
    if spec in BUILT_IN_POLICIES:
        return _built_in(spec, where), where
    entry = _plug_ins().get(spec)
    if entry is not None:
        package = f" of package {entry.dist.name!r}" if entry.dist is not None else ""
        where = f"{where}{package} ({entry.value})"
        return import_attribute(entry.value, where), where
    if spec.startswith(AGENT_PREFIX):
        name, equals, named = spec.removeprefix(AGENT_PREFIX).partition("=")  # NAME=module:function, or that alone
        place = named if equals and ":" not in name else spec.removeprefix(AGENT_PREFIX)
        function = import_attribute(place, f"agent {place!r}")
        return functools.partial(FunctionAgent, function, name.strip() if place == named else None), where
    if spec.startswith(COMMAND_PREFIX):
        return functools.partial(import_attribute(COMMAND_AGENT, where), spec.removeprefix(COMMAND_PREFIX)), where
    if _is_checkpoint(spec):
        folder = spec.removeprefix(CHECKPOINT_PREFIX)
        return functools.partial(_built_in("trained", where), checkpoint=folder, name=spec), where
    if "," in spec:
        raise InvalidInputError(
            f"unknown policy {spec!r}: expected one policy; several are a list, or --policy given once for each"
        )
    if ":" in spec:
        return import_attribute(spec, where), where
    error = str(unknown_name("policy", spec, policy_names()))
    own = (
        "your own policy is given as module:attribute, a trained one as policy:DIR, and a language model plays through "
        "an agent: react with the model openai:NAME"
    )
    raise InvalidInputError(f"{error} {own[0].upper()}{own[1:]}" if error.endswith("?") else f"{error}; {own}")


def _is_checkpoint(spec: str) -> bool:
    """Return whether a spec names a folder, and not what stands in somebody's own module `policy`."""
    folder = spec.removeprefix(CHECKPOINT_PREFIX)
    if folder in (spec, ""):
        return False
    if {folder, split_look_ahead(folder)[0]} & {*SHIPPED_CHECKPOINTS} or Path(folder).is_dir():
        return True
    look_into_working_directory()
    is_attribute = all(part.isidentifier() for part in folder.split("."))
    return not (is_attribute and importlib.util.find_spec(CHECKPOINT_PREFIX.removesuffix(":")) is not None)


def _built_in(name: str, where: str) -> Any:
    reference = BUILT_IN_POLICIES[name]
    if name in EXTRAS:
        try:
            importlib.import_module(reference.partition(":")[0])
        except ImportError as error:
            if str(error.name).partition(".")[0] == "resilisim":
                raise  # nothing that installing would mend
            problem = f"{where} cannot be loaded ({error_line(error)})"
            raise MissingExtraError(f"{problem}: {install_line(EXTRAS[name])}") from error
    return import_attribute(reference, where)


def _call(factory: Any, where: str, offered: dict[str, Any], arguments: Mapping[str, Any]) -> Any:
    if not callable(factory):
        kind = type(factory).__name__
        raise InvalidInputError(f"{where} is a {kind}: expected a policy, or a class or function that gives one")
    try:
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(factory).parameters
    except ValueError:
        # Some callables written in C have no signature; they get what they must take.
        parameters = {}
    takes_all = any(entry.kind is entry.VAR_KEYWORD for entry in parameters.values())
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = [name for name, entry in parameters.items() if entry.kind in by_name]
    for argument in arguments:
        if argument not in named and not takes_all:
            raise unknown_name("argument", argument, named, where)
    accepted = {name: value for name, value in offered.items() if name in named}
    try:
        return factory(**{**accepted, **arguments})
    except ResiliSimError:
        raise
    except (Exception, SystemExit) as error:
        raise InvalidInputError(f"{where} cannot be made: {error_line(error)}") from error


def _has_policy_methods(value: Any) -> bool:
    return callable(getattr(value, "reset", None)) and callable(getattr(value, "act", None))
