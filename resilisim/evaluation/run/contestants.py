"""Who plays in a run, and who answers: policies, each LLM agent once for every model that was named, and the models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, cast

from annotated_types import Ge, Le

from resilisim.bounds import Count, CountOrNone
from resilisim.chat.middleware import MAX_CONCURRENCY, ChatModelSettings, ResponseCache
from resilisim.chat.models import RoleModels, split_specs
from resilisim.chat.prices import PriceTable
from resilisim.chat.request_options import read_request_options
from resilisim.errors import InvalidInputError
from resilisim.options import check_options, option
from resilisim.policies.base import Contender, Policy, policy_name
from resilisim.policies.function_agent import AGENT_PREFIX, AgentFunction, FunctionAgent
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.registry import make_policy, shown_spec, with_option
from resilisim.tool_library import ToolLibrary

# What can be given as a policy: text that `make_policy` understands, or a class or function that returns a policy.
PolicySpec: TypeAlias = "str | Callable[[], Policy] | AgentSpec"
LONGEST_REPLY_TOKENS = 1_000_000  # more than any model writes at once: what is more was meant as the budget of a run
MODEL_MARK = "@"  # between the names of policy and model where a run has several models


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """An agent that is a function of a session, as a policy that can be made again and again."""

    function: AgentFunction

    def __call__(self) -> FunctionAgent:
        """Return the agent."""
        return FunctionAgent(self.function)


@dataclass(frozen=True, slots=True)
class Contestant:
    """One policy of a run, with the model that answers it."""

    policy: PolicySpec
    name: str  # in records; unlike all others of the run
    model: str | None = None  # the default model of an LLM agent, as it was spelt


MCP_PLAYER: Final = "mcp"  # the policy of a contestant who plays from outside, over MCP


@dataclass(frozen=True, slots=True)
class PolicyMaker:
    """Makes the policies of a run, as often as they are needed."""

    library: ToolLibrary
    models: Mapping[str, RoleModels] = field(default_factory=dict)  # by the spelling of the default model
    prices: PriceTable = field(default_factory=PriceTable)
    max_tokens: int | None = None  # longest reply for agents whose text names none

    def make(self, spec: PolicySpec, model: str | None = None) -> Contender:
        """Return a new policy; `model` is the default model that answers it, if it asks any: the first if omitted.

        Raises:
            InvalidInputError: There is no such policy, or it is none.
        """
        if isinstance(spec, str):
            answering = self.models[model] if model is not None else next(iter(self.models.values()), None)
            offered = {"library": self.library, "models": answering, "prices": self.prices}
            return make_policy(spec, offered=offered)
        policy = spec()
        if isinstance(policy, FunctionAgent):
            return policy
        if not callable(getattr(policy, "reset", None)) or not callable(getattr(policy, "act", None)):
            kind = type(policy).__name__
            raise InvalidInputError(f"{describe_policy(spec)} gives a {kind} without reset() and act()")
        return policy

    def make_all(self, specs: Sequence[PolicySpec]) -> list[tuple[Contestant, Contender]]:
        """Return who plays, each with its policy: LLM agents once for each model.

        Raises:
            InvalidInputError: A policy cannot be made, a name cannot be printed, or two have one name.
        """
        made: list[tuple[Contestant, Contender]] = []
        for spec in specs:
            policy = self.make(spec)
            if isinstance(policy, LlmPolicy) and self.max_tokens is not None:
                spec = self._limited(spec, policy)
                policy = self.make(spec)
            name = policy_name(policy)
            if not self._answers(policy):
                made.append((Contestant(spec, name), policy))
                continue
            several = len(self.models) > 1
            for model in self.models:
                shown = f"{name}{MODEL_MARK}{model}" if several else name
                made.append((Contestant(spec, shown, model), self.make(spec, model) if several else policy))
        made = _told_apart(made)
        _refuse_unclear([contestant.name for contestant, _ in made])
        return made

    def _limited(self, spec: PolicySpec, policy: LlmPolicy[Any]) -> PolicySpec:
        """Return an agent's text with the longest reply, which it is then shown with, unless it names one itself."""
        if isinstance(spec, str):
            return with_option(spec, "max_tokens", self.max_tokens)
        if policy.options.max_tokens is None:
            raise InvalidInputError(
                f"the longest reply reaches agents that are named by text: {policy_name(policy)!r} is a class or a "
                "function, expected its own option max_tokens"
            )
        return spec

    def _answers(self, policy: Contender) -> bool:
        """Return whether models of the run answer a policy; an agent may have been made with models of its own."""
        return isinstance(policy, LlmPolicy) and any(
            policy.models.default is models.default for models in self.models.values()
        )


def split_name(name: str) -> tuple[str, str | None]:
    """Return the policy and the model that the name of a contestant holds; None if it holds no model."""
    # Options in brackets may hold the mark, as a path may.
    options = name.rfind("]" + MODEL_MARK)
    place = options + 1 if options >= 0 else -1 if name.endswith("]") else name.find(MODEL_MARK)
    return (name, None) if place < 0 else (name[:place], name[place + 1 :])


def describe_policy(spec: PolicySpec) -> str:
    """Return how a manifest names a policy: its text without secrets, or where its class or function stands."""
    if isinstance(spec, str):
        return shown_spec(spec)
    if isinstance(spec, AgentSpec):
        return AGENT_PREFIX + describe_policy(cast("Any", spec.function))
    return f"{getattr(spec, '__module__', '?')}:{getattr(spec, '__qualname__', type(spec).__qualname__)}"


def _told_apart(made: list[tuple[Contestant, Contender]]) -> list[tuple[Contestant, Contender]]:
    """Return who plays, those of one name by where their code stands: agents of two modules are often named alike."""
    names = Counter(contestant.name for contestant, _ in made)
    places = [describe_policy(contestant.policy).removeprefix(AGENT_PREFIX) for contestant, _ in made]
    labels = []
    for (contestant, policy), place in zip(made, places, strict=True):
        is_one_of_several = names[contestant.name] > 1 and contestant.model is None and places.count(place) == 1
        if is_one_of_several and ":" in place and "=" not in place:
            contestant = replace(contestant, name=place)
        labels.append((contestant, policy))
    return labels


def _refuse_unclear(names: Sequence[str]) -> None:
    for place, name in enumerate(names):
        if not name.isprintable():
            raise InvalidInputError(f"policy name {name!r:.80} holds characters that cannot be printed")
        if name in names[:place]:
            raise InvalidInputError(
                f"two policies are named {name!r}: give one of them another name (--agent NAME=module:function, or the "
                "attribute `name`), or leave it out"
            )


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The models behind the LLM agents of a run; `chat` says how they are reached.

    Raises:
        InvalidInputError: A value is not what its option takes.

    Example:
        >>> from resilisim import ModelSettings, evaluate
        >>> settings = ModelSettings(models=("openai:gpt-4o-mini", "extractor=local"), concurrency=4)
        >>> settings.defaults
        ('openai:gpt-4o-mini',)
        >>> result = evaluate("react", tasks=20, model=settings)  # doctest: +SKIP
    """

    models: tuple[str, ...] = option(
        (),
        "Model behind LLM agents: openai:NAME, openai:NAME@URL, local, local:PATH, scripted:FILE; repeatable: every "
        "agent plays with every model; ROLE=... for the model of one component (extractor=openai:small).",
        flag="--model",
    )
    chat: ChatModelSettings = field(default_factory=ChatModelSettings)
    # The most is so high that a budget is answered below, with its own name.
    max_tokens: Annotated[int, Ge(1), Le(10**12)] | None = option(
        None,
        "Longest reply of a model in tokens, thoughts included, for agents without a limit of their own "
        "(react[max_tokens=500]); the model's own limit if left out.",
    )
    concurrency: Annotated[int, Ge(1), Le(MAX_CONCURRENCY)] = option(8, "Episodes of agents at once.")
    episode_seconds: Annotated[float, Ge(0.001), Le(1e9)] | None = option(
        None, "Give up an episode if its agent takes longer than this many seconds.", flag="--episode-timeout"
    )
    episode_retries: CountOrNone = option(
        0,
        "Retry an episode this many times if its model or network failed.",
        flag="--episode-retries",
    )
    cache: str | None = option(None, "Folder that keeps replies from one run to the next.", path="any")
    prices: str | None = option(
        None,
        'JSON file with prices in dollars per million tokens: {"openai:NAME": {"prompt": 1, "completion": 4}}.',
        path="file",
    )
    give_up_after: Count = option(20, "Stop after this many episodes in a row fail because the model did not answer.")
    model_options: tuple[str, ...] = option(
        (),
        "Field of the requests of all agents, or of one component: temperature=0.6, planner.temperature=0, "
        "reasoning_effort=high, chat_template_kwargs.enable_thinking=false; repeatable.",
        flag="--model-option",
        metavar="[ROLE.]KEY=VALUE",
    )
    dice: int = 0  # which of several independent sets of replies is taken from the folder, or put there

    def __post_init__(self) -> None:
        """Refuse values that are none."""
        check_options(self)
        read_request_options(self.model_options)
        if self.max_tokens is not None and self.max_tokens > LONGEST_REPLY_TOKENS:
            raise InvalidInputError(
                f"longest reply of {self.max_tokens:,} tokens (--max-tokens): expected at most "
                f"{LONGEST_REPLY_TOKENS:,}; what a run may use in all is --token-budget"
            )

    def share(self, workers: int) -> ModelSettings:
        """Return the settings of one of several processes: its part of what all together may ask."""
        if workers == 1:
            return self

        rates = {name: getattr(self.chat, name) for name in ("requests_per_minute", "tokens_per_minute")}
        parts: dict[str, Any] = {name: None if rate is None else rate / workers for name, rate in rates.items()}
        chat = replace(self.chat, max_concurrency=max(1, self.chat.max_concurrency // workers), **parts)
        return replace(self, chat=chat, concurrency=max(1, self.concurrency // workers))

    @property
    def defaults(self) -> tuple[str, ...]:
        """The models of all components, as they were spelt; none if no model was named.

        Raises:
            InvalidInputError: A role is unknown or named twice, a model is named twice, or there is no default.
        """
        return tuple(split_specs(self.models)[0]) if self.models else ()

    def make(self) -> dict[str, RoleModels]:
        """Return the models by the spelling of the default one; nothing if none was named.

        Raises:
            InvalidInputError: A spelling is wrong, or a key is needed and missing.
            MissingExtraError: A model needs a package that is not installed.
        """
        if not self.models:
            return {}
        cache = None if self.cache is None else ResponseCache(Path(self.cache), self.dice)
        return RoleModels.parse_several(self.models, self.chat, cache, read_request_options(self.model_options))

    def load_prices(self) -> PriceTable:
        """Return the prices, none if no file is named."""
        return PriceTable() if self.prices is None else PriceTable.read(Path(self.prices))


# What `evaluate` takes for its models: one spelling, several with their roles, or everything.
ModelSpec: TypeAlias = "str | Sequence[str] | ModelSettings | None"


def check_models(model: object) -> ModelSettings:
    """Return the settings that the argument `model` of `evaluate` means."""
    if model is None:
        return ModelSettings()
    if isinstance(model, ModelSettings):
        return model
    if isinstance(model, str):
        return ModelSettings(models=(model,))
    if isinstance(model, Sequence) and all(isinstance(spec, str) for spec in model):
        return ModelSettings(models=tuple(model))
    raise InvalidInputError(
        f"model is {model!r:.60}: expected a text such as 'openai:gpt-4o-mini', a list of them, or ModelSettings"
    )
