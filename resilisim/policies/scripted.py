"""Policies without a model: the exact optimum, random calls, and followers of plans.

Followers read plan and work order out of the prompt's text, as anybody's policy has to: so they also play prompts that
somebody wrote, and show that ours can be read. What came of a message they take from the values of `info`.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Hashable, Mapping
from dataclasses import replace
from importlib import resources
from typing import Any, Literal, get_args

from resilisim.envs.reply import Info
from resilisim.errors import InvalidInputError, unknown_name
from resilisim.policies.base import (
    FINISH_TEXT,
    OUT_OF_TURNS,
    WAIT_TEXT,
    call_message,
    info_message,
    is_closing,
    search_message,
    succeeded_tool,
)
from resilisim.redaction import fit_to_show
from resilisim.seeding import Draws
from resilisim.simulator.exact import solve
from resilisim.simulator.problem import Problem
from resilisim.simulator.state import EpisodeState
from resilisim.tasks import Task
from resilisim.tasks.wording import clauses
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.tool_library.parameters import changed_parameters
from resilisim.workflows import PlannedStep
from resilisim.workflows.argument_references import mended_references, undone_steps
from resilisim.workflows.prompts import parse_steps, parse_work_order, text_before_plan
from resilisim.workflows.steps import accepted_parameters, step_parameters
from resilisim.workflows.templating import inline_json
from resilisim.worlds.base import reference_calls, resolve_parameters

_LOGGER = logging.getLogger("resilisim.policies")
_LOGGER.addHandler(logging.NullHandler())  # who wants to read along says so

AskWhen = Literal["before", "after", "never"]
_UNAVAILABLE = ("RATE_LIMIT_ERROR", "SERVICE_UNAVAILABLE")  # goes away by itself

SEARCH_PROBABILITY = 0.1
FINISH_PROBABILITY = 0.05

_POLITE_WORDS = frozenset({"please", "kindly", "first", "then", "next", "now", "also", "and", "afterwards", "finally"})


class ExactOptimumPolicy:
    """Sends a message with the highest Q* in every state, and reports completion when all is done.

    Under a law with parts that is also to wait, to change a parameter that was refused, or to call another tool in a
    tool's place.

    It is privileged: it is told the problem (law, end rules, required list) and the state, though not the luck. Its
    mean success is V* of the start, which no agent that does not know its luck can beat.
    """

    name = "exact-optimum"
    privileged = True

    def reset(self, observation: str, info: Info) -> None:
        """Nothing is kept between messages."""

    def memory_beside_state(self) -> Hashable:
        """Its messages depend on the state alone (`base.memory_of`)."""
        return ()

    def act(self, observation: str, info: Info) -> str | None:
        """Return an optimal message.

        Raises:
            ExactLimitError: The task is too large to be solved exactly.
        """
        problem, state = info["problem"], info["state"]
        return _best_message(problem, replace(state, executions=(0,) * problem.num_tools))


# The same states come up again in other episodes of a task. Which executions of a tool were the earlier ones matters to
# luck alone, so their numbers are left out.
@functools.lru_cache(maxsize=20_000)
def _best_message(problem: Problem, state: EpisodeState) -> str:
    best = solve(problem).best_action(state)
    if best.kind == "execute" and best.tool is not None:
        # Parameters that say nothing, so that the call is accepted in strict mode too.
        saying_nothing = step_parameters(problem.library[best.tool], {}, None)
        return call_message(best.tool, accepted_parameters(problem, state, best.tool, saying_nothing))
    if best.kind == "wait":
        return WAIT_TEXT
    # A search leaves a row of equal calls before the loop rule ends the episode.
    return FINISH_TEXT if best.kind == "finish" else search_message(best.query or "")


class RandomPolicy:
    """Runs a uniformly random tool each turn; now and then it searches, or finishes.

    Its choices are a function of its seed and of everything that it has read in the episode, so the same episode gives
    the same messages, whatever ran before. A search is for the words of a random tool's name.
    """

    name = "random"
    privileged = False

    def __init__(
        self,
        seed: int = 0,
        library: ToolLibrary | None = None,
        search_probability: float = SEARCH_PROBABILITY,
        finish_probability: float = FINISH_PROBABILITY,
    ) -> None:
        self._seed = seed
        self._names = (library if library is not None else default_library()).names
        self._search_probability = search_probability
        self._finish_probability = finish_probability
        self._history = b""

    def reset(self, observation: str, info: Info) -> None:
        """Forget the last episode."""
        self._history = b""

    def act(self, observation: str, info: Info) -> str | None:
        """Return a random message; the closing message always finishes."""
        read = hashlib.blake2b(self._history + observation.encode("utf-8", "surrogatepass"), digest_size=16)
        self._history = read.digest()
        if is_closing(info):
            return FINISH_TEXT
        draws = Draws("resilisim/policies/random", self._seed, read.hexdigest())
        kind = draws.uniform()
        if kind < self._finish_probability:
            return FINISH_TEXT
        tool = draws.choice(self._names)
        if kind < self._finish_probability + self._search_probability:
            return search_message(tool.replace("_", " "))
        return call_message(tool)


class ReferencePolicy:
    """Plays the reference solution of a world's task, each call again until it goes through, then its answer.

    Under a law with parts it lets turns pass where that is better. It is privileged: it is told the task and the
    problem. Its mean success is V* of the start wherever a reference solution is right.
    """

    name = "reference"
    privileged = True

    def reset(self, observation: str, info: Info) -> None:
        """Read the reference solution of the task; InvalidInputError if it has none."""
        self._task: Task = info["task"]
        self._calls = list(reference_calls(self._task))
        if not self._calls:
            raise InvalidInputError(f"task {self._task.instance_id} has no reference solution: expected one of a world")
        self._values = solve(info["problem"])
        self._results: dict[str, Any] = {}

    def act(self, observation: str, info: Info) -> str | None:
        """Return the next call, or the answer."""
        if succeeded_tool(info) is not None:
            done = self._calls.pop(0)
            if done.save is not None:
                self._results[done.save] = info["execution"]["output"]
        if not self._calls:
            answer = {"answer": self._task.metadata["answers"][0]}
            # What cannot be known before an episode stands in the answer as it does in parameters.
            return f"<finish>{resolve_parameters(answer, self._results)['answer']}</finish>"
        if is_closing(info):
            return OUT_OF_TURNS
        if self._values.best_action(info["state"]).kind == "wait":
            return WAIT_TEXT
        call = self._calls[0]
        return call_message(call.tool, resolve_parameters(call.parameters, self._results))


# Many episodes in a row have the same prompt, so what was read in one is remembered.
@functools.lru_cache(maxsize=256)
def _steps_in(prompt: str) -> tuple[PlannedStep, ...]:
    return tuple(parse_steps(prompt))


@functools.lru_cache(maxsize=256)
def _undone_in(prompt: str) -> Mapping[int, str]:
    return undone_steps([step.parameters for step in _steps_in(prompt)], (text_before_plan(prompt),))


@functools.lru_cache(maxsize=256)
def _queries_in(prompt: str) -> tuple[str, ...]:
    return tuple(ordered_steps(parse_work_order(prompt)))


class PlanFollower:
    """Follows the plan in its prompt to the letter, then reports completion.

    It makes each step again until it succeeds, or until the plan's limits for the step say to go on
    (`workflows.Step`), unchanged whatever the error says: where errors mean what they say, it stays at a refused call.
    It reads nothing but the prompt and the replies. Parameters that the plan gives are
    passed; those that cannot be read are logged as a warning, with their words, and the step is run without any. A
    step that refers to the result of one that does not exist, comes later or is not done is logged and passed over.
    Where the prompt holds no plan, it makes one of the top results of one search for each ordered step, and stops
    searching when every further turn is needed to run what was found.

    What it keeps between messages is replaced and never changed, so that a copy goes on by itself.
    """

    name = "plan-follower"
    privileged = False

    def __init__(self, pass_parameters: bool = True) -> None:
        self._pass_parameters = pass_parameters
        self._steps: tuple[PlannedStep, ...] = ()
        self._queries: tuple[str, ...] | None = None  # still to be searched for; None once there is a plan
        self._messages = 0  # written so far
        self._tried: PlannedStep | None = None  # the step of the latest call
        self._tries = 0  # its calls so far

    def reset(self, observation: str, info: Info) -> None:
        """Read the plan in the prompt."""
        self._messages, self._tried = 0, None
        self._steps = _steps_in(observation)
        self._queries = None if self._steps else _queries_in(observation)
        if not self._pass_parameters:
            return
        for step in self._steps:
            if step.problem is not None:
                warning = fit_to_show(f"{step.tool} is run without parameters: {step.problem}", one_line=True)
                _LOGGER.warning("step %s", warning)
        undone = _undone_in(observation)
        for index, problem in undone.items():
            warning = fit_to_show(f"{index + 1}, {self._steps[index].tool}: {problem}", one_line=True)
            _LOGGER.warning("step %s", warning)
        if undone:
            self._steps = self._without_references(undone, text_before_plan(observation))

    def _without_references(self, undone: Mapping[int, str], text: str) -> tuple[PlannedStep, ...]:
        """Return what is done of a plan some of whose steps refer to what is not there: the other steps."""
        return tuple(step for index, step in enumerate(self._steps) if index not in undone)

    def memory_beside_state(self) -> Hashable:
        """Its messages depend on how far it has come in its plan, and on how often it tried (`base.memory_of`)."""
        tries = self._tries if self._steps and self._tried is self._steps[0] else 0
        # What a search shows does not depend on luck, so that numbers say which steps and searches are left.
        return self._messages, len(self._steps), tries, None if self._queries is None else len(self._queries)

    def act(self, observation: str, info: Info) -> str | None:
        """Return the next search, the next call, or the completion signal; stop where no plan could be made."""
        message = self._message(info)
        self._messages += 1
        return message

    def _message(self, info: Info) -> str | None:
        if self._queries is None:
            self._read_reply(info)
            return self._next(info)
        hits = info.get("search")
        if hits and hits[0]["name"] not in [step.tool for step in self._steps]:
            self._steps = (*self._steps, PlannedStep(hits[0]["name"]))
        turns_left = info.get("turns_left")
        too_late = turns_left is not None and turns_left < len(self._steps) + 2
        if self._queries and not too_late:
            query, *queries = self._queries
            self._queries = tuple(queries)
            return search_message(query)
        if not self._steps:
            return None  # nothing was found that could be done
        self._queries = None
        return self._next(info)

    def _read_reply(self, info: Info) -> None:
        """Note what the last message brought about."""
        if self._steps and succeeded_tool(info) is not None:
            self._steps = self._steps[1:]

    def _leave(self) -> list[PlannedStep]:
        """Go on from the steps whose limits say so, and return them."""
        left = []
        while self._steps:
            step = self._steps[0]
            if not step.is_left(self._tries if self._tried is step else 0, self._messages + 1):
                break
            left.append(step)
            self._steps = self._steps[1:]
        return left

    def _next(self, info: Info) -> str:
        self._leave()
        if not self._steps:
            return FINISH_TEXT
        if is_closing(info):
            return OUT_OF_TURNS
        return self._call(self._steps[0])

    def _call(self, step: PlannedStep) -> str:
        self._tries = self._tries + 1 if self._tried is step else 1
        self._tried = step
        return call_message(step.tool, self._parameters(step))

    def _parameters(self, step: PlannedStep) -> Mapping[str, Any] | None:
        return step.parameters if self._pass_parameters else None


class RepairingFollower(PlanFollower):
    """Follows a plan as `PlanFollower` does, but asks what a tool depends on and runs missing dependencies first.

    Dependencies of dependencies are mended in the same way, and no tool is put in front of itself, so a cycle in what
    it is told cannot trap it. It also drops what a plan repeats and what the environment refuses. A tool that the
    plan's limits say to leave is not taken up again to mend another one.

    Where the law gives errors a meaning (`info["error_kind"]`), it changes a parameter after an error of the input, and
    after one of access runs what opens the tool first (`info["opened_by"]`). Where it can wait, it lets a turn pass
    after RATE_LIMIT_ERROR and SERVICE_UNAVAILABLE.

    It spends a turn on asking "after" a failure for missing dependencies, "before" the first call of each tool if the
    prompt says nothing about dependencies, or "never" (then the dependencies that the failure names are run).

    Where a step refers to a result that is not there, it passes that of the step before.
    """

    name = "repairing-follower"
    reads_words = True  # which error a failure shows: what a tool lacks, what goes away by itself

    def __init__(
        self, ask: AskWhen = "after", pass_parameters: bool = True, library: ToolLibrary | None = None
    ) -> None:
        super().__init__(pass_parameters)
        self._library = library if library is not None else default_library()
        if ask not in get_args(AskWhen):
            raise unknown_name("time to ask", ask, get_args(AskWhen))
        self._ask = ask
        self._forget()

    def _forget(self) -> None:
        self._dependencies: Mapping[str, tuple[str, ...]] = {}
        self._succeeded: frozenset[str] = frozenset()
        self._left: frozenset[str] = frozenset()
        self._mended: frozenset[str] = frozenset()  # tools in front of which their missing dependencies were put
        self._asked: frozenset[str] = frozenset()
        self._plan_states_requirements = False
        self._failed_for_dependencies: str | None = None
        self._corrections: Mapping[str, int] = {}  # by tool, how often it changed a parameter
        self._can_wait = self._waits = False

    def reset(self, observation: str, info: Info) -> None:
        """Read the plan in the prompt."""
        super().reset(observation, info)
        self._forget()
        self._can_wait = bool(info.get("offers_wait"))
        self._dependencies = {step.tool: step.requires for step in self._steps if step.requires is not None}
        self._plan_states_requirements = bool(self._dependencies)

    def _without_references(self, undone: Mapping[int, str], text: str) -> tuple[PlannedStep, ...]:
        """Return the steps with other arguments where they refer to what is not there."""
        tools = [step.tool for step in self._steps]
        values = mended_references([step.parameters for step in self._steps], tools, (text,))
        return tuple(replace(step, parameters=own) for step, own in zip(self._steps, values, strict=True))

    def memory_beside_state(self) -> Hashable:
        """Its messages depend on what it has done and was told of each tool, too (`base.memory_of`)."""
        steps = tuple((step.tool, inline_json(step.parameters)) for step in self._steps)
        told = tuple(sorted(self._dependencies.items())), tuple(sorted(self._corrections.items()))
        tools = self._succeeded, self._left, self._mended, self._asked
        return super().memory_beside_state(), steps, told, tools, self._failed_for_dependencies, self._waits

    def _read_reply(self, info: Info) -> None:
        if not self._steps:
            return
        tool = self._steps[0].tool
        succeeded = succeeded_tool(info)
        problems = info.get("dependency_problems")
        if succeeded is not None:
            # The plan may know the tool by an alias.
            self._succeeded |= {tool, succeeded}
        elif "tool_info" in info:
            self._dependencies = {**self._dependencies, tool: tuple(info["tool_info"]["dependencies"])}
        elif problems:
            self._failed_for_dependencies = tool
            if self._ask == "never":
                needed = (*problems.get("not_executed", ()), *problems.get("failed", ()))
                self._dependencies = {**self._dependencies, tool: needed}
        elif info.get("event") == "rejected":
            self._mend_rejected()
        elif "error_kind" in info or self._can_wait:
            self._heed(info)

    def _heed(self, info: Info) -> None:
        """Do what an error asks for: change a parameter, run what opens the tool first, or wait."""
        step, kind = self._steps[0], info.get("error_kind")
        self._waits = self._can_wait and info.get("execution", {}).get("error") in _UNAVAILABLE
        known = self._library.resolve(step.tool)
        if kind == "input" and known is not None:
            parameters, number = self._parameters(step) or {}, self._corrections.get(step.tool, 0)
            changed = changed_parameters(self._library[known], parameters, number)
            self._corrections = {**self._corrections, step.tool: number + 1}
            self._steps = (replace(step, parameters=changed), *self._steps[1:])
            self._tried = self._steps[0] if self._tried is step else self._tried
        elif kind == "access":
            missing = [name for name in info.get("opened_by", ()) if name not in self._succeeded | self._left]
            self._steps = (*(PlannedStep(name) for name in missing[:1] if name != step.tool), *self._steps)

    def _next(self, info: Info) -> str:
        self._steps = tuple(step for step in self._steps if step.tool not in self._succeeded)
        self._left |= {step.tool for step in self._leave()}
        if not self._steps or is_closing(info):
            return super()._next(info)
        if self._waits:
            self._waits = False
            return WAIT_TEXT
        tool = self._steps[0].tool
        if tool not in self._mended and (self._failed_for_dependencies == tool or self._mends_in_advance(tool)):
            if tool not in self._dependencies and tool not in self._asked:
                self._asked |= {tool}
                return info_message(tool)
            self._put_missing_first(tool)
            return self._next(info)
        return self._call(self._steps[0])

    def _mends_in_advance(self, tool: str) -> bool:
        # A plan that says what some of its steps require is believed about the others.
        return self._ask == "before" and (tool in self._dependencies or not self._plan_states_requirements)

    def _put_missing_first(self, tool: str) -> None:
        self._mended |= {tool}
        done = self._succeeded | self._mended | self._left
        missing = [name for name in self._dependencies.get(tool, ()) if name not in done]
        planned = {step.tool: step for step in self._steps}
        first = (planned.get(name, PlannedStep(name)) for name in missing)
        self._steps = (*first, *(step for step in self._steps if step.tool not in missing))

    def _parameters(self, step: PlannedStep) -> Mapping[str, Any] | None:
        return step.parameters if step.tool in self._corrections else super()._parameters(step)

    def _mend_rejected(self) -> None:
        """After a refused call: try it without parameters; if it had none, the tool does not exist and is left out."""
        step, *others = self._steps
        again = (replace(step, parameters=None),) if step.parameters and self._pass_parameters else ()
        self._steps = (*again, *others)


def ordered_steps(work_order: str) -> list[str]:
    """Return the clauses of a work order that tell somebody to do something; all clauses if none seems to."""
    every = clauses(work_order)
    steps = [clause for clause in every if _is_order(clause)]
    return steps or every


@functools.cache
def _work_verbs() -> frozenset[str]:
    """Return the verbs that work on data is ordered with.

    A clause that begins with one is taken for a step; everything else (who asks, why, until when, where things lie) is
    taken for background.
    """
    return frozenset(resources.files(__package__).joinpath("work_verbs.txt").read_text(encoding="utf-8").split())


def _is_order(clause: str) -> bool:
    words = ["".join(filter(str.isalpha, word)).lower() for word in clause.split()]
    verb = next((word for word in words if word and word not in _POLITE_WORDS), "")
    return verb in _work_verbs()
