"""The exact optimum as somebody to learn from: it calls no tool and passes no parameter that it has not read of.

The exact optimum knows the required tools. A model that is trained on its bare calls would learn to name tools that it
was never shown. So the demonstrator searches for a tool with the words of the work order, or asks what a tool depends
on, before it calls what neither the prompt nor a reply has named. That costs turns; their price is in the regrets.
What a prompt names is looked for in its text, since that is all that a model learns from; of replies the values count.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from resilisim.datasets.rollout import Stage
from resilisim.envs.feedback import shown_parameters
from resilisim.envs.reply import Info
from resilisim.policies.base import (
    FINISH_TEXT,
    OUT_OF_TURNS,
    WAIT_TEXT,
    call_message,
    info_message,
    search_message,
    succeeded_tool,
)
from resilisim.policies.scripted import ordered_steps
from resilisim.simulator import Problem
from resilisim.simulator.exact import solve
from resilisim.simulator.exact.values import TIE_TOLERANCE, Values
from resilisim.simulator.messages import Message, execution
from resilisim.simulator.problem import is_awaiting_closing, is_done
from resilisim.simulator.rulebook.rules import CLOSED, OPEN, UNCHECKED, UNSOUND
from resilisim.simulator.state import NEXT_PLACE, EpisodeState
from resilisim.simulator.tool_status import FAILED, SUCCEEDED
from resilisim.tasks import Task
from resilisim.tasks.wording import SEARCH_SIZE, Searcher, clauses, solving_clauses
from resilisim.tool_library import Tool, ToolLibrary
from resilisim.tool_library.parameters import check_parameters
from resilisim.workflows.prompts import parse_steps
from resilisim.workflows.steps import accepted_parameters, is_refused_input, step_parameters
from resilisim.workflows.templating import escape_line

_WORD = re.compile(r"[\w.\-]+")

# What an agent that makes the mistake would think, for prompts that ask for its reasoning.
MISTAKEN_REASONS: Final[Mapping[str, str]] = {
    "missing_dependency_first": "This tool does what the work order asks for, so I run it at once.",
    "wrong_order": "The work order asks for this, too, so I do it now.",
    "unneeded_tool": "This tool might help with the work, so I run it.",
    "repeated_success": "I run this tool once more, to be on the safe side.",
    "suboptimal_choice": "This tool belongs to the work, so I run it next.",
    "wasted_turn": "There may be a better tool than those I know, so I look for one.",
    "repeated_search": "I ask once more, in case something else turns up.",
    "format_error": "I know which tool to run next.",
    "rejected_call": "I know how to call the tool for the next operation.",
    "gave_up_early": "What matters has been done, so I report completion.",
    "no_completion_signal": "There may be something left to do.",
    "rate_limited_call": "I need this tool now, so I call it at once.",
    "repeated_invalid_call": "Any tool can fail, so I run it again as it was.",
    "call_without_access": "Any tool can fail, so I run it again.",
    "kept_at_broken_tool": "Any tool can fail, so I run it again.",
    "believed_corrupt_data": "Everything so far has reported success, so I go on.",
    "did_not_wait": "There is work left, so I go on at once.",
    "waited_in_vain": "I let a turn pass before I go on.",
}


class Demonstrator:
    """Plays the exact optimum of one task, within what it has read.

    It signals completion only when everything is done; with the closing message alone left, it says that it is not.
    Under a chain-of-thought prompt it gives its reason with each message. Without `search` it looks nothing up and
    plays the exact optimum as it is. With a `plan_margin` it does the step that the plan in the prompt, which others
    can read, names first, where that gives away no more.
    """

    privileged = True

    def __init__(
        self, stage: Stage, task: Task, search: bool = True, pass_parameters: bool = True, plan_margin: float = 0.0
    ) -> None:
        self.name = "exact-optimum-with-search" if search else "exact-optimum"
        self._stage = stage
        self._library = stage.library
        self._task = task
        self._searches = search
        self._passes_parameters = pass_parameters
        self._plan_margin = plan_margin
        self._planned: tuple[str, ...] = ()
        self._queries: dict[str, str] | None = None
        self._read: set[str] = set()  # tools whose names it has read
        self._shown: dict[str, set[str]] = {}  # parameters that it has read of, by tool
        self._asked: set[str] = set()  # messages that looked something up and were answered
        self._asking: str | None = None  # the message that looks something up, until it is answered
        self._last_success: str | None = None

    def reset(self, observation: str, info: Info) -> None:
        """Read the prompt."""
        words = {word.strip(".-") for word in _WORD.findall(observation)}
        self._read = {name for name in self._library.names if name in words}
        steps = parse_steps(observation)
        self._shown = {step.tool: set(step.parameters or ()) for step in steps}
        self._planned = tuple(step.tool for step in steps if step.tool in self._library) if self._plan_margin else ()
        self._asked, self._asking = set(), None
        self._last_success = None

    def act(self, observation: str, info: Info) -> str:
        """Return the next message."""
        self._read_reply(info)
        problem, state = info["problem"], info["state"]
        message = self._next_message(problem, state)
        return self.explain(lambda: reasoning(problem, state, self._stage.read(message)), message, info)

    def explain(self, reason: Callable[[], str], message: str, info: Info) -> str:
        """Return a message with its reason in front, under a prompt that asks for reasons; else as it is."""
        if info["prompt_type"] != "chain_of_thought":
            return message
        first = f"{opening(self._task.description)}\n\n" if info["turn"] == 0 else ""
        return f"Reasoning: {first}{reason()}\n\n{message}"

    @property
    def known_tools(self) -> frozenset[str]:
        """The tools whose names it has read in this episode."""
        return frozenset(self._read)

    def parameters(self, tool: str) -> dict[str, Any]:
        """Return the parameters that the demonstrator would pass to a tool now."""
        if not self._passes_parameters:
            return {}
        parameters = step_parameters(self._library[tool], self._task.inputs, self._last_success)
        if self._searches and self._stage.parameters != "strict":
            parameters = self._known_ones(tool, parameters)
        return parameters

    def parameters_like(self, tool: str, example: str) -> dict[str, Any]:
        """Return parameters of a tool that are as complete as those that another tool would be passed now.

        So that a wrong call beside a right one is not betrayed by what it leaves out: none, some, or all of what the
        tool requires.
        """
        beside = self.parameters(example)
        if self._stage.parameters == "strict":
            return self.parameters(tool)
        if not beside:
            return {}
        every = step_parameters(self._library[tool], self._task.inputs, self._last_success)
        if not check_parameters(self._library[example], beside, "strict"):
            return every
        return self._known_ones(tool, every) or dict(itertools.islice(every.items(), 1))

    def _next_message(self, problem: Problem, state: EpisodeState) -> str:
        if is_awaiting_closing(problem, state) and not is_done(problem, state):
            return OUT_OF_TURNS
        best = self._opening_first(problem, state, self._best_message(solve(problem), state))
        if best.kind == "search":
            self._asking = search_message(best.query or "")
            return self._asking
        if best.kind == "wait":
            return WAIT_TEXT
        if best.kind != "execute" or best.tool is None:
            return FINISH_TEXT
        self._asking = self._look_up(best.tool, problem) if self._searches else None
        return self._asking or self._call(best.tool, problem, state)

    def _call(self, tool: str, problem: Problem, state: EpisodeState) -> str:
        """Return a call, with another parameter where the law refuses its input; one that was read of, if need be."""
        parameters = self.parameters(tool)
        known = None
        if self._searches:
            known = [parameter.name for parameter in self._library[tool].parameters]
            known = [name for name in known if self._knows_parameter(tool, name)]
        accepted = accepted_parameters(problem, state, tool, parameters, known)
        if accepted == parameters and known is not None and is_refused_input(problem, state, tool, parameters):
            asking = info_message(tool)
            if asking not in self._asked:
                self._asking = asking
                return asking
        return call_message(tool, accepted)

    def _best_message(self, optimum: Values, state: EpisodeState) -> Message:
        """Return the optimum's message, or a search where it calls a tool that only breaks a row of failures.

        No clause of the work order leads to such a tool. If it was not read of, the best is what else is known, or to
        look for the tool by its own words.
        """
        best = self._by_plan(optimum, state, optimum.best_action(state))
        problem, names = optimum.problem, self._library.names
        known = self._read.union(names[tool] for tool in problem.closure)
        if not self._searches or best.kind != "execute" or best.tool is None or best.tool in known:
            return best
        required_next = names[problem.required[min(state.counters[NEXT_PLACE], len(problem.required) - 1)]]
        options = [execution(name) for name in (required_next, *(name for name in names if name in known))]
        search = Message("search", query=purpose(self._library[best.tool]))
        if search_message(search.query or "") not in self._asked:
            options.append(search)
        values = [optimum.action_value(state, option) for option in options]
        return next(
            option for option, value in zip(options, values, strict=True) if value >= max(values) - TIE_TOLERANCE
        )

    def _by_plan(self, optimum: Values, state: EpisodeState, best: Message) -> Message:
        """Return the first step of the plan that is about as good as the best call and has not succeeded, else that."""
        if best.kind != "execute":
            return best
        least = optimum.value(state) - self._plan_margin
        left = (name for name in self._planned if state.status[self._library.names.index(name)] != SUCCEEDED)
        return next((call for call in map(execution, left) if optimum.action_value(state, call) >= least), best)

    def _opening_first(self, problem: Problem, state: EpisodeState, best: Message) -> Message:
        """Return a message, or what opens its tool if that is closed: where nothing can be won any call is a best."""
        dynamics = problem.dynamics
        if dynamics.rules.at_block < 0 or best.kind != "execute":
            return best
        openers = [tool for tool, facts in enumerate(dynamics.numbers.facts) if facts.is_opener]
        is_open = state.parts[dynamics.rules.at_block + problem.library.index(best.tool or "")] != CLOSED
        if is_open or not openers or any(state.status[tool] == SUCCEEDED for tool in openers):
            return best
        name = self._library.names[openers[0]]
        search = Message("search", query=purpose(self._library[name]))
        is_new = name not in self._read and search_message(search.query or "") not in self._asked
        return search if self._searches and is_new else execution(name)

    def _look_up(self, tool: str, problem: Problem) -> str | None:
        """Return the message that finds out about a tool, or None if enough was read or nothing more can be."""
        if tool not in self._read:
            question = self._find_name(tool, problem)
        else:
            required = (parameter.name for parameter in self._library[tool].parameters if parameter.required)
            unknown = any(not self._knows_parameter(tool, name) for name in required)
            question = info_message(tool) if unknown and self._stage.parameters == "strict" else None
        return None if question in self._asked else question

    def _find_name(self, tool: str, problem: Problem) -> str | None:
        if tool in problem.required_tools:
            if self._queries is None:
                self._queries = search_queries(self._task, self._library, self._stage.searcher)
            return search_message(self._queries[tool])
        names = (self._library.names[index] for index in problem.closure)
        dependents = [name for name in names if tool in self._library.dependencies(name)]
        asked = next((name for name in dependents if name in self._read), None)
        if asked is not None:
            return info_message(asked)
        return self._find_name(dependents[0], problem) if dependents else None

    def _knows_parameter(self, tool: str, name: str) -> bool:
        """Return whether the prompt or a reply has shown a parameter, the task's inputs included."""
        return name in self._task.inputs or name in self._shown.get(tool, ())

    def _known_ones(self, tool: str, parameters: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in parameters.items() if self._knows_parameter(tool, name)}

    def _read_reply(self, info: Info) -> None:
        # What was sent can be another message than the last one of the demonstrator (`preferences`, `finetuning`).
        sent: Message | None = info.get("message")
        asked = None if self._asking is None else self._stage.read(self._asking).signature
        if self._asking is not None and sent is not None and sent.signature == asked:
            self._asked.add(self._asking)
        self._last_success = succeeded_tool(info) or self._last_success
        if "execution" in info:
            name = info["execution"]["tool"]
            self._read.add(name)  # a mistake on purpose may run what nothing named before
            if info.get("error_kind") == "input" and self._stage.settings.prompt_style == "terse":
                shown = {parameter.name for parameter in shown_parameters(self._library[name])}
                self._shown[name] = self._shown.get(name, set()) | shown
        # Of tools whose names say nothing nobody knows which hit does what: the first is taken, as a follower does.
        for hit in info.get("search", ())[: 1 if self._stage.is_renamed else None]:
            self._learn(hit["name"], self._stage.settings.search_detail == "full")
        if "tool_info" in info:
            self._learn(info["tool_info"]["name"], True)
        for names in info.get("dependency_problems", {}).values():
            self._read.update(names)

    def _learn(self, tool: str, everything: bool) -> None:
        self._read.add(tool)
        if everything:
            self._shown[tool] = {parameter.name for parameter in self._library[tool].parameters}
            self._read.update(self._library.dependencies(tool))


def search_queries(task: Task, library: ToolLibrary, searcher: Searcher) -> dict[str, str]:
    """Return for each required tool what to search for: words of the work order, or its own where none lead to it.

    Clauses that order work come first: there are few different ones, so that their embeddings are known already.
    """
    for texts in (ordered_steps(task.description), clauses(task.description)):
        places = solving_clauses("\n".join(texts), task.required_tools, searcher)
        if places is not None:
            queries = clauses("\n".join(texts))
            return {tool: queries[place] for tool, place in zip(task.required_tools, places, strict=True)}
    own_words = {name: purpose(library[name]) for name in task.required_tools}
    return own_words | _best_clauses(task.required_tools, clauses(task.description), searcher)


def _best_clauses(tools: Sequence[str], texts: Sequence[str], searcher: Searcher) -> dict[str, str]:
    """Return for each tool the clause that retrieves it with the highest score, in whatever order they stand."""
    best: dict[str, tuple[float, str]] = {}
    for text, hits in zip(texts, searcher.search_many(texts, SEARCH_SIZE), strict=True):
        for hit in hits:
            if hit.name in tools and (hit.name not in best or hit.score > best[hit.name][0]):
                best[hit.name] = (hit.score, text)
    return {tool: text for tool, (_, text) in best.items()}


def purpose(tool: Tool) -> str:
    """Return what a tool is for, in its own words."""
    return " ".join((tool.original_description or tool.description or tool.name.replace("_", " ")).split())


def opening(description: str) -> str:
    """Return what the first message of an episode says about the whole work order."""
    steps = [f"{number}. {escape_line(step)}" for number, step in enumerate(ordered_steps(description), start=1)]
    return "\n".join(
        [
            "The work order asks for these operations, in this order:",
            *steps,
            "Each needs a tool that does it. A tool may depend on others, which then have to run before it.",
        ]
    )


def reasoning(problem: Problem, state: EpisodeState, message: Message) -> str:
    """Return the reason for an optimal message, a look-up, or the closing message of an episode that failed.

    Foreign text in it is escaped, so that it holds no tag.
    """
    if message.kind == "search":
        return f"I look for a tool that does this: {escape_line(message.query or '')}."
    if message.kind == "info":
        return f"I need to know what {message.tool} takes and which tools have to run before it."
    if message.kind == "wait":
        return "What I need next is not available for the moment, so I let a turn pass."
    if message.kind == "execute" and message.tool is not None:
        tool = problem.library.index(message.tool)
        return _reason_by_parts(problem, state, tool) or _reason_of_call(problem, state, tool)
    if is_done(problem, state):
        return "Everything that the work order asks for has succeeded, in its order, so I report completion."
    return "No turn is left and some of the work is still open, so I must not report completion."


def _reason_by_parts(problem: Problem, state: EpisodeState, tool: int) -> str | None:
    """Return the reason for a call that the parts of the law are behind; None if none of them is."""
    dynamics, name = problem.dynamics, problem.library.names[tool]
    rules = dynamics.rules
    if rules.at_block >= 0:
        block = state.parts[rules.at_block + tool]
        if block == CLOSED:
            return f"Access to {name} was denied before and is open now, so I run it again."
        if block != OPEN:
            return f"{name} refused its input, so I run it again with another parameter."
        if dynamics.numbers.facts[tool].is_opener and any(
            state.parts[rules.at_block + other] == CLOSED for other in problem.closure
        ):
            return f"Access was denied, so I run {name} first, which opens it."
    if rules.at_sound >= 0 and state.parts[rules.at_sound + tool] in (UNSOUND, UNCHECKED):
        return f"The output of {name} may be wrong, so I run it again."
    return None


def _reason_of_call(problem: Problem, state: EpisodeState, tool: int) -> str:
    names = problem.library.names
    name = names[tool]
    if state.status[tool] == FAILED:
        return f"{name} failed and is still needed. Any tool can fail, so I run it again."
    dependents = [
        names[other]
        for other in problem.closure
        if tool in problem.dependencies[other] and state.status[other] != SUCCEEDED
    ]
    if problem.place[tool] >= 0 and state.status[tool] != SUCCEEDED:
        missing = [names[other] for other in problem.dependencies[tool] if state.status[other] != SUCCEEDED]
        if missing:
            return (
                f"{name} does the next operation of the work order. It depends on {_listed(missing)}, but turns are "
                "too few for that, so I take the risk."
            )
        return f"{name} does the next operation of the work order, and what it depends on has succeeded."
    if dependents and state.status[tool] != SUCCEEDED:
        return f"{_listed(dependents)} depends on {name}, so I run {name} first to make success likelier."
    return f"{name} does none of the work, but is likely to succeed, and a success ends a row of failed runs."


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
