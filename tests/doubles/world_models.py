"""A rule-based model that answers the questions of knowledge worlds, in the protocol of whichever agent asks.

It is asked as any endpoint is and reads nothing but the messages. What it knows beforehand is each question's reference
solution: which calls lead to the answer, and where in what they return it stands. Values it takes from what it is shown
alone, so an agent that loses them on the way gets no answer. One URL serves all agents and components; they are told
apart by the first lines of their prompts.

    python -m tests.doubles.world_models records-v1 pages-v1

prints a URL for --base-url and serves it until standard input ends.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from resilisim.policies.llm.templates import packaged_prompts
from resilisim.policies.registry import BUILT_IN_POLICIES, LLM_POLICIES
from resilisim.seeding import Draws
from resilisim.workflows.templating import escape_text
from resilisim.worlds import World, load_world
from tests.chat.loopback import Answer, LoopbackServer, Seen, completion
from tests.doubles.reading import SURE, Reader
from tests.doubles.world_solutions import (
    REFERENCE,
    UNKNOWN,
    AtPath,
    Missing,
    Solution,
    Words,
    as_code,
    as_text,
    computed,
    filled,
    words_of,
)

_LONG = 11_000  # characters of an output of which KPI-Chain's extractor sees pieces
_ORDER = re.compile(r"## Work order\n\n(.*?)\n\n## ", re.DOTALL)
_QUOTED = re.compile("«(.+?)»", re.DOTALL)
_CALLS = re.compile(r"Calls (\d+) to (\d+)")
_STORED = re.compile(r"in the variable (output_\d+)")
_COMPONENTS = ("system", "planner", "replanner", "executor", "extractor", "reasoner", "evaluator", "reflector")
# What finds a sentence on a page by how it begins and ends.
_LOOK = """\
def look(found, start, end, length):
    for page in found["pages"]:
        text = page["title"] + " " + page["text"]
        place = text.find(start)
        while place >= 0:
            if text[place:place + length].endswith(end):
                return text[place:place + length]
            place = text.find(start, place + 1)
"""
_COMPUTES = ("Calculate", "PythonInterpreter")  # what can as well be done in an agent's own Python


def _json_lines(text: str) -> Iterator[Mapping[str, Any]]:
    """Yield the objects that begin a line, or what is told after "Result: ", and whatever follows them there."""
    for line in text.splitlines():
        line = line.strip().removeprefix("Result: ").removeprefix("<|begin_search_result|>")
        if line.startswith("{"):
            try:
                found, _ = json.JSONDecoder().raw_decode(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                yield found


@functools.cache
def _components() -> dict[str, tuple[str, str]]:
    """Return (agent, component) by the first line of its prompt."""
    found: dict[str, tuple[str, str]] = {}
    for agent in LLM_POLICIES:
        texts = packaged_prompts(BUILT_IN_POLICIES[agent].partition(":")[0])
        for name in _COMPONENTS:
            if name in texts:
                found.setdefault(texts[name].partition("\n")[0], (agent, name))
    system_native = packaged_prompts(BUILT_IN_POLICIES["react"].partition(":")[0])["system_native"]
    return {**found, system_native.partition("\n")[0]: ("react", "system")}


class WorldModel:
    """Answers requests of agents about the questions of worlds.

    The model's name may end in a share, "competent:0.8": of that share of the questions, always the same, it gives the
    answer, of the others it says that it does not know it. "competent:reads=0.8" reads that share of what it looks for
    on pages right, and says how sure it is (`tests.doubles.reading`); an extractor that is asked again reads anew.

    Args:
        worlds: The worlds whose questions it knows.
    """

    def __init__(self, worlds: Sequence[World]) -> None:
        self._solutions: dict[str, Solution] = {}
        for world in worlds:
            for task in world.tasks():
                solution = Solution(world, task)
                self._solutions[solution.question] = solution
                self._solutions[words_of(escape_text(task.description))] = solution

    def __call__(self, seen: Seen) -> Answer:
        """Answer a request."""
        messages = [{**message, "content": message.get("content") or ""} for message in seen.body["messages"]]
        agent, component = _components()[messages[0]["content"].partition("\n")[0]]
        solution = self._solution(messages, agent, component)
        model = str(seen.body.get("model", ""))
        reader = _reader(model, solution, str(seen.body.get("seed")) if agent == "kpi-chain" else "")
        asked = _Request(agent, messages, solution, _knows(model, solution), reader)
        read = sum(len(message["content"]) for message in messages)
        if seen.body.get("tools"):
            name, arguments = asked.next_action()
            function = {"name": name, "arguments": json.dumps(arguments)}
            calls = [{"id": "c1", "type": "function", "function": function}]
            usage = _usage(read, len(str(function)))
            return completion(None, message={"tool_calls": calls}, finish_reason="tool_calls", usage=usage)
        text = _REPLIES[agent, component](asked)
        text = min((text.partition(stop)[0] for stop in seen.body.get("stop") or ()), key=len, default=text)
        return completion(text, usage=_usage(read, len(text)))

    def _solution(self, messages: Sequence[Mapping[str, Any]], agent: str, component: str) -> Solution:
        """Return the solution of the question that a request is about, as its messages say it."""
        if (agent, component) in (("kpi-chain", "extractor"), ("kpi-chain", "reasoner"), ("rp-react", "executor")):
            text = messages[1]["content"]
            if component == "extractor":
                text = text.rpartition("DESCRIPTION OF THE TASK")[2]
            if component == "reasoner":
                text = _yaml_in(text)["task_description"]
            quoted = _QUOTED.search(text)
        else:
            quoted = _ORDER.search("\n".join(message["content"] for message in messages[:2]))
        return self._solutions[words_of(quoted[1] if quoted else "")]


def _usage(read: int, written: int) -> dict[str, int]:
    """Return tokens for characters, four to one."""
    prompt, reply = -(-read // 4), -(-written // 4)
    return {"prompt_tokens": prompt, "completion_tokens": reply, "total_tokens": prompt + reply}


def _knows(model: str, solution: Solution) -> bool:
    _, colon, share = model.rpartition(":")
    return (
        not colon or "=" in share or Draws("benchmarks/world_models", model, solution.question).uniform() < float(share)
    )


def _reader(model: str, solution: Solution, attempt: str) -> Reader:
    _, reads, share = model.rpartition(":reads=")
    is_of_pages = "evidence" in solution.task.metadata
    return Reader(float(share), f"{model} {solution.question}", attempt) if reads and is_of_pages else Reader()


def _yaml_in(text: str) -> Any:
    return yaml.safe_load(text.partition("```yaml\n")[2].rpartition("```")[0])


def _to_yaml(value: Any) -> str:
    plain = json.loads(json.dumps(value))  # without anything that stands twice, which YAML would refer to
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100_000))


class _Request:
    """One request: who asks, what it holds, how the question is solved."""

    def __init__(
        self,
        agent: str,
        messages: Sequence[Mapping[str, Any]],
        solution: Solution,
        knows: bool = True,
        reader: Reader = Reader(),  # noqa: B008  (frozen)
    ) -> None:
        self.agent = agent
        self.messages = messages
        self.solution = solution
        self.knows = knows
        self.reader = reader
        self.first = str(messages[0]["content"])
        self.last = str(messages[-1]["content"])

    def answer(self, values: Mapping[str, Any]) -> str:
        """Return the answer."""
        return self.solution.answer(values) if self.knows else UNKNOWN

    def read(self, name: str, shown: str) -> tuple[Any, float]:
        """Return what a value is in a text, and how sure that is."""
        return self.reader.read(name, self.solution.wanted[self.solution.source(name)][name], shown)

    # What acts.

    def progress(self, place: int = 0, known: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any], str]:
        """Return the place of the next call, all that is known, and the variable in which the last output is stored."""
        values, stored, solution = dict(known or {}), "", self.solution
        for said, told in zip(self.messages[2::2], self.messages[3::2], strict=False):
            text = told["content"].removeprefix("Observation: ").partition("\n\nProgress: ")[0]
            if stored:  # what Python found in the variable, or made of it
                values |= next(_json_lines(text), {})
                place, stored = place + 1, ""
            elif place < len(solution.calls) and text.startswith(f"{solution.calls[place].tool} executed successfully"):
                held = _STORED.search(text)
                if held:
                    stored = held[1]
                    values |= {f"({name})": stored for name in solution.wanted[place]}
                else:
                    values |= solution.take(place, text.partition("\nOutput: ")[2], self.reader)
                    place += 1
            elif "Action: python" in said["content"] and place < len(solution.calls):
                values |= next(_json_lines(text), {})
                place += 1
        return place, values, stored

    def next_action(self) -> tuple[str, dict[str, Any]]:
        """Return the next action of a loop over all calls."""
        place, values, _ = self.progress()
        calls = self.solution.programs
        if place == len(calls):
            return "finish", {"answer": self.answer(values)}
        try:
            return calls[place].tool, filled(calls[place].parameters, values)
        except Missing:
            return "finish", {"answer": UNKNOWN}

    def loop(self) -> str:
        """Answer as the model of a ReAct loop over all calls."""
        return _action(*self.next_action())

    def tagged(self) -> str:
        """Answer as the direct agent's model."""
        name, arguments = self.next_action()
        if name == "finish":
            return f"That is all.\n<finish>{arguments['answer']}</finish>"
        return f"Next comes this call.\n<tool_call>{name} {json.dumps(arguments)}</tool_call>"

    def code(self) -> str:
        """Answer as CodeAct's model: each call in a block of its own, whose output a variable keeps."""
        told = [message["content"] for message in self.messages[3::2]]
        place = sum("kept as c" in text for text in told)
        solution = self.solution
        names = [name for taken in solution.wanted for name in taken]
        expressions = {
            name: solution.wanted[solution.source(name)][name].code(f"c{solution.source(name)}") for name in names
        }
        if place < len(solution.calls):
            call = solution.programs[place]
            given = ", ".join(f"{name}={as_code(value, expressions)}" for name, value in call.parameters.items())
            shown = "".join(
                f"print({expressions[name]})\n" for name in solution.evidence if name in solution.wanted[place]
            )
            head = f"{_LOOK}def as_text(value): return value if isinstance(value, str) else json.dumps(value)\n"
            head = f"import json\nimport re\n{head}" if place == 0 else ""
            code = f"{head}c{place} = {call.tool}({given})\n{shown}print('kept as c{place}')"
        elif "evidence" in solution.task.metadata:
            read = "\n".join(told)
            values = {name: self.read(name, read)[0] for name in solution.evidence}
            code = f"finish({self.answer(values)!r})"
        else:
            source = solution.answer_from
            code = f"text = as_text({as_code(source['value'], expressions)})\n"
            code += f"found = re.search({source['pattern']!r}, text)\n" if source["pattern"] else ""
            code += f"finish({'found[1]' if source['pattern'] else 'text'})" if self.knows else f"finish({UNKNOWN!r})"
        return f"I go on with the next step.\n\n```python\n{code}\n```"

    def some_calls(self, known: Mapping[str, Any]) -> str:
        """Answer as the model of a ReAct loop that makes some of the calls and reports what the others need."""
        task = self.messages[1]["content"]
        first, last = (int(number) - 1 for number in _CALLS.findall(task)[-1])
        place, values, stored = self.progress(first, known)
        solution = self.solution
        if stored:
            wanted = solution.wanted[place]
            kept = {
                name: one.code(stored) for name, one in wanted.items() if not isinstance(solution.value(name), list)
            }
            printed = ", ".join(f"{name!r}: {code}" for name, code in kept.items())
            code = f"import json\n{_LOOK}print(json.dumps({{{printed}}}))"
            return _action("python", {"code": code, "variables": [stored]})
        if place > last:
            told = {
                name: values[name]
                for taken in solution.wanted[first : last + 1]
                for name in taken
                if values.get(name) is not None and self._is_needed(name, last)
            }
            return _action("finish", {"answer": json.dumps({**known, **told}, ensure_ascii=False)})
        call = solution.programs[place]
        names = REFERENCE.findall(json.dumps(call.parameters))
        away = [name for name in names if values.get(name) is None and f"({name})" in values]
        if away and call.tool in _COMPUTES:
            expressions = {
                name: solution.wanted[solution.source(name)][name].code(values[f"({name})"])
                if name in away
                else repr(values[name])
                for name in names
            }
            result = next(iter(solution.wanted[place]))
            return _action("python", {"code": _reported(computed(call, expressions), result), "variables": [
                *dict.fromkeys(values[f"({name})"] for name in away)]})  # fmt: skip
        try:
            return _action(call.tool, filled(call.parameters, values))
        except Missing as missing:
            return _action("finish", {"answer": f"I cannot say it: {missing} is not known."})

    def _is_needed(self, name: str, last: int) -> bool:
        solution = self.solution
        later = json.dumps([call.parameters for call in solution.programs[last + 1 :]])
        return name in solution.evidence or f"${{{name}}}" in later

    # Plan-and-Execute.

    def steps(self) -> str:
        """Plan, or say what remains."""
        solution = self.solution
        past = self.first.partition("Steps so far and what became of them:")[2].partition("Steps that the present")[0]
        done = {int(number) for number in re.findall(r"^(\d+)\. .*\n {3}Result: ", past, re.M)}
        plan = [
            {"step": n, "task": self._asked(*group), "needs": list(range(1, n))}
            for n, group in enumerate(solution.groups, start=1)
        ]
        remaining = [step for step in plan if step["step"] not in done]
        if remaining:
            return json.dumps({"steps": remaining}, ensure_ascii=False)
        values: dict[str, Any] = {}
        for found in _json_lines(past):
            values |= found
        return json.dumps({"answer": self.answer(values)}, ensure_ascii=False)

    def _asked(self, first: int, last: int) -> str:
        solution = self.solution
        told = [name for taken in solution.wanted[first : last + 1] for name in taken if self._is_needed(name, last)]
        calls = ", then ".join(solution.calls[place].tool for place in range(first, last + 1))
        return (
            f"Calls {first + 1} to {last + 1} for «{solution.question}»: {calls}. Report {', '.join(told) or 'that'}."
        )

    def planned_step(self) -> str:
        """Answer as the executor of a step, which is shown the results that it needs."""
        results = (
            self.messages[1]["content"].partition("Results that your step can use:")[2].partition("Facts about")[0]
        )
        known: dict[str, Any] = {}
        for found in _json_lines(results):
            known |= found
        return self.some_calls(known)

    # RP-ReAct.

    def subquestion(self) -> str:
        """Ask the next sub-question, or give the answer."""
        values: dict[str, Any] = {}
        answered = 0
        for message in self.messages[3::2]:
            found = next(_json_lines(message["content"]), None)
            answered += found is not None
            values |= found or {}
        if answered == len(self.solution.groups):
            return f"<think>All is known.</think>\n<Finish>{self.answer(values)}</Finish>"
        asked = self._asked(*self.solution.groups[answered])
        known = json.dumps(values, ensure_ascii=False) if values else "nothing"
        tries = len(self.messages[3::2]) - answered
        again = f" Once more, for the {tries}. time." if tries else ""
        return f"<think>Next.</think>\n<|begin_search_query|>{asked}{again}\nKnown so far:\n{known}<|end_search_query|>"

    def answered_subquestion(self) -> str:
        """Answer as the executor of a sub-question."""
        known = next(_json_lines(self.messages[1]["content"].partition("Known so far:")[2]), {})
        return self.some_calls(known)

    # Reflexion.

    def verdict(self) -> str:
        """Judge an answer: it is right, and what tools replied says so."""
        told, _, rest = self.first.partition("What they did, and what came of it:")[2].partition("Their answer:\n")
        given = rest.partition("\n\nThe task is done only if")[0].strip()
        values: dict[str, Any] = {}
        for place, shown in enumerate(re.findall(r"executed successfully\.\nOutput: (.*)", told)):
            values |= self.solution.take(place, shown, self.reader) if place < len(self.solution.calls) else {}
        is_right = given == self.solution.answer(values) or not self.knows
        return json.dumps({"reason": "That is what the replies of the tools say.", "success": is_right})

    # KPI-Chain.

    def chain(self) -> str:
        """Plan, or continue after a failure."""
        solution = self.solution
        request = str(self.messages[1]["content"])
        failed = re.search(r"## Failed task\n\n[TR](\d+)", request)
        begin, mark = 1, ""
        if failed is not None:
            used = request.partition("no new task can have them: ")[2].partition("\n")[0]
            begin, mark = int(failed[1]), chr(1 + max(ord(letter or "`") for letter in re.findall(r"\d([a-z]?)", used)))
        if failed is not None and "was not found" in request.partition("## Feedback")[2]:
            # What was searched for may be wrong itself: it is read anew.
            names = (
                REFERENCE.findall(json.dumps(solution.programs[begin - 1].parameters))
                if begin <= len(solution.calls)
                else []
            )
            begin = min([begin, *(solution.source(name) + 1 for name in names)])
        ids = {n: f"T{n}{mark}" for n in range(begin, len(solution.calls) + 2)}
        if failed is not None:  # those before succeeded, under the last id that they had
            plan = _yaml_in(request.partition("## Current plan")[2].partition("## Failed task")[0])
            for task in plan["tasks"]:
                if task["execution_status"] == "done" and task["task_id"].startswith("T"):
                    ids[int(re.sub(r"\D", "", task["task_id"]))] = task["task_id"]
        tasks = [task for n in range(begin, len(solution.calls) + 1) for task in self._chain_tasks(n, ids)]
        number = len(solution.calls) + 1
        if self._passes_outputs_on:
            sources = dict.fromkeys(map(solution.source, solution.evidence))
            inputs = [_chain_input(f"t{n}", self._output_of(n, ids)) for n in sources]
        else:
            inputs = [self._input(f"v{n}", f"${{{name}}}", ids) for n, name in enumerate(solution.evidence)]
        answer = {"name": "final_answer", "type": "string", "description": "the answer alone"}
        words = f"Give the answer to «{solution.question}» from what was found"
        tasks.append(_chain_task(ids[number], words, "Reasoning", "", inputs, [answer]))
        return _to_yaml({"tasks": tasks})

    @property
    def _passes_outputs_on(self) -> bool:
        """Whether references stand for whole outputs, so that a value is picked out by a task of its own."""
        return "task_id.output" in self.first or "stands for the whole output" in self.first

    def _output_of(self, place: int, ids: Mapping[int, str]) -> str:
        """Return a reference to the output of a call."""
        name = "output" if "task_id.output" in self.first else _entity(next(iter(self.solution.wanted[place])))
        return f"<JSON_PATH>{ids[place + 1]}.{name}</JSON_PATH>"

    def _chain_tasks(self, number: int, ids: Mapping[int, str]) -> list[dict[str, Any]]:
        """Return the task of a call; where references are whole outputs, behind those that pick out what it needs."""
        task, solution = self._chain_task(number, ids), self.solution
        names = REFERENCE.findall(json.dumps(solution.programs[number - 1].parameters))
        if not self._passes_outputs_on or not names:
            return [task]
        (name,) = names
        picked, words = f"R{ids[number][1:]}", f"Find {name} for «{solution.question}»"
        entities = [{"name": _entity(name), "type": "string", "description": "what is called so"}]
        given = [_chain_input("text", self._output_of(solution.source(name), ids))]
        result = "output" if "task_id.output" in self.first else _entity(name)
        task["input_parameters"] = [_chain_input("query", f"<JSON_PATH>{picked}.{result}</JSON_PATH>")]
        task["dependencies"] = [picked]
        picking = _chain_task(picked, words, "Reasoning", "", given, entities)
        # One after the other, so that whoever goes on after a failure knows what is done.
        picking["dependencies"] = list(dict.fromkeys([*picking["dependencies"], ids[number - 1]]))
        return [picking, task]

    def _chain_task(self, number: int, ids: Mapping[int, str]) -> dict[str, Any]:
        solution, place = self.solution, number - 1
        call = solution.programs[place]
        words = f"Calls {number} to {number} for «{solution.question}»: {call.tool}"
        entities = [
            {"name": _entity(name), "type": self._type(name), "description": f"what stands at {name}"}
            for name in solution.wanted[place]
            if not self._is_passed_over(name)
        ]
        if not entities:  # a task has to find something
            path, value = _first_scalar(solution.outputs[place])
            entities = [{"name": _entity(path), "type": _type_of(value), "description": f"what stands at {path}"}]
        tool, given = call.tool, call.parameters
        names = REFERENCE.findall(json.dumps(given))
        if any(self._is_passed_over(name) for name in names):
            # Too long to be told: Python finds what the tool before it returned.
            expressions = {name: solution.wanted[solution.source(name)][name].code("last_result") for name in names}
            others = {name: f"${{{name}}}" for name in names if not self._is_passed_over(name)}
            expressions |= {name: _entity(name) for name in others}
            result, tool = _entity(next(iter(solution.wanted[place]))), "PythonInterpreter"
            entities = [{"name": result, "type": "string", "description": "what it prints"}]
            variables = {_entity(name): text for name, text in others.items()}
            given = {"code": computed(call, expressions), "variables": variables}
        inputs = [self._input(name, value, ids) for name, value in given.items() if value != {}]
        task = _chain_task(ids[number], words, "Tool call", tool, inputs, entities)
        before = [ids[number - 1]] if number > 1 else []  # tools may go on from what the one before has done
        return {**task, "dependencies": list(dict.fromkeys([*task["dependencies"], *before]))}

    def _is_passed_over(self, name: str) -> bool:
        """Tell whether a value is a list in an output of which the extractor sees pieces."""
        output = self.solution.outputs[self.solution.source(name)]
        return isinstance(self.solution.value(name), list) and len(json.dumps(output)) > _LONG

    def _type(self, name: str) -> str:
        is_written = any(
            f"${{{name}}}" in text and text != f"${{{name}}}"
            for call in self.solution.programs
            for text in call.parameters.values()
            if isinstance(text, str)
        )
        return "string" if is_written else _type_of(self.solution.value(name))

    def _input(self, name: str, value: Any, ids: Mapping[int, str]) -> dict[str, Any]:
        written = self._with_paths(value, ids)
        return {"name": name, "type": _type_of(value), "value": written, "is_reference": written != value}

    def _with_paths(self, value: Any, ids: Mapping[int, str]) -> Any:
        if isinstance(value, Mapping):
            return {name: self._with_paths(item, ids) for name, item in value.items()}
        if isinstance(value, list):
            return [self._with_paths(item, ids) for item in value]
        if not isinstance(value, str):
            return value
        place = self.solution.source
        return REFERENCE.sub(
            lambda found: f"<JSON_PATH>{ids[place(found[1]) + 1]}.{_entity(found[1])}</JSON_PATH>", value
        )

    def extraction(self) -> str:
        """Read the entities out of a response."""
        response, _, about = self.last.rpartition("DESCRIPTION OF THE TASK")
        shown = response.partition(":\n\n")[2].strip()
        shown = shown.partition("\nOutput: ")[2] or shown
        place = int(_CALLS.findall(about)[-1][0]) - 1
        path, _ = _first_scalar(self.solution.outputs[place])
        taken: dict[str, AtPath | Words] = {_entity(path): AtPath(path)}
        taken |= {_entity(name): one for name, one in self.solution.wanted[place].items()}
        found: dict[str, Any] = {}
        sure: dict[str, float] = {}
        for entity in _yaml_in(about):
            name = entity["name"]
            value, sure[name] = self.reader.read(name, taken[name], shown)
            if value is None:  # Python has done what another tool was meant for
                value = AtPath("output").read(shown)
            found[name] = as_text(value) if entity["type"] == "string" and value is not None else value
        confidence: Any = SURE if any(value is not None for value in found.values()) else 0.2
        if not self.reader.is_exact:
            confidence = sure
        return _to_yaml(
            {"confidence_score": confidence, "extracted_entities": found, "entities_summary": "It stands there"}
        )

    def reasoning(self) -> str:
        """Give the answer from the values that were found."""
        task = _yaml_in(self.last)
        given = {one["name"]: one["value"] for one in task["input_parameters"]}
        picked = re.match(r"Find (\S+) for «", task["task_description"])
        sure = [SURE]
        if picked:
            answer, sure[0] = self.read(picked[1], str(given["text"]))
        else:
            values = dict(zip(self.solution.evidence, given.values(), strict=False))
            if all(name.startswith("t") for name in given):
                read = {
                    name: self.read(name, str(given[f"t{self.solution.source(name)}"]))
                    for name in self.solution.evidence
                }
                values = {name: value for name, (value, _) in read.items()}
                sure = [confidence for _, confidence in read.values()]
            answer = self.answer(values)
        is_lost = answer is None or (answer == UNKNOWN and not self.reader.is_exact)
        (name,) = (one["name"] for one in task["expected_output_entities"])
        result = {
            "execution_result": {
                "status": "failed" if is_lost else "completed",
                "outputs": {name: None if is_lost else answer},
                **({} if self.reader.is_exact else {"confidence_score": min(sure)}),
            },
            "execution_details": {"reasoning_steps": ["The inputs say so"]},
        }
        return f"Justifications:\n1. The inputs say so.\n\n{_to_yaml(result)}"


def _action(name: str, arguments: Mapping[str, Any]) -> str:
    return f"Thought: Next.\nAction: {name} {json.dumps(arguments, ensure_ascii=False)}"


def _reported(code: str, name: str) -> str:
    """Return code whose only print, at its end, prints a JSON object with the value under a name."""
    before, _, printed = code.rpartition("print(")
    inner, _, _ = printed.rpartition(")")
    return f"import json\n{before}print(json.dumps({{{name!r}: {inner}}}))"


def _first_scalar(output: Any, path: str = "") -> tuple[str, Any]:
    """Return where the first value of an output stands that is no list and no object, and the value."""
    while isinstance(output, Mapping | list):
        name, output = next(iter(output.items())) if isinstance(output, Mapping) else ("0", output[0])
        path = f"{path}.{name}" if path else name
    return path, output


def _entity(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = {int: "number", float: "number", list: "array", dict: "dict"}
    return kinds.get(type(value), "string")


def _chain_input(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "type": "string", "value": value, "is_reference": True}


def _chain_task(
    task_id: str, words: str, task_type: str, tool: str, inputs: Sequence[Any], entities: Sequence[Any]
) -> dict[str, Any]:
    needs = re.findall(r"<JSON_PATH>(\w+)\.", json.dumps(inputs))
    return {
        "task_id": task_id,
        "task_description": words,
        "task_type": task_type,
        "tool_name": tool,
        "input_parameters": list(inputs),
        "expected_output_entities": list(entities),
        "dependencies": list(dict.fromkeys(needs)),
        "execution_status": "pending",
        "execution_result": {},
    }


_REPLIES: Mapping[tuple[str, str], Callable[[_Request], str]] = {
    ("direct", "system"): _Request.tagged,
    ("react", "system"): _Request.loop,
    ("code-act", "system"): _Request.code,
    ("reflexion", "evaluator"): _Request.verdict,
    ("reflexion", "reflector"): lambda asked: "Read each output to its end.",
    ("plan-and-execute", "planner"): _Request.steps,
    ("plan-and-execute", "replanner"): _Request.steps,
    ("plan-and-execute", "executor"): _Request.planned_step,
    ("rp-react", "planner"): _Request.subquestion,
    ("rp-react", "executor"): _Request.answered_subquestion,
    ("kpi-chain", "planner"): _Request.chain,
    ("kpi-chain", "replanner"): _Request.chain,
    ("kpi-chain", "extractor"): _Request.extraction,
    ("kpi-chain", "reasoner"): _Request.reasoning,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m tests.doubles.world_models", description=__doc__)
    parser.add_argument("worlds", nargs="+", help="worlds whose questions it knows, such as records-v1")
    given = parser.parse_args(arguments)
    with LoopbackServer(WorldModel([load_world(name) for name in given.worlds]), keeps_requests=False) as server:
        print(server.base_url, flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
