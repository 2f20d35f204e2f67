"""How the questions of knowledge worlds are answered: reference calls, and where in their outputs the answer stands."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pydantic_core

from resilisim.errors import InvalidInputError
from resilisim.tasks import Task
from resilisim.worlds import World
from resilisim.worlds.base import ReferenceCall, called, reference_calls, resolve_parameters
from tests.doubles.reading import Reader

UNKNOWN = "unknown"
REFERENCE = re.compile(r"\$\{([^{}]+)\}")
# What formulas of Calculate mean in Python.
_FUNCTIONS = """\
def listed(values): return values[0] if len(values) == 1 and isinstance(values[0], list) else list(values)
def mean(*values): return sum(listed(values)) / len(listed(values))
def count(*values): return len(listed(values))
def median(*values):
    ordered = sorted(listed(values)); middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
"""


@dataclass(frozen=True, slots=True)
class AtPath:
    """A value that stands at a path of an output, "rows.0.7"."""

    path: str

    def read(self, text: str) -> Any:
        """Return the value as a shown output has it; None if what is shown does not hold it, or only a part."""
        try:
            shown, whole = json.loads(text), True
        except ValueError:
            whole = False
        try:
            shown = shown if whole else pydantic_core.from_json(text, allow_partial=True)
            value = resolve_parameters({"it": f"${{it.{self.path}}}"}, {"it": shown})["it"]
        except (ValueError, InvalidInputError):
            return None
        return value if whole or not isinstance(value, list | dict) else None

    def code(self, variable: str) -> str:
        """Return Python for the value, the output being a variable."""
        return variable + "".join(f"[{int(part) if part.isdigit() else part!r}]" for part in self.path.split("."))


@dataclass(frozen=True, slots=True)
class Words:
    """Words that stand on a page: a sentence that says what is asked, or the title of a page to look at next."""

    words: str

    def read(self, text: str) -> Any:
        """Return the words if they stand in what is shown."""
        return self.words if self.words in text or json.dumps(self.words, ensure_ascii=False)[1:-1] in text else None

    def code(self, variable: str) -> str:
        """Return Python that finds the words by how they begin and end."""
        return f"look({variable}, {self.words[:24]!r}, {self.words[-16:]!r}, {len(self.words)})"


class Solution:
    """How a question is answered: its calls, what to take from the output of each, and the answer from all that.

    What is taken is known by names, "found.rows.0.7" or "2.sentence_1".
    """

    def __init__(self, world: World, task: Task) -> None:
        self.world = world
        self.task = task
        self.question = words_of(task.description)
        self.calls = reference_calls(task)

    @functools.cached_property
    def outputs(self) -> tuple[Mapping[str, Any], ...]:
        """What the calls return, by which plans are made; answers never come from here."""
        workspace, outputs = self.world.open(self.task, 0), []
        results: dict[str, Any] = {}
        try:
            for call in self.calls:
                outputs.append(called(workspace, call.tool, resolve_parameters(call.parameters, results)))
                results[call.save or ""] = outputs[-1]
        finally:
            workspace.close()
        return tuple(outputs)

    @functools.cached_property
    def programs(self) -> tuple[ReferenceCall, ...]:
        """The calls; a page whose title an earlier one tells is searched for by what was found."""
        told = {name.split(".", 1)[1]: name for taken in self.wanted for name in taken}
        return tuple(
            ReferenceCall(call.tool, {"query": f"${{{told[f'page_{place}']}}}"}) if f"page_{place}" in told else call
            for place, call in enumerate(self.calls)
        )

    @functools.cached_property
    def wanted(self) -> tuple[dict[str, AtPath | Words], ...]:
        """What to take from the output of each call, by name."""
        evidence = self.task.metadata.get("evidence")
        if evidence is None:
            used = json.dumps([self.answer_from["value"], *(call.parameters for call in self.calls)])
            names = dict.fromkeys(REFERENCE.findall(used))
            return tuple(
                {name: AtPath(name.split(".", 1)[1]) for name in names if call.save and name.split(".")[0] == call.save}
                for call in self.calls
            )
        taken: list[dict[str, AtPath | Words]] = [
            {f"{place}.sentence_{number}": Words(sentence) for number, sentence in enumerate(sentences)}
            for place, sentences in enumerate(evidence)
        ]
        for place, call in enumerate(self.calls):
            title = Words(call.parameters["query"])
            if title.read(self.task.description) is None:
                first = next(n for n, output in enumerate(self.outputs) if title.read(json.dumps(output)) is not None)
                taken[first][f"{first}.page_{place}"] = title
        return tuple(taken)

    @functools.cached_property
    def groups(self) -> tuple[tuple[int, int], ...]:
        """Calls that belong together, first and last: a list goes from one to the other without being told."""
        groups: list[tuple[int, int]] = []
        for place, call in enumerate(self.programs):
            first = place
            for name in REFERENCE.findall(json.dumps(call.parameters)):
                source = self.source(name)
                if isinstance(self.value(name), list):
                    first = min(first, source)
            while groups and groups[-1][1] >= first:
                first = min(first, groups.pop()[0])
            groups.append((first, place))
        return tuple(groups)

    def source(self, name: str) -> int:
        """Return the place of the call that a value is taken from."""
        return next(place for place, taken in enumerate(self.wanted) if name in taken)

    def value(self, name: str) -> Any:
        """Return what a value will be, by which plans are made."""
        place = self.source(name)
        return self.wanted[place][name].read(json.dumps(self.outputs[place], ensure_ascii=False))

    @property
    def evidence(self) -> list[str]:
        """Names of the values that the answer rests on."""
        if "evidence" in self.task.metadata:
            return [name for taken in self.wanted for name in taken if ".sentence_" in name]
        return REFERENCE.findall(self.answer_from["value"])

    @property
    def answer_from(self) -> Mapping[str, Any]:
        """How the answer is made of values; of a world that cannot know it beforehand the answer itself says so."""
        told = self.task.metadata
        return {"value": told["answers"][0], "pattern": None, **told.get("answer_from", {})}

    def answer(self, values: Mapping[str, Any]) -> str:
        """Return the answer that follows from values, UNKNOWN if some are missing that it rests on."""
        if any(values.get(name) is None for name in self.evidence):
            return UNKNOWN
        if "evidence" in self.task.metadata:
            right = {name: one.words for taken in self.wanted for name, one in taken.items() if isinstance(one, Words)}
            wrong = [values[name] for name in self.evidence if values[name] != right[name]]
            return str(wrong[0] if wrong else self.task.metadata["answers"][0])
        source = self.answer_from
        text = as_text(filled(source["value"], values))
        found = re.search(source["pattern"], text) if source["pattern"] else None
        return text.strip() if not source["pattern"] else found[1] if found else UNKNOWN

    def take(self, place: int, shown: str, reader: Reader) -> dict[str, Any]:
        """Return what a call's shown output gives."""
        found = {name: reader.read(name, one, shown)[0] for name, one in self.wanted[place].items()}
        return {name: value for name, value in found.items() if value is not None}


class Missing(Exception):
    """A value is not there that a call needs."""


def filled(template: Any, values: Mapping[str, Any]) -> Any:
    """Return parameters of a call with values in their places."""
    if isinstance(template, Mapping):
        return {name: filled(value, values) for name, value in template.items()}
    if isinstance(template, list):
        return [filled(item, values) for item in template]
    if not isinstance(template, str):
        return template
    if any(values.get(name) is None for name in REFERENCE.findall(template)):
        raise Missing(template)
    whole = REFERENCE.fullmatch(template)
    return values[whole[1]] if whole else REFERENCE.sub(lambda found: as_text(values[found[1]]), template)


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def as_code(template: Any, expressions: Mapping[str, str]) -> str:
    """Return Python for parameters, names of values being expressions."""
    if isinstance(template, Mapping):
        return "{" + ", ".join(f"{name!r}: {as_code(value, expressions)}" for name, value in template.items()) + "}"
    if isinstance(template, list):
        return f"[{', '.join(as_code(item, expressions) for item in template)}]"
    if not isinstance(template, str) or not REFERENCE.search(template):
        return repr(template)
    whole = REFERENCE.fullmatch(template)
    if whole:
        return expressions[whole[1]]
    parts = REFERENCE.split(template)
    written = [repr(part) if n % 2 == 0 else f"as_text({expressions[part]})" for n, part in enumerate(parts)]
    return " + ".join(part for part in written if part != "''")


def computed(call: ReferenceCall, expressions: Mapping[str, str]) -> str:
    """Return Python that prints what Calculate or PythonInterpreter would bring."""
    if call.tool == "Calculate":
        formula = REFERENCE.sub(lambda found: expressions[found[1]], call.parameters["formula"])
        return f"{_FUNCTIONS}print({formula})"
    given = call.parameters.get("variables", {})
    return "".join(f"{name} = {as_code(value, expressions)}\n" for name, value in given.items()) + str(
        call.parameters["code"]
    )


def words_of(text: str) -> str:
    return " ".join(text.split())
