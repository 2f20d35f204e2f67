"""Turning references into values: one call of the model, and exactly one more where its reply is of no use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from resilisim.chat import ChatMessage
from resilisim.policies.llm.plan_execute.plan import ErrorKind, PlanStep, StepOutcome
from resilisim.policies.llm.plan_execute.references import Data, fill_in, references_in
from resilisim.policies.llm.reading import Unreadable, excerpt, read_json, visible
from resilisim.policies.llm.run import AgentRun
from resilisim.policies.llm.templates import PromptTexts

ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Why references could not be turned into values.

    Attributes:
        kind: Which kind of failure it is.
        problem: What is wrong, in a few words.
        excerpt: What the model wrote.
    """

    kind: ErrorKind
    problem: str
    excerpt: str


async def resolve(
    run: AgentRun,
    prompts: PromptTexts,
    step: PlanStep,
    needed: Mapping[int, StepOutcome],
    longest_result: int,
) -> dict[str, Any] | Unresolved:
    """Return a step's arguments with values in place of references.

    Args:
        run: The episode.
        prompts: Holds `resolver` and `resolver_again`.
        step: The step, with references in its arguments.
        needed: The steps that they name, all successful.
        longest_result: Characters of a result that the model is shown.
    """
    results = "\n\n".join(f"Result of step {n}:\n{excerpt(needed[n].result, longest_result)}" for n in sorted(needed))
    arguments = json.dumps(dict(step.arguments), ensure_ascii=False)
    request = prompts.fill("resolver", task=step.task, tool=step.tool or "", arguments=arguments, results=results)
    messages = [ChatMessage("user", request)]
    data = Data((run.task,), (run.task, *(outcome.result for outcome in needed.values())))
    for attempt in range(1, ATTEMPTS + 1):
        reply = await run.ask("extractor", messages)
        read = _read(reply.text, step, data)
        if not isinstance(read, Unresolved):
            run.note("resolution", "extractor", f"step {step.number}", step=step.number, arguments=read)
            return read
        told = run.unreadable("extractor", reply, Unreadable(read.problem, read.excerpt))
        read = replace(read, problem=told.problem)
        if attempt == ATTEMPTS:
            break
        run.count("resolution_retries")
        again = prompts.fill("resolver_again", problem=read.problem)
        words = excerpt(visible(reply.text), 2_000) or "(an empty reply)"
        messages = [*messages, ChatMessage("assistant", words), ChatMessage("user", again)]
    return read


def _read(text: str, step: PlanStep, data: Data) -> dict[str, Any] | Unresolved:
    """Read the values that a reply gives; a reply without any is another failure than one that cannot be read."""
    words = excerpt(visible(text))
    read = read_json(text)
    if isinstance(read, Unreadable):
        return Unresolved("resolution_unreadable", read.problem, words)
    if not read:
        return Unresolved("resolution_empty", "the object is empty", words)
    # Some models put the arguments under that name, as in a call.
    inner = read.get("arguments")
    if isinstance(inner, dict) and "arguments" not in step.arguments:
        read = inner
    filled, problems = fill_in(dict(step.arguments), read, data)
    if not problems and references_in(filled, data.values):
        problems = ["a parameter's name: unresolved"]
    if not problems:
        return dict(filled)
    kind: ErrorKind = "resolution_incomplete"
    if all(problem.endswith(": empty") for problem in problems):
        kind = "resolution_empty"
    return Unresolved(kind, "values of " + ", ".join(problems), words)
