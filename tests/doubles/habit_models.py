"""A rule-based model that makes the right calls, behind a real endpoint, in the manner of one real model or another.

It is asked by the agents as any endpoint is, through HTTP, and sees nothing but the conversation. What it knows is
which tools a work order needs; what differs between its habits is how it writes: labels, fences, thoughts, options that
it refuses. None of that is skill, so an agent must do as well with each habit as with the plain one.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from resilisim.chat.call_forms import FORMS, CallForm, find_form
from resilisim.policies.llm.templates import packaged_prompts
from resilisim.policies.registry import BUILT_IN_POLICIES, LLM_POLICIES
from resilisim.tasks import Task
from resilisim.tool_library import default_library
from resilisim.workflows.steps import step_parameters
from resilisim.workflows.templating import escape_text
from tests.chat.loopback import Answer, Seen, completion, error

LOOPS = ("react", "plan-and-execute", "reflexion", "rp-react")  # those in which a ReAct loop acts
NATIVE = ("direct", "react", "reflexion")  # those that can call natively
PLANNERS = ("plan-and-execute", "rp-react", "kpi-chain")
ACTING = ("direct", "code-act", *LOOPS)
FORM = "form "  # begins the name of the habit of writing calls in a form of `chat.call_forms`
_CHARACTERS_PER_TOKEN = 4
_CALLED_IN_CODE = re.compile(r"""tool_call\((?:\*\*\{)?["'](?:name["']: ["'])?(\w+)""")


@dataclass(frozen=True, slots=True)
class Habit:
    """A manner of answering.

    Attributes:
        about: What it is.
        agents: The agents whose model can have it.
        protocol: The environment's protocol.
    """

    about: str
    agents: tuple[str, ...] = LLM_POLICIES
    protocol: str = "text"


HABITS: Mapping[str, Habit] = {
    "plain": Habit("as the prompt asks for it"),
    "bold, colon inside": Habit("**Action:** x, **Action Input:** {...}; bold headings before plans"),
    "bold, colon outside": Habit("**Action**: x, **Action Input**: {...}; bold headings before plans"),
    "backticks": Habit("names and arguments in backticks", ACTING),
    "fenced": Habit("JSON and YAML in fenced blocks, with words around them"),
    "parentheses": Habit("Action: x({...})", ACTING),
    "hermes": Habit('<tool_call>{"name": ..., "arguments": ...}</tool_call>', ACTING),
    "several": Habit("several actions in one reply, of which the first counts", (*ACTING,)),
    "invented": Habit("carries on with observations that it makes up, and does not stop where it is told to"),
    "<think>": Habit("1,500 tokens of thoughts in <think>, with actions that it thinks about"),
    "reasoning_content": Habit("1,500 tokens of thoughts beside the text"),
    "verbose": Habit("eight verbose steps, long explanations"),
    "future": Habit("says when it will report completion", ACTING),
    "<finish/>": Habit("ends with <finish/>", ACTING),
    "Action: finish": Habit("ends with Action: finish", ACTING),
    "finish()": Habit("ends with the finish function in a text", ACTING),
    "no stop": Habit("the endpoint refuses stop sequences"),
    "no temperature": Habit("the endpoint refuses a temperature"),
    "max_completion_tokens": Habit("the endpoint wants max_completion_tokens"),
    "native": Habit("native calls", NATIVE, "native"),
    "native objects": Habit("native calls whose arguments are objects", NATIVE, "native"),
    "native by name": Habit("native calls of tools by their own names", NATIVE, "native"),
    "several native": Habit("several native calls in one reply, of which the first counts", NATIVE, "native"),
    "no parallel_tool_calls": Habit("the endpoint refuses parallel_tool_calls", NATIVE, "native"),
    "[SUCCESS]": Habit("verdicts as [SUCCESS] and [FAILURE]", ("reflexion",)),
    "colon in YAML": Habit("YAML with unquoted colons", ("kpi-chain",)),
    "plan order": Habit("a plan whose tasks stand in another order than their dependencies", ("kpi-chain",)),
    "open thought": Habit("a thought that is never closed, with what it does as its last paragraph"),
    "thought alone": Habit("an open thought that the server takes for all of the reply"),
    "native text of text": Habit("native arguments as the text of a text of JSON", NATIVE, "native"),
    "native in parts": Habit("native arguments and content in parts", NATIVE, "native"),
    "native null": Habit("native calls without arguments as null, the text of null, or nothing", NATIVE, "native"),
    "native one id": Habit("several native calls with one id", NATIVE, "native"),
    "no null content": Habit("the endpoint refuses content: null and an empty one", NATIVE, "native"),
    **{f"{FORM}{form.name}": Habit(f"calls as {form.models} write them: {form.expected}", ACTING) for form in FORMS},
}

# The component that a prompt is for is known by the prompt's first line, as it ships.
_COMPONENTS = {
    "plan-and-execute": ("planner", "replanner", "executor"),
    "rp-react": ("planner", "executor"),
    "kpi-chain": ("planner", "replanner", "extractor", "reasoner"),
    "reflexion": ("evaluator", "reflector"),
}
_THOUGHTS = (
    "I could write <finish/> or Action: finish now, but nothing has run yet, so the task is not complete. "
    'Action: tool_call {"name": "utility_logger"} would log something, <tool_call>utility_logger</tool_call> too. '
    "The work order names its steps one after the other, and each of them needs a tool that has run before. "
) * 20
_PADDING = (
    "This matters because what comes later builds on it, and because an error here could not be made good at the end; "
    "the reply says whether it has worked, and if it has not, the same is done once more, as tools fail at random. "
) * 4


class CompetentModel:
    """Answers requests; the path says which agent asks and which habit to have.

    Args:
        tasks: The tasks whose work orders it knows.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._calls = {escape_text(task.description.strip()): right_calls(task) for task in tasks}

    def __call__(self, seen: Seen) -> Answer:
        """Answer a request to `/AGENT/HABIT/...`, both by number."""
        agent_number, habit_number = (int(part) for part in seen.path.split("/")[1:3])
        agent, habit = LLM_POLICIES[agent_number], list(HABITS)[habit_number]
        refused = _refusal(habit, seen.body)
        if habit == "no null content" and any(not message.get("content", " ") for message in seen.body["messages"]):
            refused = "Invalid 'content': expected a string that is not empty."
        if refused is not None:
            return error(400, refused)
        conversation = _Conversation(agent, habit, seen.body["messages"], self._known_calls(seen.body["messages"]))
        if seen.body.get("tools"):
            return completion(None, message=conversation.native_message(), finish_reason="tool_calls")
        if habit in ("open thought", "thought alone") and conversation.component != "reflector":
            return _open_thought(conversation.reply(), habit)
        return _sent(conversation.reply(), habit, seen.body)

    def _known_calls(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        told = "\n".join(str(message["content"]) for message in messages[:2])
        return next((calls for order, calls in self._calls.items() if order in told), {})


def right_calls(task: Task) -> dict[str, dict[str, Any]]:
    """Return the tools that a task needs, in order, each with parameters that fit."""
    library, before = default_library(), None
    calls: dict[str, dict[str, Any]] = {}
    for name in task.required_tools:
        calls[name] = step_parameters(library[name], task.inputs, before)
        before = name
    return calls


def path_of(agent: str, habit: str) -> str:
    """Return the path under which an agent asks a model with a habit."""
    return f"/{LLM_POLICIES.index(agent)}/{list(HABITS).index(habit)}/v1"


def _refusal(habit: str, body: Mapping[str, Any]) -> str | None:
    refused = {
        "no stop": ("stop", "Unsupported parameter: 'stop' is not supported with this model."),
        "no temperature": (
            "temperature",
            "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) is supported.",
        ),
        "max_completion_tokens": (
            "max_tokens",
            "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.",
        ),
        "no parallel_tool_calls": (
            "parallel_tool_calls",
            "Unsupported parameter: 'parallel_tool_calls' is not supported with this model.",
        ),
    }
    option, words = refused.get(habit, ("", ""))
    return words if option in body else None


def _sent(text: str, habit: str, body: Mapping[str, Any]) -> Answer:
    """Return a reply as an endpoint sends it: cut at its stops, which some ignore, and at its limit of tokens."""
    thoughts = _THOUGHTS if habit in ("<think>", "reasoning_content") else ""
    if habit not in ("invented", "several"):
        text = min((text.partition(stop)[0] for stop in body.get("stop", ())), key=len, default=text)
    if habit == "<think>":
        text, thoughts = f"<think>\n{thoughts}\n</think>\n\n{text}", ""
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    room = len(text) if limit is None else max(0, _CHARACTERS_PER_TOKEN * limit - len(thoughts))
    message = {"reasoning_content": thoughts} if thoughts else {}
    return completion(text[:room], message=message, finish_reason="length" if room < len(text) else "stop")


def _open_thought(text: str, habit: str) -> Answer:
    """Return a reply whose thoughts are never closed; a server that reads thoughts takes all of it for one."""
    thoughts = f"{_THOUGHTS}\n\n{text}"
    if habit == "open thought":
        return completion(f"<think>\n{thoughts}")
    return completion(None, message={"reasoning_content": thoughts})


class _Conversation:
    """One request: who is asked, what has happened so far, and what follows.

    Args:
        agent: The agent.
        habit: The model's habit.
        messages: The conversation.
        calls: The right calls, tool -> parameters.
    """

    def __init__(
        self, agent: str, habit: str, messages: Sequence[Mapping[str, Any]], calls: dict[str, dict[str, Any]]
    ) -> None:
        self.agent = agent
        self.habit = habit
        self.messages = messages
        self.calls = calls
        self.first = str(messages[0]["content"])
        self.last = str(messages[-1]["content"])

    def reply(self) -> str:
        """Return what the component that is asked writes."""
        return _ANSWERS[self.agent, self.component](self)

    @property
    def component(self) -> str:
        """Who is asked."""
        for name in _COMPONENTS.get(self.agent, ()):
            if self.first.startswith(_first_line(self.agent, name)):
                return name
        return "agent"

    @property
    def waiting(self) -> list[str]:
        """The tools that have not succeeded yet, by the replies to this conversation's calls."""
        replies = [str(message["content"]) for message in self.messages[2:] if message["role"] != "assistant"]
        done = {name for text in replies for name in re.findall(r"^(?:Observation: )?(\S+) executed succ", text, re.M)}
        return [name for name in self.calls if name not in done]

    @property
    def thought(self) -> str:
        """What it says before it acts."""
        words = "Next comes the step whose turn it is."
        if self.habit == "future":
            words = "Next comes the step whose turn it is. When the task is complete, I will tell you."
        return f"{words} {_PADDING}" if self.habit == "verbose" else words

    def structured(self, text: str, language: str, heading: str = "Plan") -> str:
        """Return JSON or YAML in the habit's manner."""
        if self.habit.startswith("bold"):
            label = f"**{heading}:**" if "inside" in self.habit else f"**{heading}**:"
            return f"{label}\n\n{text}" if language == "json" else f"{label}\n\n```{language}\n{text}\n```"
        if self.habit == "fenced":
            return f"Here is the {heading.lower()}:\n\n```{language}\n{text}\n```\n\nThis should do it."
        if self.habit == "backticks" and language == "json":
            return f"`{text}`"
        if self.habit == "invented" and language == "json":
            return f"{text}\n\nObservation: Everything was carried out, and the task is complete."
        return text

    # What acts.

    def action(
        self, name: str, arguments: Mapping[str, Any], following: Sequence[tuple[str, Mapping[str, Any]]]
    ) -> str:
        """Return an action of a ReAct loop, and what the habit adds to it."""
        written = self._action(name, arguments, self.thought)
        if self.habit == "several":
            written = "\n".join([written, *(self._action(*call, "And then the next.") for call in following)])
        if self.habit == "invented":
            done = 'Action: finish {"answer": "done"}'
            written += f"\nObservation: {arguments.get('name')} executed successfully.\nThought: All is done.\n{done}"
        return written

    def _action(self, name: str, arguments: Mapping[str, Any], thought: str) -> str:
        if self.form is not None:
            return self._in_form(name, arguments, thought)
        given = json.dumps(arguments, indent=2 if self.habit == "fenced" else None)
        forms = {
            "bold, colon inside": f"**Thought:** {thought}\n\n**Action:** {name}\n**Action Input:** {given}",
            "bold, colon outside": f"**Thought**: {thought}\n\n**Action**: {name}\n**Action Input**: {given}",
            "backticks": f"Thought: {thought}\nAction: `{name}`\nAction Input: `{given}`",
            "fenced": f"Thought: {thought}\nAction: {name}\nAction Input:\n```json\n{given}\n```",
            "parentheses": f"Thought: {thought}\nAction: {name}({given})",
            "hermes": f"{thought}\n<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>",
        }
        return forms.get(self.habit, f"Thought: {thought}\nAction: {name} {given}")

    @property
    def form(self) -> CallForm | None:
        """The form in which it writes calls, if that is its habit."""
        return find_form(self.habit.removeprefix(FORM)) if self.habit.startswith(FORM) else None

    def _in_form(self, name: str, arguments: Mapping[str, Any], thought: str) -> str:
        form = self.form
        assert form is not None
        written = form.write([(name, arguments)])
        return f"{thought}\n\n{written}" if form.mark else written

    def finish(self, answer: str) -> str:
        """Return the end of a ReAct loop."""
        ends = {
            "<finish/>": "All of it has run.\n<finish/>",
            "Action: finish": "Thought: All of it has run.\nAction: finish",
            "finish()": "finish()",
        }
        return ends.get(self.habit, self._action("finish", {"answer": answer}, "All of it has run."))

    def loop(self) -> str:
        """Answer as the model of a ReAct loop over all calls."""
        waiting = self.waiting
        if not waiting:
            return self.finish("Every step of the work order has been carried out.")
        following = [("tool_call", self._arguments(name)) for name in waiting[1:]]
        return self.action("tool_call", self._arguments(waiting[0]), following)

    def _arguments(self, name: str) -> dict[str, Any]:
        return {"name": name, "parameters": self.calls[name]}

    def one_step(self, question: str) -> str:
        """Answer as the model of a ReAct loop that is to run one tool."""
        wanted = re.search(r"[Rr]un the tool (\w+) with the parameters (\{.*\}) until", question)
        if wanted is None:
            return self.finish("The notes are made.")
        name = wanted.group(1)
        self.calls = {name: json.loads(wanted.group(2))}
        return self.loop() if self.waiting else self.finish(f"{name} has succeeded.")

    def tagged(self) -> str:
        """Answer as the direct agent's model."""
        waiting = self.waiting
        if not waiting:
            if self.form is not None:
                return self._in_form("finish", {}, "All of it has run.")
            ends = {"Action: finish": "Action: finish", "finish()": "<tool_call>finish()</tool_call>"}
            return ends.get(self.habit, "All of it has run.\n\n<finish/>")
        written = [self._tag(name) for name in waiting]
        if self.form is not None and not self.form.mark:
            return written[0]
        if self.habit == "several":
            return "\n".join([self.thought, *written, "<finish/>"])
        if self.habit == "invented":
            done = f"{waiting[0]} executed successfully.\n\nThe task is complete. <finish/>"
            return f"{self.thought}\n{written[0]}\n\n{done}"
        return written[0] if self.habit.startswith("bold") else f"{self.thought}\n\n{written[0]}"

    def _tag(self, name: str) -> str:
        if self.form is not None:
            return self.form.write([(name, self.calls[name])])
        given = json.dumps(self.calls[name])
        forms = {
            "bold, colon inside": f"**Thought:** {self.thought}\n\n**Action:** {name}\n**Action Input:** {given}",
            "bold, colon outside": f"**Thought**: {self.thought}\n\n**Action**: {name}\n**Action Input**: {given}",
            "backticks": f"<tool_call>`{name}` `{given}`</tool_call>",
            "fenced": f"```xml\n<tool_call>{name}\n```json\n{given}\n```\n</tool_call>\n```",
            "parentheses": f"<tool_call>{name}({given})</tool_call>",
            "hermes": f'<tool_call>\n{{"name": "{name}", "arguments": {given}}}\n</tool_call>',
        }
        return forms.get(self.habit, f"<tool_call>{name} {given}</tool_call>")

    def code(self) -> str:
        """Answer as CodeAct's model."""
        done = []
        for said, told in zip(self.messages[2::2], self.messages[3::2], strict=False):
            called = _CALLED_IN_CODE.search(said["content"])
            if called is not None and "Error" not in told["content"].partition("\n\nProgress:")[0]:
                done.append(called.group(1))
        waiting = [name for name in self.calls if name not in done]
        if not waiting and self.form is not None:
            return self._in_form("finish", {"answer": "Every step has been carried out."}, "All of it has run.")
        if not waiting:
            ends = {
                "<finish/>": "All of it has run.\n<finish/>",
                "Action: finish": "Action: finish",
                "finish()": "finish()",
            }
            return ends.get(self.habit, "```python\nfinish('Every step has been carried out.')\n```")
        blocks = [f'```python\nprint(tool_call("{name}", {self.calls[name]!r}))\n```' for name in waiting]
        call = self._action("tool_call", self._arguments(waiting[0]), self.thought)
        if self.form is not None:
            return call
        forms = {
            "bold, colon inside": f"**Thought:** {self.thought}\n\n**Code:**\n{blocks[0]}",
            "bold, colon outside": f"**Thought**: {self.thought}\n\n**Code**:\n{blocks[0]}",
            "backticks": call,
            "fenced": f"{self.thought}\n{blocks[0].replace('```python', '```', 1)}",
            "parentheses": call,
            "hermes": call,
            "several": "\n\n".join([self.thought, *blocks]),
            "invented": f"{self.thought}\n\n{blocks[0]}\n\nOutput:\n{{}}\n\n```python\nfinish('done')\n```",
        }
        return forms.get(self.habit, f"{self.thought}\n\n{blocks[0]}")

    def native_message(self) -> dict[str, Any]:
        """Return a message with native calls."""
        waiting = self.waiting
        calls = [("tool_call", self._arguments(name)) for name in waiting] or [("finish", {"answer": "done"})]
        if self.agent == "direct" and not waiting:
            calls = [("finish", {})]
        if self.habit == "native by name" and waiting:
            calls = list(self.calls.items())[-len(waiting) :]
        if self.habit not in ("several native", "native one id"):
            calls = calls[:1]
        wanted = [{"name": name, "arguments": self._native_arguments(given)} for name, given in calls]
        one_id = self.habit == "native one id"
        made = [
            {"id": "c" if one_id else f"c{n}", "type": "function", "function": call} for n, call in enumerate(wanted)
        ]
        parts = [{"type": "text", "text": self.thought}]
        contents = {"native in parts": parts, "no null content": None}
        return {"content": contents.get(self.habit, self.thought), "tool_calls": made}

    def _native_arguments(self, given: Mapping[str, Any]) -> Any:
        text = json.dumps(given)
        if self.habit == "native null" and (not given or "answer" in given):
            return [None, "null", '"null"', ""][len(self.messages) // 2 % 4]
        forms = {
            "native objects": given,
            "native text of text": json.dumps(text),
            "native in parts": [{"type": "text", "text": text[:5]}, {"type": "text", "text": text[5:]}],
        }
        return forms.get(self.habit, text)

    # What plans and judges.

    def verdict(self) -> str:
        """Judge a trial by what tools replied in it."""
        self.calls = self.calls or {}
        missing = [name for name in self.calls if f"{name} executed successfully" not in self.first]
        if self.habit == "[SUCCESS]":
            return f"The replies of the tools show what has run. {'[FAILURE]' if missing else '[SUCCESS]'}"
        return self.structured(json.dumps({"reason": f"missing: {missing}", "success": not missing}), "json", "Verdict")

    def steps(self) -> str:
        """Plan, or say what remains, as the planners of Plan-and-Execute."""
        past = self.first.partition("Steps so far and what became of them:")[2].partition("Steps that the present")[0]
        tasks = [_run_it(name, given) for name, given in self.calls.items()]
        if self.habit == "verbose":
            notes = [
                f"Write down what step {n} has brought, for the one who checks it." for n in range(1, 9 - len(tasks))
            ]
            tasks = [f"{task} {_PADDING}".strip() for task in [*tasks, *notes]]
        plan = [{"step": n, "task": task, "needs": [n - 1] if n > 1 else []} for n, task in enumerate(tasks, start=1)]
        done = {int(number) for number in re.findall(r"^(\d+)\. .*\n {3}Result: ", past, re.M)}
        remaining = [step for step in plan if step["step"] not in done]
        if not remaining:
            return self.structured('{"answer": "Every step of the work order has been carried out."}', "json", "Answer")
        return self.structured(json.dumps({"steps": remaining}), "json")

    def question(self) -> str:
        """Ask the next sub-question, as RP-ReAct's planner."""
        results = "\n".join(str(message["content"]) for message in self.messages[2:] if message["role"] == "user")
        waiting = [name for name in self.calls if not re.search(rf"\b{name} (?:has succeeded|executed succ)", results)]
        if not waiting:
            ends = {
                "<finish/>": "<finish/>",
                "Action: finish": "Action: finish",
                "finish()": "finish()",
            }
            return ends.get(self.habit, "<Finish>Every step of the work order has been carried out.</Finish>")
        asked = [f"<|begin_search_query|>{_run_it(name, self.calls[name])}<|end_search_query|>" for name in waiting]
        result = f"<|begin_search_result|>{waiting[0]} has succeeded.<|end_search_result|>"
        forms = {
            "bold, colon inside": f"**Thought:** {self.thought}\n\n**Query:** {asked[0]}",
            "bold, colon outside": f"**Thought**: {self.thought}\n\n**Query**: {asked[0]}",
            "backticks": f"{self.thought}\n`{asked[0]}`",
            "fenced": f"{self.thought}\n```\n{asked[0]}\n```",
            "several": "\n".join([self.thought, *asked]),
            "invented": f"{self.thought}\n{asked[0]}\n\n{result}\n\nAll is done.\n<Finish>done</Finish>",
        }
        return forms.get(self.habit, f"{self.thought}\n\n{asked[0]}")

    def chain(self) -> str:
        """Plan, or continue after a failure, as the planners of KPI-Chain."""
        names = list(self.calls)
        failed = re.search(r"## Failed task\n\nT(\d+)([a-z]?)", self.messages[-1]["content"])
        begin, mark = (1, "") if failed is None else (int(failed[1]), chr(ord(failed[2] or "`") + 1))
        ids = {n: f"T{n}{mark}" for n in range(begin, len(names) + 1)}
        if failed is not None:  # those before succeeded, under the last id that they had
            done = re.findall(r"task_id: T(\d+)([a-z]?)\n(?:(?!.*task_id).*\n)*?.*execution_status: done", self.last)
            ids |= {int(number): f"T{number}{letter}" for number, letter in done if int(number) < begin}
        tasks = [self._chain_task(n, ids, name) for n, name in enumerate(names, start=1) if n >= begin]
        notes = [self._note_task(len(names) + n, ids, names) for n in range(1, 8 - len(names))]
        last = {
            **_chain_task(f"T9{mark}", "State that all of it has run", "Reasoning", "", [ids[n] for n in ids]),
            "input_parameters": [_reference(ids[n], names[n - 1]) for n in ids],
            "expected_output_entities": [{"name": "final_answer", "type": "string", "description": "what was done"}],
        }
        tasks += [*(notes if self.habit == "verbose" and failed is None else []), last]
        if self.habit == "plan order":
            tasks.reverse()
        return self._yaml({"tasks": tasks}, "Plan")

    def _chain_task(self, number: int, ids: Mapping[int, str], name: str) -> dict[str, Any]:
        words = f"Run the tool {name}"
        inputs = [
            {"name": "name", "type": "string", "value": name, "is_reference": False},
            {"name": "parameters", "type": "dict", "value": self.calls[name], "is_reference": False},
        ]
        needs = [ids[number - 1]] if number > 1 else []
        found = {"name": f"{name}_success", "type": "boolean", "description": "whether the tool reports success"}
        task = _chain_task(ids[number], words, "Tool call", "tool_call", needs)
        if self.habit == "verbose":
            task["task_description"] = f"{words}. {_PADDING}".strip()
        return {**task, "input_parameters": inputs, "expected_output_entities": [found]}

    def _note_task(self, number: int, ids: Mapping[int, str], names: Sequence[str]) -> dict[str, Any]:
        task = _chain_task(f"T{number}", f"Write down what has run. {_PADDING}".strip(), "Reasoning", "", [ids[1]])
        found = {"name": f"note_{number}", "type": "string", "description": "a sentence"}
        return {**task, "input_parameters": [_reference(ids[1], names[0])], "expected_output_entities": [found]}

    def extraction(self) -> str:
        """Read the entities out of a response, as KPI-Chain's extractor."""
        response, _, wanted = self.last.partition("DESCRIPTION OF THE TASK")
        names = re.findall(r"name: (\w+)", wanted)
        value = True if "executed successfully" in response else None
        found = {"extracted_entities": dict.fromkeys(names, value), "entities_summary": "The tool says so"}
        return self._yaml({"confidence_score": 0.2 if value is None else 0.95, **found}, "Extraction")

    def reasoning(self) -> str:
        """Do a reasoning task of KPI-Chain."""
        outputs = dict.fromkeys(re.findall(r"name: (final_answer|note_\d+)", self.last), "All of it has run")
        result = {
            "execution_result": {"status": "completed", "outputs": outputs},
            "execution_details": {"reasoning_steps": ["The inputs say so"]},
        }
        return f"Justifications:\n1. The inputs say so.\n\n{self._yaml(result, 'Result')}"

    def _yaml(self, value: Any, heading: str) -> str:
        plain = json.loads(json.dumps(value))  # without anything that stands twice, which YAML would refer to
        text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=10_000)
        if self.habit == "colon in YAML":
            for words in ("Run the tool", "The tool says", "State", "All of it"):
                text = text.replace(f": {words} ", f": {words}: ").replace(f"- {words} ", f"- {words}: ")
        return self.structured(text, "yaml", heading)


def _run_it(name: str, given: Mapping[str, Any]) -> str:
    return f"Run the tool {name} with the parameters {json.dumps(given)} until it has succeeded once."


def _chain_task(task_id: str, words: str, task_type: str, tool: str, needs: Sequence[str]) -> dict[str, Any]:
    return {
        "task_id": task_id,
        "task_description": words,
        "task_type": task_type,
        "tool_name": tool,
        "input_parameters": [],
        "expected_output_entities": [],
        "dependencies": list(needs),
        "execution_status": "pending",
        "execution_result": {},
    }


def _reference(task_id: str, tool: str) -> dict[str, Any]:
    name = f"{tool}_success"
    path = f"<JSON_PATH>{task_id}.{name}</JSON_PATH>"
    return {"name": name, "type": "boolean", "value": path, "is_reference": True}


@functools.cache
def _first_line(agent: str, component: str) -> str:
    module, _, _ = BUILT_IN_POLICIES[agent].partition(":")
    return packaged_prompts(module)[component].partition("\n")[0]


_ANSWERS: Mapping[tuple[str, str], Callable[[_Conversation], str]] = {
    ("direct", "agent"): _Conversation.tagged,
    ("react", "agent"): _Conversation.loop,
    ("code-act", "agent"): _Conversation.code,
    ("reflexion", "agent"): _Conversation.loop,
    ("reflexion", "evaluator"): _Conversation.verdict,
    ("reflexion", "reflector"): lambda asked: "Run what has not succeeded yet.",
    ("plan-and-execute", "planner"): _Conversation.steps,
    ("plan-and-execute", "replanner"): _Conversation.steps,
    ("plan-and-execute", "executor"): lambda asked: asked.one_step(
        asked.messages[1]["content"].partition("Your step:")[2]
    ),
    ("rp-react", "planner"): _Conversation.question,
    ("rp-react", "executor"): lambda asked: asked.one_step(asked.messages[1]["content"]),
    ("kpi-chain", "planner"): _Conversation.chain,
    ("kpi-chain", "replanner"): _Conversation.chain,
    ("kpi-chain", "extractor"): _Conversation.extraction,
    ("kpi-chain", "reasoner"): _Conversation.reasoning,
}
