"""RP-ReAct: a planner with a clean conversation that asks sub-questions, and executors that answer them with tools."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Final

from annotated_types import Ge

from resilisim.bounds import Share, Temperature
from resilisim.chat import ChatMessage, ChatModel
from resilisim.chat.models import RoleModels
from resilisim.chat.prices import PriceTable
from resilisim.chat.types import BYTES_PER_TOKEN, estimated_tokens
from resilisim.envs.reply import CallResult
from resilisim.errors import InvalidInputError, unknown_name
from resilisim.options import option
from resilisim.policies.llm.agent_options import AgentOptions
from resilisim.policies.llm.agent_run import AgentRun
from resilisim.policies.llm.agents.code_act import note_code
from resilisim.policies.llm.agents.react import loop_tools, react_loop
from resilisim.policies.llm.agents.rp_react_moves import (
    BEGIN_QUERY,
    END_QUERY,
    STOP_TEXTS,
    Query,
    identity,
    read_move,
    result_block,
    written,
)
from resilisim.policies.llm.conversation_toolbox import CONVERSATION_TOOLS
from resilisim.policies.llm.given_plan import (
    CALLS_ANY_TOOL,
    OF_PROMPT,
    first_plan_option,
    given_steps,
    questions_of,
    words_for_a_result,
)
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.llm.reply_reading import Finish, Unreadable, excerpt
from resilisim.policies.llm.templates import DEFAULT_EXAMPLES, NO_EXAMPLES
from resilisim.policies.llm.tools import READ_AS_TEXT, ToolSpec, value_for_code
from resilisim.sandbox import CodeResult, JsonValue, Sandbox, SandboxLimits
from resilisim.tool_library import ToolLibrary

PLANNER: Final = "planner"
EXECUTOR: Final = "executor"
_ALL: Final = "all"
NO_VARIABLES: Final = "(none)"
LONGEST_RESULT: Final = 8_000  # characters of an executor's answer that the planner is given
_NAME = re.compile(r"[A-Za-z][\w-]{0,30}\Z")
_ADDRESS = re.compile(r"\s*([A-Za-z][\w-]{0,30})\s*:\s*")

TOOL_EXAMPLES: Final = "tool_examples"  # the prompt that holds them
_EXAMPLE = re.compile(r"^Example of (\w+)\(.*$", re.MULTILINE)

PYTHON: Final = ToolSpec(
    "python",
    "Runs Python code and shows what it prints. It can read, change and analyse the variables that hold long outputs.",
    {
        "type": "object",
        "properties": {"code": {"type": "string"}, "variables": {"type": "array"}},
        "required": ["code"],
    },
)
CODE: Final = "code"  # the parameter of tools that run code themselves, which cannot see the stored outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class RPReActOptions(AgentOptions):
    """Options of RP-ReAct."""

    temperature: Temperature | None = option(0.6, "sampling temperature; none leaves it to the model")
    top_p: Share | None = option(1.0, "nucleus sampling; none leaves it to the model")
    steps: Annotated[int, Ge(1)] = option(10, "replies of the planner")
    first_plan: str = first_plan_option()
    subquestions: Annotated[int, Ge(1)] = option(10, "sub-questions in one task")
    executor_steps: Annotated[int, Ge(1)] = option(10, "steps of an executor for one sub-question")
    executors: str = option("all", "all: one with every tool; or NAME:TOOL+TOOL;NAME:TOOL, each with its own")
    tool_examples: str = option(
        "default",
        "few-shot examples of the executor, one for each tool that has one: none, all, TOOL+TOOL; default: all, "
        "or none with examples=none",
    )
    offload_tokens: Annotated[int, Ge(1)] = option(1_000, "tokens beyond which an output is stored in a variable")
    preview_tokens: Annotated[int, Ge(1)] | None = option(
        100, "tokens that are shown of an output that is stored; none: as many as offload_tokens, the paper's T"
    )
    offload_tools: str = option("all", "tools whose long outputs are stored: all that return data, or TOOL+TOOL")
    # All that the limits above may take: planner's replies, and executors' steps, each with a second try.
    max_llm_calls: Annotated[int, Ge(1)] = option(
        250, "calls of the model in one episode; the next one ends the episode"
    )
    block_seconds: Annotated[float, Ge(0.01)] = option(5.0, "running time of Python code in seconds")
    memory_mib: Annotated[int, Ge(8)] = option(64, "memory of Python code in MiB")


class RPReAct(LlmPolicy[RPReActOptions]):
    """A reasoner-planner that supervises ReAct executors (Molinari and Ciravegna, 2026).

    The planner asks one sub-question after the other, each answered by an executor with a ReAct loop of its own. Long
    outputs of tools are stored in variables that live for the whole task; executor and planner see their beginning.
    `tools` are those that its episodes offer, by which the options that name some are checked; those of the `library`
    that stands behind them can be named, too.
    """

    name = "rp-react"
    options_class = RPReActOptions
    components = (PLANNER, EXECUTOR)

    def __init__(
        self,
        models: RoleModels | ChatModel | None = None,
        *,
        prices: PriceTable | None = None,
        tools: Iterable[ToolSpec] = CONVERSATION_TOOLS,
        library: ToolLibrary | None = None,
        **options: object,
    ) -> None:
        super().__init__(models, prices=prices, **options)
        in_library = () if library is None else (ToolSpec(tool.name, tool.description) for tool in library)
        specs = (*_checked_specs(tools), *in_library)
        _team_of(self.options, specs)
        _chosen(read_tools(self.options.offload_tools), specs, "option offload_tools")
        _check_tool_examples(self.options, specs)

    async def play(self, run: AgentRun) -> str | None:
        """Let the planner ask until it gives a final answer."""
        limits = SandboxLimits(seconds=self.options.block_seconds, memory_mib=self.options.memory_mib)
        async with Sandbox(limits) as box:
            with run.open_failures() as failures:
                steps = given_steps(run) if self.options.first_plan == OF_PROMPT else []
                asked = questions_of(steps, _address_of_calls(read_team(self.options.executors)))
                run.given[PLANNER] = [f"{BEGIN_QUERY}{question}{END_QUERY}" for question in asked]
                return await _Task(self, run, Variables(box), failures).solve()


class _Task:
    """One task: the planner's conversation, and the sub-questions that executors answer, as they stand in the record.

    The result of a sub-question is None while it is under way, and empty after a failure.
    """

    def __init__(
        self, agent: RPReAct, run: AgentRun, variables: Variables, failures: dict[Any, tuple[str, ...]]
    ) -> None:
        self._options = agent.options
        self._prompts = agent.prompts
        self._run = run
        self._variables = variables
        self._team = _team_of(agent.options, run.tools.specs)
        self._asked: list[dict[str, Any]] = []
        run.structure["subquestions"] = self._asked
        self._failures = failures  # of executors the first one that no later sub-question has made good

    async def solve(self) -> str | None:
        run = self._run
        messages = [ChatMessage("system", self._planner_instructions()), ChatMessage("user", run.task)]
        for step in range(1, self._options.steps + 1):
            reply = await run.ask(PLANNER, messages, stop=STOP_TEXTS)
            move = read_move(reply.text)
            if isinstance(move, Finish):
                return move.answer
            if isinstance(move, Unreadable):
                move = run.unreadable(PLANNER, reply, move)
            answer = await self._react_to(move)
            messages.append(ChatMessage("assistant", written(move, reply)))
            messages.append(ChatMessage("user", f"{answer}\n\n{self._remaining(step)}"))
        self._failures[PLANNER] = PLANNER, f"no final answer within {self._options.steps} steps", "", "steps"
        return None

    async def _react_to(self, move: Query | Unreadable) -> str:
        """Return what the planner is told: a result between its marks, or why there is none."""
        if isinstance(move, Unreadable):
            return self._prompts.fill("invalid_format", problem=move.problem)
        address = addressed(move.question, self._team)
        if isinstance(address, str):
            self._run.note("malformed_reply", PLANNER, address, excerpt=move.question)
            self._run.count("malformed_replies")
            return self._prompts.fill("invalid_format", problem=address)
        executor, question = address
        refusal = self._refusal(executor, question)
        if refusal is not None:
            self._run.note("invalid_action", PLANNER, refusal, excerpt=question)
            self._run.count("refused_subquestions")
            return self._prompts.fill("refused", problem=refusal)
        result = await self._answered(executor, question)
        return result_block(result) if result else f"{result_block('')}\n{self._prompts.fill('failed')}"

    def _refusal(self, executor: str, question: str) -> str | None:
        wanted = identity(question), executor
        for place, asked in enumerate(self._asked, start=1):
            if (identity(asked["question"]), asked["executor"]) == wanted:
                return f"this is the same as sub-question {place}, whose result you have"
        if len(self._asked) >= self._options.subquestions:
            return f"all {self._options.subquestions} sub-questions are used"
        return None

    async def _answered(self, executor: str, question: str) -> str:
        """Let an executor answer; empty if it does not, which is its failure until a later sub-question succeeds."""
        specs = self._team[executor]
        toolbox = ExecutorToolbox(self._run, specs, self._variables, self._options, self._preview_of)
        system = self._executor_instructions(toolbox)
        self._run.note("subquestion", PLANNER, question, executor=executor)
        self._run.count("subquestions")
        asked: dict[str, Any] = {"question": question, "executor": executor, "steps": [], "result": None}
        self._asked.append(asked)
        try:
            outcome = await react_loop(
                self._run,
                role=EXECUTOR,
                system=system,
                question=question,
                tools=toolbox,
                steps=self._options.executor_steps,
                record=asked["steps"],
            )
        finally:  # also where the episode ends meanwhile
            if toolbox.stored:
                self._run.count("tokens_saved", toolbox.tokens_saved())
        result = excerpt(outcome.result.strip(), LONGEST_RESULT)
        if result:
            self._failures.clear()
            # The planner is told of stored outputs whatever the executor says of them.
            result = "\n\n".join([result, *map(self._preview_of, toolbox.stored)])
        else:
            limit = f"no finish within {self._options.executor_steps} steps"
            problem = limit if outcome.answer is None else "finish with an empty answer"
            self._run.note("warning", EXECUTOR, problem)
            self._failures.setdefault(EXECUTOR, (EXECUTOR, problem))
        asked["result"] = result
        return result

    def _planner_instructions(self) -> str:
        address = f"\n{self._prompts.fill('address', first=next(iter(self._team)))}\n"
        return self._prompts.fill(
            "planner",
            capabilities=self._capabilities(),
            address=address if len(self._team) > 1 else "",
            facts=self._run.facts,
            subquestions=str(self._options.subquestions),
        )

    def _capabilities(self) -> str:
        """Return what executors can be asked for, in plain English."""
        python = "- run Python code that you describe, on numbers that you give or on variables that hold long outputs"
        parts = []
        for executor, specs in self._team.items():
            lines = [f"- {spec.description[:1].lower()}{spec.description[1:]}" for spec in specs]
            heading = [f"Executor `{executor}`:"] if len(self._team) > 1 else []
            parts.append("\n".join([*heading, *lines, python]))
        return "\n\n".join(parts)

    def _executor_instructions(self, toolbox: ExecutorToolbox) -> str:
        kept = [f"- {stored.name} ({stored.kind}, from {stored.tool})" for stored in self._variables.stored]
        over = [_told(asked, self._options.offload_tokens) for asked in self._asked]
        examples = examples_of_tools(self._prompts.texts[TOOL_EXAMPLES], toolbox.specs, self._options)
        return self._prompts.fill(
            "executor",
            tools=loop_tools(toolbox),
            facts=self._run.facts,
            examples="\n\n".join(examples),
            variables="\n".join(kept) or NO_VARIABLES,
            history="\n\n".join(over) or NO_VARIABLES,
        )

    def _preview_of(self, variable: Variable) -> str:
        """Return what executor and planner are told about a stored output: beginning, name, warning."""
        return self._prompts.fill(
            "offloaded",
            preview=variable.preview,
            variable=variable.name,
            kind=variable.kind,
            tokens=f"{variable.tokens:,}",
        )

    def _remaining(self, step: int) -> str:
        """Return what is left, which the planner cannot see otherwise."""
        steps = f"You have {self._options.steps - step} more replies."
        turns = self._run.turns_left
        return steps if turns is None else f"{steps} The tools can be used {turns} more times."


def examples_of_tools(text: str, specs: Iterable[ToolSpec], options: RPReActOptions) -> list[str]:
    """Return the executor's examples of tools, those that the options choose.

    Each begins with a line "Example of NAME(...)", and goes to the next one.
    """
    choice = options.tool_examples.strip().lower()
    if choice == NO_EXAMPLES or (choice == DEFAULT_EXAMPLES and options.examples == NO_EXAMPLES):
        return []
    chosen = None if choice == DEFAULT_EXAMPLES else read_tools(options.tool_examples)
    begins = list(_EXAMPLE.finditer(text))
    ends = [*(begin.start() for begin in begins[1:]), len(text)]
    by_name = {begin[1]: text[begin.start() : end].strip() for begin, end in zip(begins, ends, strict=True)}
    names = [spec.name for spec in specs if chosen is None or spec.name in chosen]
    return [by_name[name] for name in names if name in by_name]


def _told(asked: Mapping[str, Any], tokens: int) -> str:
    """Return a sub-question that is over as an executor reads it later: of each step the beginning of its outcome."""
    lines = [f"Question: {asked['question']}"]
    for step in asked["steps"]:
        if step["action"] in (None, "finish"):
            continue
        arguments = json.dumps(step["arguments"] or {}, ensure_ascii=False)
        brought = " ".join(first_tokens(step["observation"], tokens).split())
        lines.append(f"Action: {step['action']} {arguments}\n  brought: {brought}")
    lines.append(f"Result: {asked['result'] or '(the executor failed)'}")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Variable:
    """A stored output: its name, the tool it comes from, its length in tokens, its type in Python, its beginning."""

    name: str
    tool: str
    tokens: int
    kind: str
    preview: str


class Variables:
    """The variables of one task. The sandbox is given them when code is run for the first time."""

    def __init__(self, box: Sandbox) -> None:
        self.stored: list[Variable] = []
        self._box = box
        self._waiting: dict[str, JsonValue] = {}

    def store(self, tool: str, result: CallResult, preview: int) -> Variable:
        """Store what a tool brought under a new name, with a preview of so many tokens."""
        value = value_for_code(tool, result)
        name, beginning = f"output_{len(self.stored) + 1}", first_tokens(result.text, preview)
        self.stored.append(Variable(name, tool, estimated_tokens(result.text), type(value).__name__, beginning))
        self._waiting[name] = value
        return self.stored[-1]

    async def run(self, code: str) -> CodeResult:
        """Run code that can read the variables."""
        for name in tuple(self._waiting):
            put = await self._box.assign(name, self._waiting.pop(name))
            if put.error is not None:
                return CodeResult("", f"{name} does not fit into the sandbox: {put.error}", put.restarted, 0, put.kept)
        return await self._box.run(code)


def first_tokens(text: str, tokens: int) -> str:
    """Return the beginning of a text that has about so many tokens."""
    return text.encode("utf-8", "replace")[: tokens * BYTES_PER_TOKEN].decode("utf-8", "ignore")


class ExecutorToolbox:
    """The tools of one executor during one sub-question: its share of all, and Python on the task's variables.

    Long outputs are stored in variables; their beginning is left, as `preview_of` shows it.
    """

    def __init__(
        self,
        run: AgentRun,
        specs: Sequence[ToolSpec],
        variables: Variables,
        options: RPReActOptions,
        preview_of: Callable[[Variable], str],
    ) -> None:
        runs_code = [spec.name for spec in specs if CODE in spec.parameters.get("properties", {})]
        others = f" {' and '.join(runs_code)} cannot see them." if runs_code else ""
        self.specs = (*specs, replace(PYTHON, description=PYTHON.description + others))
        self.stored: list[Variable] = []
        self._run = run
        self._names = {spec.name for spec in specs}
        self._everybodys = {spec.name for spec in run.tools.specs}
        self._variables = variables
        self._options = options
        self._preview_of = preview_of
        self._spared: list[tuple[int, int]] = []  # calls of the model before each output was stored, and tokens less

    async def call(self, name: str, arguments: Mapping[str, Any]) -> CallResult:
        """Call a tool, or run Python; never raises for what a model wrote."""
        if name == PYTHON.name:
            return await self._python(arguments)
        if not self._may_call(name):
            return CallResult.refused(f"this executor has no tool {name[:200]!r}")
        stored = [
            variable.name
            for variable in self._variables.stored
            if re.search(rf"\b{variable.name}\b", str(arguments.get(CODE)))
        ]
        if stored and name in self._names:
            return CallResult.refused(f"{name} cannot see the variable {stored[0]}: run this code with python")
        left = words_for_a_result(arguments, self._run.task)
        if left is not None:
            return CallResult.refused(f"{left!r} only stands for a result: write the value itself")
        result = await self._run.tools.call(name, arguments)
        run = str(arguments.get("name")) if name == CALLS_ANY_TOOL else name
        return self._offloaded(name, result) if result.ok and self._is_long(name, run, result.text) else result

    def tokens_saved(self) -> int:
        """Return the tokens of prompts that stored outputs have saved: each, less its preview, in every later call."""
        calls = len(self._run.transcript.calls)
        return sum((calls - before) * tokens for before, tokens in self._spared)

    def _may_call(self, name: str) -> bool:
        """Return whether a tool is the executor's; what is nobody's is one of the library, or the tools refuse it."""
        if name in self._everybodys:
            return name in self._names
        return CALLS_ANY_TOOL in self._names or self._names == self._everybodys

    async def _python(self, arguments: Mapping[str, Any]) -> CallResult:
        problem = self._wrong(arguments)
        if problem is not None:
            return CallResult.refused(problem)
        result = await self._variables.run(arguments["code"])
        note_code(self._run, EXECUTOR, result, result.reason or "", "python_runs")
        return CallResult(result.observation, result.reason)

    def _wrong(self, arguments: Mapping[str, Any]) -> str | None:
        """Return what is wrong with the arguments of `python`; None if nothing is."""
        code, named = arguments.get("code"), arguments.get("variables") or []
        if not isinstance(code, str) or not code.strip():
            return "python needs a text 'code'"
        if set(arguments) - {"code", "variables"}:
            return "python takes 'code' and 'variables' and nothing else"
        named = [named] if isinstance(named, str) else named
        if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
            return "'variables' of python is a list of names"
        there = [variable.name for variable in self._variables.stored]
        missing = [name for name in named if name not in there]
        if missing:
            return f"there is no variable {missing[0][:100]!r}; stored outputs: {', '.join(there) or 'none yet'}"
        return None

    def _is_long(self, name: str, run: str, text: str) -> bool:
        """Tell whether what a call brought is stored, `run` being the tool that was really run.

        Not what speaks about the library, of little use without its end.
        """
        offered = name if name in self._names else CALLS_ANY_TOOL
        listed = read_tools(self._options.offload_tools)
        is_meant = offered not in READ_AS_TEXT if listed is None else not {offered, run}.isdisjoint(listed)
        return is_meant and estimated_tokens(text) > self._options.offload_tokens

    def _offloaded(self, name: str, result: CallResult) -> CallResult:
        """Store a long output and leave its beginning."""
        preview = self._options.preview_tokens or self._options.offload_tokens
        variable = self._variables.store(name, result, preview)
        self.stored.append(variable)
        self._run.note("offload", EXECUTOR, variable.name, tool=name, tokens=variable.tokens)
        self._run.count("offloads")
        self._run.structure["variables"] = [asdict(stored) for stored in self._variables.stored]
        shown = self._preview_of(variable)
        self._spared.append((len(self._run.transcript.calls), max(variable.tokens - estimated_tokens(shown), 0)))
        return CallResult(shown, progress=result.progress)


def _team_of(options: RPReActOptions, specs: Sequence[ToolSpec]) -> dict[str, tuple[ToolSpec, ...]]:
    """Return the tools of each executor, or raise `InvalidInputError` if one does not exist."""
    team = read_team(options.executors)
    return {name: _chosen(tools, specs, f"option executors, executor {name!r}") for name, tools in team.items()}


def _check_tool_examples(options: RPReActOptions, specs: Sequence[ToolSpec]) -> None:
    """Refuse examples of tools that do not exist."""
    if options.tool_examples.strip().lower() not in (NO_EXAMPLES, DEFAULT_EXAMPLES):
        _chosen(read_tools(options.tool_examples), (*specs, PYTHON), "option tool_examples")


def _chosen(names: Iterable[str] | None, specs: Sequence[ToolSpec], where: str) -> tuple[ToolSpec, ...]:
    """Return the tools of these names; None names all."""
    by_name = {spec.name: spec for spec in specs}
    for name in names or ():
        if name not in by_name:
            raise unknown_name("tool", name, list(by_name), where)
    return tuple(specs) if names is None else tuple(by_name[name] for name in names)


def read_team(text: str) -> dict[str, tuple[str, ...] | None]:
    """Read the option `executors`: "all", one that has every tool, or `search:tool_search+tool_info;run:tool_call`.

    Returned are the names of each executor's tools, None for all of them; what cannot be read is refused.
    """
    if text.strip().lower() == _ALL:
        return {EXECUTOR: None}
    team: dict[str, tuple[str, ...] | None] = {}
    for part in filter(str.strip, text.split(";")):
        name, colon, listed = (piece.strip() for piece in part.partition(":"))
        tools = read_tools(listed)
        if not colon or not _NAME.match(name) or tools == ():
            expected = "expected all, or NAME:TOOL+TOOL;NAME:TOOL"
            raise InvalidInputError(f"option executors={text!r}: {expected}, not {part!r}")
        if name in team:
            raise InvalidInputError(f"option executors={text!r}: two executors have the same name")
        team[name] = tools
    if not team:
        raise InvalidInputError(f"option executors={text!r}: there is none")
    return team


def _address_of_calls(team: Mapping[str, tuple[str, ...] | None]) -> str:
    """Return how the executor is addressed that can call any tool; nothing where there is only one executor."""
    able = [name for name, tools in team.items() if tools is None or CALLS_ANY_TOOL in tools]
    return f"{next(iter(able or team))}: " if len(team) > 1 else ""


def read_tools(text: str) -> tuple[str, ...] | None:
    """Read names of tools, `tool_call+tool_search`; None for "all"."""
    if text.strip().lower() == _ALL:
        return None
    return tuple(dict.fromkeys(name.strip() for name in text.split("+") if name.strip()))


def _checked_specs(tools: object) -> tuple[ToolSpec, ...]:
    """Return the tools of a toolbox; something else, such as a text in the policy's brackets, is refused."""
    listed = tuple(tools) if isinstance(tools, Iterable) else (tools,)
    specs = tuple(spec for spec in listed if isinstance(spec, ToolSpec))
    if len(specs) < len(listed):
        raise InvalidInputError(f"tools={tools!r}: expected the ToolSpecs of a toolbox; options take names of tools")
    return specs


def addressed(question: str, team: Collection[str]) -> tuple[str, str] | str:
    """Return who is asked and what, or what is wrong.

    A single executor needs no address. One of several is named before the question: `search: which tools ...`.
    """
    if len(team) == 1:
        return next(iter(team)), question
    match = _ADDRESS.match(question)
    if match is None:
        return f"the sub-question does not begin with the name of an executor and a colon ({', '.join(team)})"
    executor = {name.lower(): name for name in team}.get(match.group(1).lower())
    if executor is None:
        return f"there is no executor {match.group(1)!r}, only {', '.join(team)}"
    rest = question[match.end() :].strip()
    return (executor, rest) if rest else "the sub-question is empty behind the executor's name"
