"""The options of Conversation-v0: each stands here once, with its default, what it takes, and what it is.

`ConversationEnv` and `evaluate` take them as one object or single ones by keyword, commands make their options from
them, and a run's manifest holds them all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, Unpack, cast

from annotated_types import Ge, Le

from resilisim.bounds import Share, Turns
from resilisim.envs.ways_of_failing import ANSWERED, Manner, check_codes, manner_of, ways_by_code
from resilisim.errors import MAX_TURNS, InvalidInputError, shown_value
from resilisim.options import check_options, option, options_of, with_options
from resilisim.seeding import EVALUATION_SALT
from resilisim.worlds.base import rules_of

if TYPE_CHECKING:
    from resilisim.simulator.draws import Draws
    from resilisim.simulator.end_rules import EndRules
    from resilisim.simulator.goal import Goal
    from resilisim.simulator.law import Law
    from resilisim.simulator.problem import Problem
    from resilisim.tasks.searches import SearchMany
    from resilisim.tool_library import Retriever, ToolLibrary
    from resilisim.workflows.flaws import Perturber
    from resilisim.workflows.prompts import Calling

# Headings under which commands show the options.
LAW_GROUP = "Failure model"
RULES_GROUP = "End rules"
GOAL_GROUP = "Goal"
ENVIRONMENT_GROUP = "Environment"

LAW_NAMES = ("law", "base", "not_executed", "failed", "history")  # options that say what law it is
GOAL_NAMES = ("goal", "once", "any_order")  # options that say what has to have happened
RULE_NAMES = ("max_turns", "max_consecutive_failures", "loop_length")

Parameters = Literal["lenient", "strict", "ignore"]
SearchDetail = Literal["brief", "full"]
Payload = Literal["compact", "verbose"]
Errors = Literal["documented", "transient"]
Tools = Literal["discovery", "listed", "native"]
Protocol = Literal["text", "native"]
PromptStyle = Literal["full", "compact", "terse"]
Counts = Literal["answers", "effects"]
Reward = Literal["success", "value", "advantage"]
JUDGED_REWARDS = ("value", "advantage")  # what messages are worth by the exact optimum
Search = Literal["semantic", "lexical"]


class OptionsButPlanner(TypedDict, total=False):
    """The options of `EnvironmentSettings` as keyword arguments, where planner and search have ones of their own."""

    law: str | Any
    base: float
    not_executed: float
    failed: float
    history: float
    max_turns: int
    max_consecutive_failures: int
    loop_length: int
    parameters: Parameters
    search_detail: SearchDetail
    payload: Payload
    errors: Errors
    tools: Tools
    protocol: Protocol
    prompt_style: PromptStyle
    salt: str
    embedding_model: str | None
    reward: Reward
    world: str | None
    force: Sequence[str]
    fails_by: Sequence[str]
    goal: Counts
    once: Sequence[str]
    any_order: bool


class EnvironmentOptions(OptionsButPlanner, total=False):
    """The options of `EnvironmentSettings` as keyword arguments."""

    planner: str
    search: Search


@dataclass(frozen=True, slots=True)
class LawOptions:
    """The constants of the benchmark law and of its end rules, which both environments take."""

    base: Share = option(0.8, "Base success probability of a tool.", flag="--success-probability", group=LAW_GROUP)
    not_executed: Share = option(0.5, "Factor for each dependency never executed.", group=LAW_GROUP)
    failed: Share = option(0.7, "Factor for each dependency executed but not yet successful.", group=LAW_GROUP)
    history: Share = option(0.9, "Factor for each failed execution so far.", group=LAW_GROUP)
    max_turns: Annotated[int, Ge(1)] | None = option(
        None, "Steps of an episode; 10 under the benchmark law and 20 under the training law if None."
    )
    max_consecutive_failures: Annotated[int, Ge(0), Le(MAX_TURNS)] = option(
        5,
        "How many failed executions in a row end an episode; 0 turns the rule off.",
        group=RULES_GROUP,
    )
    loop_length: Annotated[int, Ge(0), Le(MAX_TURNS)] = option(
        4,
        "How many equal unproductive messages in a row end an episode; 0 turns the rule off.",
        group=RULES_GROUP,
    )


CONSTANTS = ("base", "not_executed", "failed", "history")  # as `simulator.law` has them, which loads more


BENCHMARK_LAW = "benchmark"
TRAINING_LAW = "training"  # of Workflow-v0


def settle_law(options: Any) -> Law:
    """Replace the option `law`, which names or is a law, by its content, a plain one by its constants; return it.

    Raises:
        InvalidInputError: There is no such law, or a constant is given beside it.
    """
    from resilisim.simulator.law import Law, load_law

    named = options.law
    if not isinstance(named, str | Path | Law | Mapping):
        raise InvalidInputError(f"law is {shown_value(named)}: expected the name of a law or the path of a file")
    law = load_law(named)
    for name in CONSTANTS:
        value = getattr(options, name)
        if value != options_of(LawOptions)[name].default:
            raise InvalidInputError(
                f"{name} is {value!r} beside the law {law.name!r:.100}: expected one or the other, as a law has "
                "its own constants"
            )
    object.__setattr__(options, "law", BENCHMARK_LAW if law.is_plain else law)
    if law.is_plain:
        for name in CONSTANTS:
            object.__setattr__(options, name, getattr(law, name))
    return law


@dataclass(frozen=True, slots=True)
class EnvironmentSettings(LawOptions):
    """The options of Conversation-v0; the defaults are those of the benchmark.

        >>> from resilisim.envs import EnvironmentSettings
        >>> EnvironmentSettings(base=0.7).with_options(max_turns=8).max_turns
        8

    `help` of each option is what `resilisim evaluate --help` says of it: `resilisim.options.options_of` returns them.

    Raises:
        InvalidInputError: A value is not what its option takes.
    """

    max_turns: Turns = option(10, "Turns of an episode.", flag="--turns", group=RULES_GROUP)
    law: str | Any = option(
        BENCHMARK_LAW,
        "Name of a failure model ('resilisim law list') or the path of a law file, which holds the constants, too.",
        group=LAW_GROUP,
    )
    planner: str = option(
        "auto",
        "Who makes the plan in prompts that have one: auto, exact, exact-path (without limits on its steps), "
        "policy:DIR (the trained policy in a folder), or policy:default or policy:benchmark (those that ship).",
        group=ENVIRONMENT_GROUP,
    )
    parameters: Parameters = option(
        "lenient", "How parameters of calls are checked.", noun="parameter mode", group=ENVIRONMENT_GROUP
    )
    search_detail: SearchDetail = option("brief", "How much a search says about each tool.", group=ENVIRONMENT_GROUP)
    payload: Payload = option("compact", "Size of what tools return.", noun="payload size", group=ENVIRONMENT_GROUP)
    errors: Errors = option(
        "documented",
        "Which errors failures show: any that the tool documents, or only transient ones, after which it"
        " makes sense to call again. Success does not depend on it.",
        noun="errors option",
        group=ENVIRONMENT_GROUP,
    )
    tools: Tools = option(
        "discovery",
        "Put the names of the tools into the prompt.",
        noun="tools option",
        flag="--list-tools",
        switch="listed",
        group=ENVIRONMENT_GROUP,
    )
    protocol: Protocol = option("text", "How messages are written.", group=ENVIRONMENT_GROUP)
    prompt_style: PromptStyle = option(
        "full",
        "compact says the same in at most 350 tokens besides the work order, for small models; terse "
        "shows only the names of tools, in prompts and replies, for the smallest.",
        group=ENVIRONMENT_GROUP,
    )
    salt: str = option(
        EVALUATION_SALT,
        "Any text; your own salt gives different draws, for a private leaderboard.",
        default_text="",
        group=ENVIRONMENT_GROUP,
    )
    search: Search = option(
        "semantic",
        "How tools are found: semantic (needs the extra retrieval) or lexical (BM25, needs nothing).",
        group=ENVIRONMENT_GROUP,
    )
    embedding_model: str | None = option(
        None,
        "Embedding model of the semantic search: a sentence-transformers name or folder; the shipped one if left out.",
        group=ENVIRONMENT_GROUP,
    )
    reward: Reward = option(
        "success",
        "What a step pays a trainer: success (1 or 0 at the end), value (what each message changed of V*) or advantage "
        "(what its choice gave away of V*).",
        group=ENVIRONMENT_GROUP,
    )
    world: str | None = option(
        None,
        "World in which calls really do something, such as records-v1; its tasks are named by --tasks.",
        group=ENVIRONMENT_GROUP,
    )
    force: tuple[str, ...] = option(
        (),
        "Force the result of a call, whatever its draw: network_fetcher#2=TIMEOUT, network_fetcher#1=ok; repeatable. "
        "Records say so.",
        group=LAW_GROUP,
        metavar="TOOL#NUMBER=RESULT",
    )
    fails_by: tuple[str, ...] = option(
        (),
        "How failed calls reach a client over MCP: hang or hang:SECONDS (no answer for a minute, or that long), or cut "
        "(the connection is cut; over HTTP); for all codes, or for one: TIMEOUT=hang. Otherwise as the tool's error.",
        group=LAW_GROUP,
        metavar="[CODE=]HOW",
    )
    goal: Counts = option(
        "answers",
        "What counts: that each required tool has answered, in order (answers), or that each has run "
        "successfully, in any order, whether or not its answer came through (effects).",
        group=GOAL_GROUP,
    )
    once: tuple[str, ...] = option(
        (), "Tools that must not run twice.", group=GOAL_GROUP, metavar="TOOL,TOOL", separator=","
    )
    any_order: bool = option(False, "The required tools may answer in any order.", group=GOAL_GROUP)

    def __post_init__(self) -> None:
        """Refuse values that no episode could be played with."""
        check_options(self)
        self.draws()
        if self.search == "lexical" and self.embedding_model is not None:
            raise InvalidInputError(
                f"embedding_model is {self.embedding_model!r:.200}: expected none, the lexical search has no model"
            )
        if self.tools == "native" and self.protocol != "native":
            raise InvalidInputError(
                "tools 'native' (each tool is a function) need the native protocol: expected protocol='native', not "
                f"{self.protocol!r}"
            )
        if self.world is not None and self.parameters == "ignore":
            raise InvalidInputError(
                "parameters is 'ignore': expected 'strict' or 'lenient', as calls of a world use them"
            )
        if self.prompt_style == "terse":
            from resilisim.workflows.prompts import check_terse

            check_terse(self.calling, self.parameters, self.world is not None)
        self._settle_law()
        self._check_manners()
        if self.world is not None:
            if not isinstance(self.law, str):
                self.law.check_world()
            self._check_goal_of_world(self.world)
        self.rules()

    def _check_goal_of_world(self, world: str) -> None:
        for name in GOAL_NAMES:
            value, default = getattr(self, name), options_of(type(self))[name].default
            if value != default:
                raise InvalidInputError(
                    f"{name} is {shown_value(value, 80)} in the world {world!r}: expected {shown_value(default)}, as a "
                    "world grades what was done itself"
                )

    def _settle_law(self) -> None:
        """Replace a law by its content, so that it is read once, and a plain one by its constants."""
        if isinstance(self.law, str) and self.law == BENCHMARK_LAW:
            self.failure_model()
            return
        law = settle_law(self)
        if law.error_kinds is not None or law.errors:
            object.__setattr__(self, "errors", "documented")  # the law says which ones are drawn, and what they mean
        if law.error_kinds is not None and self.parameters == "ignore":
            raise InvalidInputError(
                f"parameters is 'ignore' under the law {law.name!r:.100}, whose errors of the input ask for other "
                "parameters: expected lenient or strict"
            )

    def _check_manners(self) -> None:
        if self.fails_by:
            from resilisim.envs.feedback import codes_of

            codes = [code for code in ways_by_code(self.fails_by, "fails_by") if code is not None]
            check_codes(codes, codes_of(self.failure_model()), "fails_by")

    def manner(self, code: str) -> Manner:
        """Return how a failure comes to a client over MCP."""
        ways = ways_by_code(self.fails_by, "fails_by")
        way = ways.get(code) or ways.get(None)
        return ANSWERED if way is None else manner_of(way, "fails_by")

    def with_options(self, **options: Unpack[EnvironmentOptions]) -> EnvironmentSettings:
        """Return settings in which some options have other values.

        Raises:
            InvalidInputError: An option or a value does not exist.
        """
        changed: EnvironmentSettings = with_options(self, options)
        return changed

    def to_mapping(self) -> dict[str, Any]:
        """Return the options that decide what episodes are, as manifests hold them.

        What came later goes without saying where it is as it was before; the reward decides no episode.
        """
        values = asdict(self)
        del values["reward"]
        if self.search == "semantic":
            del values["search"]
        if self.errors == "documented":
            del values["errors"]
        del values["law"]
        if not isinstance(self.law, str):
            values = {name: value for name, value in values.items() if name not in CONSTANTS}
            values["law"] = self.law.to_mapping()
        if self.world is None:
            del values["world"]
        for name in ("force", "fails_by", *GOAL_NAMES):
            if values[name] == options_of(type(self))[name].default:
                del values[name]
            elif isinstance(values[name], tuple):
                values[name] = list(values[name])
        return values

    def goal_of(self, required: Sequence[str]) -> Goal:
        """Return what is to be reached where these tools are required."""
        from resilisim.simulator.goal import Goal

        return Goal(tuple(required), not self.any_order, self.once, self.goal)

    def problem(self, library: ToolLibrary, required: Sequence[str]) -> Problem:
        """Return the problem of doing a list of tools of a library, outside of worlds.

        Raises:
            InvalidInputError: The library lacks one of the tools.
        """
        from resilisim.simulator.problem import build_problem

        return build_problem(library, self.goal_of(required), self.failure_model(), self.rules())

    def retriever(self, library: ToolLibrary) -> Retriever:
        """Return the search over a library.

        Raises:
            InvalidInputError: The embedding model does not exist.
        """
        from resilisim.tool_library.retrieval import ToolRetriever, default_retriever  # slow to import, too

        if self.embedding_model is None:
            return default_retriever(library, self.search)
        retriever = ToolRetriever(library, self.embedding_model)
        retriever.embed([])  # refuses a model that does not exist now, not at the first search
        return retriever

    def search_many(self, library: ToolLibrary) -> SearchMany | None:
        """Return what answers searches over a library; None for that of the benchmark, some of whose answers ship."""
        is_default = self.search == "semantic" and self.embedding_model is None
        return None if is_default else self.retriever(library).search_many

    def perturber(self, library: ToolLibrary) -> Perturber:
        """Return what puts flaws into plans; which tools are similar is as the search says."""
        from resilisim.workflows.flaws import Perturber
        from resilisim.workflows.flaws.flaw import tool_similarity

        if self.search == "semantic":
            return Perturber(library, self.rules())
        return Perturber(library, self.rules(), lambda: tool_similarity(self.retriever(library)))

    def in_world(self, name: str, chosen: Collection[str] = ()) -> EnvironmentSettings:
        """Return settings for the tasks of a world, in which what was not chosen is as worlds want it.

        Nothing fails by chance, what a law injects says no more than that calling again is sensible, the tools are told
        in the prompt, and calls must give the parameters that tools require. The end rules are the world's own
        (`resilisim.worlds.base.rules_of`), but under a law they are the benchmark's, for turns to be scarce. `chosen`
        are names of options that somebody gave, be it the usual value; other values tell so by themselves.

        Raises:
            InvalidInputError: There is no such world.
        """
        changed: dict[str, Any] = {"world": name}
        known = options_of(type(self))
        names = (*LAW_NAMES, *RULE_NAMES)
        own = {each for each in names if each in chosen or getattr(self, each) != known[each].default}
        if own.isdisjoint(LAW_NAMES):
            changed |= dict.fromkeys(CONSTANTS, 1.0)
        nothing_fails = all(changed.get(each, getattr(self, each)) == 1.0 for each in CONSTANTS)
        if nothing_fails and self.law == BENCHMARK_LAW:  # no other law, which would have parts
            changed |= {each: number for each, number in rules_of(name).items() if each not in own}
        if self.tools == "discovery":
            changed["tools"] = "listed"
        if self.parameters == "lenient":
            changed["parameters"] = "strict"
        if self.errors == "documented":
            changed["errors"] = "transient"  # an injected NOT_FOUND would be a lie about the world
        return self.with_options(**changed)

    @property
    def calling(self) -> Calling:
        """How an agent calls tools, which prompts and replies speak of."""
        return "functions" if self.tools == "native" else self.protocol

    def for_functions(self) -> EnvironmentSettings:
        """Return settings for agents that call functions: the native protocol, and each tool a function of its own.

        Those with the native protocol stay as they are, and names that are listed in the prompt stay there.
        """
        if self.protocol == "native":
            return self
        return self.with_options(protocol="native", tools="native" if self.tools == "discovery" else self.tools)

    def failure_model(self) -> Law:
        """Return what decides whether calls succeed."""
        from resilisim.simulator.law import Law  # commands read these options without the simulator

        if not isinstance(self.law, str):
            return cast("Law", self.law)
        return Law(base=self.base, not_executed=self.not_executed, failed=self.failed, history=self.history)

    def planning_law(self) -> Law:
        """Return the law that plans are made by: without the parts, which say nothing about the order of tools."""
        if isinstance(self.law, str):
            return self.failure_model()
        return cast("Law", replace(self.law, **dict.fromkeys(self.law.parts), equivalents={}))

    @property
    def offers_wait(self) -> bool:
        """Whether agents can let a turn pass: where the law has a part in which that can help."""
        return not isinstance(self.law, str) and bool(self.law.waiting_can_help)

    def draws(self, library: ToolLibrary | None = None) -> Draws | None:
        """Return where draws come from, if anything is forced; else None, as then they come from the key.

        Raises:
            InvalidInputError: What is forced says nothing, or names what a tool of the library cannot have.
        """
        if not self.force:
            return None
        from resilisim.simulator.draws import Forced
        from resilisim.simulator.problem import build_problem

        forced = Forced.of(self.force)
        if library is not None:
            law, is_world = self.failure_model(), self.world is not None
            forced.check_results(build_problem(library, library.names[:1], law, self.rules(), is_world), self.errors)
        return forced

    def rules(self) -> EndRules:
        """Return the end rules."""
        from resilisim.simulator.end_rules import EndRules

        return EndRules(self.max_turns, self.max_consecutive_failures, self.loop_length)
