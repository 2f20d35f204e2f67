"""Who plays in a run: policies, and each LLM agent once for every model that was named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from resilisim.chat import RoleModels
from resilisim.chat.middleware import PriceTable
from resilisim.errors import InvalidInputError
from resilisim.policies.base import Policy, policy_name
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.registry import make_policy
from resilisim.tool_library import ToolLibrary

# What can be given as a policy: text that `make_policy` understands, or a class or function that returns a policy.
PolicySpec: TypeAlias = "str | Callable[[], Policy]"
MODEL_MARK = "@"  # between the names of policy and model where a run has several models


@dataclass(frozen=True, slots=True)
class Contestant:
    """One policy of a run, with the model that answers it.

    Attributes:
        policy: What makes the policy.
        name: Its name in records, unlike all others of the run.
        model: The default model of an LLM agent, as it was spelt; None for other policies.
    """

    policy: PolicySpec
    name: str
    model: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyMaker:
    """Makes the policies of a run, as often as they are needed.

    Attributes:
        library: The tool library, for policies that ask for it.
        models: Who answers LLM agents, by the spelling of the default model; empty if nobody was named.
        prices: Prices of models.
    """

    library: ToolLibrary
    models: Mapping[str, RoleModels] = field(default_factory=dict)
    prices: PriceTable = field(default_factory=PriceTable)

    def make(self, spec: PolicySpec, model: str | None = None) -> Policy:
        """Return a new policy.

        Args:
            spec: What makes it.
            model: The default model that answers it, if it asks any; None takes the first.

        Raises:
            InvalidInputError: There is no such policy, or it is none.
        """
        if isinstance(spec, str):
            answering = self.models[model] if model is not None else next(iter(self.models.values()), None)
            offered = {"library": self.library, "models": answering, "prices": self.prices}
            return make_policy(spec, offered=offered)
        policy = spec()
        if not callable(getattr(policy, "reset", None)) or not callable(getattr(policy, "act", None)):
            kind = type(policy).__name__
            raise InvalidInputError(f"{describe_policy(spec)} gives a {kind} without reset() and act()")
        return policy

    def make_all(self, specs: Sequence[PolicySpec]) -> list[tuple[Contestant, Policy]]:
        """Return who plays, each with its policy: LLM agents once for each model.

        Raises:
            InvalidInputError: A policy cannot be made, a name cannot be printed, or two have one name.
        """
        made: list[tuple[Contestant, Policy]] = []
        for spec in specs:
            policy = self.make(spec)
            name = policy_name(policy)
            if not self._answers(policy):
                made.append((Contestant(spec, name), policy))
                continue
            several = len(self.models) > 1
            for model in self.models:
                shown = f"{name}{MODEL_MARK}{model}" if several else name
                made.append((Contestant(spec, shown, model), self.make(spec, model) if several else policy))
        _refuse_unclear([contestant.name for contestant, _ in made])
        return made

    def _answers(self, policy: Policy) -> bool:
        """Return whether models of the run answer a policy; an agent may have been made with models of its own."""
        return isinstance(policy, LlmPolicy) and any(policy.models is models for models in self.models.values())


def policy_of(name: str) -> str:
    """Return the policy that the name of a contestant holds: all of it, but for the model."""
    return _split(name)[0]


def model_of(name: str) -> str | None:
    """Return the model that the name of a contestant holds, or None if it holds none."""
    return _split(name)[1]


def describe_policy(spec: PolicySpec) -> str:
    """Return how a manifest names a policy: its text, or where its class or function stands."""
    if isinstance(spec, str):
        return spec
    return f"{getattr(spec, '__module__', '?')}:{getattr(spec, '__qualname__', type(spec).__qualname__)}"


def _split(name: str) -> tuple[str, str | None]:
    # Options in brackets may hold the mark, as a path may.
    options = name.rfind("]" + MODEL_MARK)
    place = options + 1 if options >= 0 else -1 if name.endswith("]") else name.find(MODEL_MARK)
    return (name, None) if place < 0 else (name[:place], name[place + 1 :])


def _refuse_unclear(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if not name.isprintable():
            raise InvalidInputError(f"policy name {name!r:.80} holds characters that cannot be printed")
        if name in seen:
            raise InvalidInputError(
                f"two policies are named {name!r}: give one of them another `name`, or leave it out"
            )
        seen.add(name)
