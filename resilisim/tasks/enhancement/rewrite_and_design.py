"""What a model is asked about a task, and what an answer is worth: the modes `rewrite` and `design`.

`rewrite` wants a better description for a task whose tools, inputs and outputs stay as they are; `design` a new task of
the same kind and setting, its tools chosen by the model among retrieved ones. The texts are packaged Markdown files
with `${placeholders}`. A description has to lead a search to every required tool in its turn, whoever wrote it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from resilisim.chat import ChatMessage
from resilisim.chat.checked_answers import CORRECTION, RefusedAnswer, check_plain_text
from resilisim.chat.json_answers import json_object_in
from resilisim.inputs import json_problem, shown
from resilisim.provenance import canonical_json, content_hash
from resilisim.tasks.matching import match_step
from resilisim.tasks.task import TEMPLATE_OF_TYPE, Task, TaskTemplate, instance_id_of, sorted_by_dependencies
from resilisim.tasks.wording import SEARCH_SIZE, Searcher, clauses, solving_clauses
from resilisim.tool_library.differentiation import tools_named_in
from resilisim.tool_library.library import ToolLibrary
from resilisim.tool_library.parameters import check_parameters
from resilisim.tool_library.retrieval import Retriever
from resilisim.tool_library.tool import Parameter, Tool

# Why an answer was refused; results count them by these words.
TASK_REFUSALS = (
    "cut_off",  # the model reached its limit of tokens
    "not_json",  # no answer, no JSON object, or one without the fields that were asked for
    "wrong_fields",  # a field of the wrong type
    "too_long",
    "not_text",  # control characters, halves of characters
    "markup",  # tags, which could pass for the protocol's
    "names_tool",  # a tool's name stands in the description, so that nothing is left to be found
    "unchanged",
    "lost_value",  # a path, an address or a number of the task's data no longer stands in the description
    "not_solvable",  # retrieval does not find a required tool by the description, or not in the required order
    "unknown_tool",
    "wrong_number_of_tools",
    "wrong_steps",  # the tools do not carry out the steps of such a task
    "wrong_inputs",
    "wrong_outputs",
    "duplicate",  # the same task was designed before
)
SHORTEST_LIMIT = 1500  # characters that any description may have
LENGTH_FACTOR = 2  # times the original's length; a longer text says something else
PREREQUISITE = "prerequisite"  # what a tool that others depend on is called among the operations
FREE_STEP = "work"  # the one step of a task whose type has no template
MOST_FREE_TOOLS = 7  # as many as any template allows
# What a design holds: of each field its type, and what a refusal calls that.
FIELDS: Mapping[str, tuple[type, str]] = {
    "description": (str, "text"),
    "tools": (list, "list of names"),
    "inputs": (dict, "object"),
    "expected_outputs": (dict, "object"),
}
LONGEST_DATA = 20_000  # characters of the JSON of inputs, and of expected outputs
MOST_PROBLEMS_TOLD = 3


@functools.cache
def template(name: str) -> str:
    """Return a packaged template."""
    folder = resources.files("resilisim.tasks.enhancement").joinpath("templates")
    return folder.joinpath(name).read_text(encoding="utf-8")


def filled(name: str, values: Mapping[str, object]) -> str:
    """Return a template with its placeholders replaced; what stands in the values is not looked at again."""
    return string.Template(template(name)).substitute(values).strip()


def question(mode: str, rules: Mapping[str, object], facts: Mapping[str, object]) -> tuple[ChatMessage, ...]:
    """Return the first messages of a conversation: the rules of a mode, then the facts of one task."""
    return (
        ChatMessage("system", filled(f"{mode}.system.md", rules)),
        ChatMessage("user", filled(f"{mode}.user.md", facts)),
    )


def templates_hash(mode: str) -> str:
    """Return the hash of the texts of a mode: other texts are other questions."""
    return content_hash([*(template(f"{mode}.{part}.md") for part in ("system", "user")), CORRECTION.template])


class RewriteMode:
    """Asks for a better description and accepts one that needs the same tools in the same order."""

    name = "rewrite"

    def __init__(self, library: ToolLibrary, searcher: Searcher) -> None:
        self._library = library
        self._searcher = searcher

    def ask(self, task: Task) -> tuple[ChatMessage, ...]:
        """Return the question for a task."""
        steps = [purpose(self._library[name]) for name in task.required_tools]
        facts = {
            "description": task.description,
            "steps": "\n".join(f"{place}. {step}." for place, step in enumerate(steps, start=1)),
            "values": "\n".join(f"- {value}" for value in kept_values(task)) or "- (none)",
        }
        return question(self.name, {"limit": longest_description(task.description)}, facts)

    def read(self, task: Task, answer: str) -> Task:
        """Return the task with the description that an answer holds; raises `RefusedAnswer` where none can be used."""
        description = _fields_in(answer, ("description",))["description"]
        _check_text(description, task.description, self._library, kept_values(task))
        _check_order(description, task.required_tools, self._library, self._searcher)
        return dataclasses.replace(task, description=description)


def kept_values(task: Task) -> tuple[str, ...]:
    """Return the values of a task's data that its description says and that a rewritten one has to say as well."""
    values = dict.fromkeys((*identifying_values(dict(task.inputs)), *identifying_values(dict(task.expected_outputs))))
    return tuple(value for value in values if value in task.description)


class DesignMode:
    """Asks for a task and accepts one that fits the tools that it takes and can be solved from its text."""

    name = "design"

    def __init__(self, library: ToolLibrary, retriever: Retriever) -> None:
        self._library = library
        self._retriever = retriever
        self._brief_of_type: dict[str, DesignBrief] = {}

    def ask(self, task: Task) -> tuple[ChatMessage, ...]:
        """Return the question whose answer is to stand in a task's place."""
        brief = self._brief(task)
        rules = {
            "num_tools": brief.number_in_words,
            "further_tool": brief.further_tool,
            "limit": longest_description(task.description),
        }
        facts = {
            "task_type": task.task_type.replace("_", " "),
            "complexity": task.complexity,
            "steps": "\n".join(
                f"{place}. {step.operation} ({step.about}): {', '.join(step.tools)}"
                for place, step in enumerate(brief.steps, start=1)
            ),
            "tools": "\n".join(json.dumps(_card(name, self._library), ensure_ascii=False) for name in brief.tools),
            "description": task.description,
        }
        return question(self.name, rules, facts)

    def read(self, task: Task, answer: str) -> Task:
        """Return the task that an answer designs; raises `RefusedAnswer` where it cannot be used."""
        design = _fields_in(answer, tuple(FIELDS))
        description, inputs, outputs = design["description"], design["inputs"], design["expected_outputs"]
        brief = self._brief(task)
        names = self._chosen_tools(design["tools"], brief)
        operations = carried_operations(names, brief, self._library)
        if operations is None:
            steps = ", ".join(step.operation for step in brief.steps)
            raise RefusedAnswer("wrong_steps", f"the tools do not carry out one step each; the steps are {steps}")
        problems = check_parameters(self._library[names[0]], inputs, "strict")
        if problems:  # the inputs are not a whole call of the first tool
            raise RefusedAnswer("wrong_inputs", "; ".join(problems[:MOST_PROBLEMS_TOLD]))
        _check_outputs(self._library[names[-1]], outputs)
        told_names = tuple(
            value for item in inputs.values() if isinstance(item, str) for value in identifying_values(item)
        )
        _check_text(description, task.description, self._library, told_names)
        _check_order(description, names, self._library, self._retriever)
        kept = {key: value for key, value in task.metadata.items() if key != "layout"}  # none of ours was filled in
        return dataclasses.replace(
            task,
            instance_id=instance_id_of(task.task_type, names, inputs, outputs, description),
            description=description,
            original_description=description,
            inputs=inputs,
            expected_outputs=outputs,
            required_tools=names,
            metadata={**kept, "operations": operations, "inputs_generated_from": "llm"},
        )

    def _brief(self, task: Task) -> DesignBrief:
        template = TEMPLATE_OF_TYPE.get(task.task_type)
        if template is None:
            return free_brief(task, self._retriever)
        if template.task_type not in self._brief_of_type:
            brief = template_brief(template, self._library, self._retriever)
            self._brief_of_type[template.task_type] = brief
        return self._brief_of_type[template.task_type]

    def _chosen_tools(self, listed: list[str], brief: DesignBrief) -> tuple[str, ...]:
        """Return the tools by their names, in an order that respects their dependencies."""
        names: list[str] = []
        for text in listed:
            name = self._library.resolve(text)
            if name is None or name not in brief.tools:
                raise RefusedAnswer("unknown_tool", f"{shown(text)} is none of the proposed tools")
            if name in names:
                raise RefusedAnswer("unknown_tool", f"the tool {name!r} stands twice among the tools")
            names.append(name)
        if not brief.fewest <= len(names) <= brief.most:
            detail = f"{len(names)} tools; expected {brief.number_in_words}"
            raise RefusedAnswer("wrong_number_of_tools", detail)
        return sorted_by_dependencies(names, self._library)


def _fields_in(answer: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Return these fields of an answer's JSON object, each of its type, the description as it will stand."""
    fields = json_object_in(answer, names)
    if isinstance(fields, str):
        raise RefusedAnswer("not_json", fields)
    for field in names:
        value, (kind, name) = fields[field], FIELDS[field]
        is_named = kind is not list or not isinstance(value, list) or all(isinstance(item, str) for item in value)
        if not (isinstance(value, kind) and is_named):
            raise RefusedAnswer("wrong_fields", f"{field!r} is no {name}")
        problem = json_problem(value) if kind is dict else None
        if kind is dict and problem is None and len(canonical_json(value)) > LONGEST_DATA:
            problem = f"more than {LONGEST_DATA:,} characters"
        if problem is not None:
            raise RefusedAnswer("wrong_fields", f"{field!r} cannot be used: {problem}")
    description = fields["description"].replace("\r\n", "\n").replace("\r", "\n").strip()
    return {**fields, "description": description}


def _check_outputs(tool: Tool, outputs: Mapping[str, Any]) -> None:
    """Refuse expected outputs that are nothing that the last tool returns when all went well."""
    from jsonschema import Draft202012Validator  # a tenth of a second, and only designs need it

    types = {value.name: value.type for value in tool.returns}
    known = ", ".join(types)
    problem = None if outputs else f"no expected outputs; the tool {tool.name!r} returns {known}"
    for name, value in outputs.items():
        if name not in types:
            problem = f"the tool {tool.name!r} returns no {shown(name)}; expected some of {known}"
        elif not Draft202012Validator({"type": types[name]}).is_valid(value):
            problem = f"the expected output {name!r} is {shown(value)}; expected {types[name]}"
        if problem is not None:
            break
    if problem is None and outputs.get("success", True) is not True:
        problem = "the expected output 'success' is not true"
    if problem is not None:
        raise RefusedAnswer("wrong_outputs", problem)


@dataclass(frozen=True, slots=True)
class BriefStep:
    """One step: its operation, what it is about, and the tools retrieved for it, nearest first."""

    operation: str
    about: str
    tools: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DesignBrief:
    """What there is to choose from: the skeleton of the task's type, and how many tools there may be."""

    steps: tuple[BriefStep, ...]
    tools: tuple[str, ...]  # every tool that may be chosen, none twice
    fewest: int
    most: int
    has_template: bool  # the type says what the steps are; if not, any of the tools does any work
    repeats_last: bool  # a tool beyond the steps is a second one of the last (else: one that others depend on)

    @property
    def number_in_words(self) -> str:
        """How many tools may be chosen, for a reader."""
        return str(self.fewest) if self.fewest == self.most else f"{self.fewest} to {self.most}"

    @property
    def further_tool(self) -> str:
        """What a tool beyond the steps may be, for a reader."""
        if not self.has_template:
            return "Any of the tools may be taken."
        if self.most <= len(self.steps):
            return "There is no tool beyond the steps."
        if self.repeats_last:
            return f"A tool beyond the steps carries out a second time what {self.steps[-1].operation!r} asks for."
        return "A tool beyond the steps is one that another chosen tool depends on."


def template_brief(template: TaskTemplate, library: ToolLibrary, retriever: Retriever) -> DesignBrief:
    """Return the brief of all tasks of a template."""
    steps = tuple(
        BriefStep(step.operation, step.query, tuple(match_step(step, library, retriever))) for step in template.steps
    )
    most = max(template.num_tools)
    repeats_last = template.steps[-1].semantic_type == "processors"
    names = dict.fromkeys(name for step in steps for name in step.tools)
    if most > len(steps) and not repeats_last:
        names |= dict.fromkeys(library.closure(tuple(names)))
    return DesignBrief(steps, tuple(names), min(template.num_tools), most, True, repeats_last)


def free_brief(task: Task, retriever: Retriever) -> DesignBrief:
    """Return the brief of a task whose type has no template: what retrieval finds for its description's clauses."""
    hits = retriever.search_many(clauses(task.description), SEARCH_SIZE)
    names = tuple(dict.fromkeys(hit.name for row in hits for hit in row)) or task.required_tools
    most = min(len(names), max(MOST_FREE_TOOLS, len(task.required_tools)))
    return DesignBrief((BriefStep(FREE_STEP, "whatever the setting calls for", names),), names, 1, most, False, False)


def carried_operations(names: Sequence[str], brief: DesignBrief, library: ToolLibrary) -> list[str] | None:
    """Return the operation of each tool if each has a step of its own or is of use beyond them, else None."""
    if not brief.has_template:
        return [FREE_STEP for _ in names]
    fitting = [set(step.tools) for step in brief.steps]
    operations = [step.operation for step in brief.steps]
    for _ in range(len(names) - len(brief.steps)):
        fitting.append(set(brief.steps[-1].tools) if brief.repeats_last else _needed_by_others(names, library))
        operations.append(operations[len(brief.steps) - 1] if brief.repeats_last else PREREQUISITE)
    holder: dict[int, str] = {}
    for name in names:
        if not _place(name, fitting, holder, set()):
            return None
    place_of = {name: place for place, name in holder.items()}
    return [operations[place_of[name]] for name in names]


def _place(name: str, fitting: Sequence[set[str]], holder: dict[int, str], tried: set[int]) -> bool:
    """Find a place for a tool, moving others where that helps (an augmenting path of a bipartite matching)."""
    for place, fits in enumerate(fitting):
        if name in fits and place not in tried:
            tried.add(place)
            if place not in holder or _place(holder[place], fitting, holder, tried):
                holder[place] = name
                return True
    return False


def _needed_by_others(names: Sequence[str], library: ToolLibrary) -> set[str]:
    return {name for other in names for name in library.closure((other,)) if name != other}


def _card(name: str, library: ToolLibrary) -> dict[str, Any]:
    """Return all of a tool that a design has to fit."""
    tool = library[name]
    return {
        "name": tool.name,
        "purpose": purpose(tool),
        "depends_on": list(library.dependencies(tool.name)),
        "required_inputs": {entry.name: _told(entry) for entry in tool.parameters if entry.required},
        "optional_inputs": {entry.name: _told(entry) for entry in tool.parameters if not entry.required},
        "outputs": {value.name: value.type for value in tool.returns},
    }


def _told(parameter: Parameter) -> str:
    """Return type, meaning and limits of a parameter in one line; prompts are paid by length."""
    limits = json.dumps(dict(parameter.constraints), ensure_ascii=False) if parameter.constraints else ""
    return " ".join(part for part in (f"{parameter.type}.", parameter.description, limits) if part)


def longest_description(original: str) -> int:
    """Return how many characters a description may have that stands for another one."""
    return max(SHORTEST_LIMIT, LENGTH_FACTOR * len(original))


def _check_text(description: str, original: str, library: ToolLibrary, kept_values: Sequence[str]) -> None:
    """Refuse a description that cannot be used whatever it asks for, names a tool anew or lacks a kept value."""
    check_plain_text(description, "the description", longest_description(original))
    if " ".join(description.split()) == " ".join(original.split()):
        raise RefusedAnswer("unchanged", "the description is the same as before")
    for name in tools_named_in(description, library):
        if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", original, re.IGNORECASE):
            raise RefusedAnswer("names_tool", f"the description names the tool {name!r}; say what it does instead")
    for value in kept_values:
        if value.lower() not in description.lower():
            detail = f"the description lacks {value!r}, which has to stand in it unchanged"
            raise RefusedAnswer("lost_value", detail)


def _check_order(description: str, required_tools: Sequence[str], library: ToolLibrary, searcher: Searcher) -> None:
    """Refuse a description that does not lead a search to each required tool in its turn."""
    if solving_clauses(description, required_tools, searcher) is not None:
        return
    beginnings = (required_tools[:count] for count in range(1, len(required_tools) + 1))
    unsolved = next(len(own) for own in beginnings if solving_clauses(description, own, searcher) is None)
    after = f" after the one for step {unsolved - 1}" if unsolved > 1 else ""
    task = purpose(library[required_tools[unsolved - 1]])
    raise RefusedAnswer(
        "not_solvable",
        f"no sentence{after} says clearly enough that step {unsolved} has to be done ({task}); each step needs a "
        "sentence or a line of its own, in the order of the steps",
    )


def identifying_values(value: Any) -> Iterator[str]:
    """Yield the texts in JSON values that mean one thing only: no spaces, and a digit or one of / @ : _ in them."""
    if isinstance(value, str):
        if value and not any(c.isspace() for c in value) and any(c.isdigit() or c in "/@:_" for c in value):
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from identifying_values(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from identifying_values(item)


def purpose(tool: Tool) -> str:
    """Return in one sentence what a tool does."""
    return " ".join((tool.original_description or tool.description).split()).rstrip(".")
