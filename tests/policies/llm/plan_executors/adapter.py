"""What the requirements suite needs to know about an agent that executes plans.

`test_requirements.py` says, in words that fit every such agent, what the plan is and how the world answers. An adapter
writes that plan in its agent's own format, scripts the model's other replies, plays, and reports what happened. To take
part, an agent's folder of tests has a module `requirements_adapter.py` with a list `ADAPTERS` of objects that follow
`Adapter`, and `test_requirements.py` names the module.

How an adapter plays a `Scenario`:

- The tools are `TOOLS`, answered by `toolbox_of(scenario)`, which records every call that really reaches a tool.
- The planner's (scripted) reply is the plan with the steps of the scenario, in their order. `Ref(1)` anywhere in the
  arguments is written as a reference to the result of step 1 in the agent's own notation. Arguments that are a `Raw`
  text are put into the plan as they stand, so that they cannot be parsed.
- Every step's own work goes well unless the scenario says otherwise: a step that calls a tool has the tool's text as
  its result (for agents that extract, the extraction finds that text as a string, with full confidence).
- Where the agent asks a model to turn references into values, the replies to these calls are `scenario.resolutions` if
  there are any; otherwise a right one, with the texts that the tools gave.
- A step without a tool is worked out by a model, if the agent does so; that model's reply is `scenario.conclusion`.
- After a failed step the agent goes on to the next steps of the scenario, as far as it ever does: the (scripted)
  replanner answers with the rest of the plan as it is. At the end of the plan it gives up, or takes the last result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from resilisim.chat import ChatRequest
from resilisim.policies.llm.tools import ToolResult
from tests.policies.llm.toolboxes import ScriptedToolbox, spec

FETCH = spec("fetch", "key")
STORE = spec("store", "place", what="object")
TOOLS = (FETCH, STORE)

# The requirements, as an adapter names those that concern its agent. A number is that of `test_requirements.py`.
REQUIREMENTS = {
    "1-arguments": "arguments that cannot be parsed are a typed error with the raw words",
    "2-nested": "references are found and resolved at any depth; a tool receives no unresolved one",
    "3-failed": "a reference to a failed step makes no call, and the error names that step",
    "3-missing": "a reference to a step that does not exist makes no call, and the error names that step",
    "3-later": "a reference to a later step makes no call, and the error names that step",
    "4-kinds": "a resolution that cannot be parsed is another failure than a valid empty one; neither makes a call",
    "5-once": "such a resolution is asked for again exactly once, counted, and then is a typed failure",
    "6-no-tool": "a step without a tool never returns what the plan expects of it",
    "6-error-body": "a JSON body with an error is an error",
    "6-braces": "a question with braces is not expanded by templating",
}


@dataclass(frozen=True)
class Ref:
    """A reference to the result of a step, by its place in the plan, from 1."""

    step: int


@dataclass(frozen=True)
class Raw:
    """Arguments as a model wrote them: no JSON."""

    text: str


@dataclass(frozen=True)
class Step:
    """A step of the plan: its tool (None for none), what to pass, and what the plan expects it to bring."""

    tool: str | None
    arguments: Mapping[str, Any] | Raw = field(default_factory=dict)
    expected: str = "as planned"


@dataclass(frozen=True)
class Scenario:
    """A plan, and how tools and model answer."""

    steps: tuple[Step, ...]
    answers: Mapping[str, tuple[str | ToolResult, ...]] = field(default_factory=dict)
    resolutions: tuple[str, ...] = ()
    conclusion: str = "I have no idea."
    task: str = "Fetch and store."


@dataclass(frozen=True)
class StepFailure:
    """A step that failed: its place in the plan, the kind of failure, the message, and the words in question."""

    step: int
    kind: str
    message: str
    excerpt: str = ""


@dataclass(frozen=True)
class Played:
    """What happened: calls that reached a tool, failed steps in order, results of the others by their places."""

    answer: str | None
    calls: list[tuple[str, dict[str, Any]]]
    failures: list[StepFailure]
    results: dict[int, str]
    requests: list[ChatRequest]
    resolution_requests: int  # how many of them were to turn references into values
    counters: Mapping[str, int]


class Adapter(Protocol):
    """One agent that executes plans."""

    name: str
    applies: frozenset[str]  # keys of REQUIREMENTS
    retries_counter: str  # counter of repeated resolutions; empty if the agent asks no model to resolve

    def step_name(self, place: int) -> str:
        """What messages call the step at a place of the plan, such as "step 1" or "T1"."""
        ...

    def looks_like_reference(self, text: str) -> bool:
        """Whether a text holds a reference in the agent's notation."""
        ...

    def play(self, scenario: Scenario) -> Played:
        """Play a scenario, see above."""
        ...


def toolbox_of(scenario: Scenario) -> ScriptedToolbox:
    """The tools of a scenario."""
    return ScriptedToolbox(TOOLS, {tool.name: scenario.answers.get(tool.name, ()) for tool in TOOLS})


def with_references(value: Any, write: Any) -> Any:
    """Arguments of a step in which every `Ref` is replaced by what `write(place)` returns."""
    if isinstance(value, Ref):
        return write(value.step)
    if isinstance(value, Mapping):
        return {name: with_references(entry, write) for name, entry in value.items()}
    if isinstance(value, list):
        return [with_references(entry, write) for entry in value]
    return value
