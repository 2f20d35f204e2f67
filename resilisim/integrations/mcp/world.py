"""The tools of any MCP servers as a world: agents answer your questions with them (`--tasks mcp:FILE`); extra `mcp`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from resilisim.envs.session import ToolFailed
from resilisim.errors import InvalidInputError, count_of, one_line, unknown_name
from resilisim.inputs import read_json, read_text, validated
from resilisim.integrations.mcp.server_functions import ServerFunctions, read_configuration
from resilisim.tasks import Task, split_of
from resilisim.tasks.task import complexity_of, instance_id_of
from resilisim.tool_library import Tool, ToolLibrary
from resilisim.tool_library.names import given_name
from resilisim.tool_library.tool_schemas import parameters_of
from resilisim.worlds.base import PAPER_RULES, DoneCall, Grade, ReferenceCall, ToolError
from resilisim.worlds.pages.world import grade_answer

NAME: Final = "mcp"
_TASK_TYPE: Final = "mcp_question"
_LONGEST_WORDS: Final = 2_000  # of what a tool says of its failure
_ASKED_OF: Final[Mapping[str, str]] = {
    "one": "Answer with the answer alone.",
    "list": "Give all of them, with semicolons between them.",
}


@dataclass(frozen=True)
class AskedQuestion:
    """A question as a file has it.

    Attributes:
        question: What is asked.
        answers: Wordings of the right answer, or with form "list" all of them; without any, every answer counts.
        form: "one" or "list".
        tools: Tools that a solution calls, in order, by which V* is computed; the only one, where the servers have one.
        reference: A whole solution in place of that: calls with their parameters.
        evidence: Sentences of what the tools return on which the answer rests; by them `runs tables` says whether what
            KPI-Chain extracts is right.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    question: str
    answers: tuple[str, ...] = ()
    form: Literal["one", "list"] = "one"
    tools: tuple[str, ...] = ()
    reference: tuple[ReferenceCall, ...] = ()
    evidence: tuple[str, ...] = ()


class McpWorld:
    """Questions over the tools of MCP servers, which are started anew for each episode that calls one.

    The tools are listed when they are first asked for, so that whoever reads a run starts nothing.

    Args:
        path: A client's configuration (`mcpServers`, or `servers`) with `questions` beside, or with a question behind
            a question mark: "mcp.json?Which film ...?".

    Raises:
        InvalidInputError: The file cannot be read, or holds no server or no question.

    Example:
        >>> from resilisim.integrations.mcp.world import McpWorld
        >>> def questions_in(path):
        ...     return [task.description for task in McpWorld(path).tasks()]
    """

    rules = PAPER_RULES

    def __init__(self, path: str) -> None:
        file, mark, asked = path.partition("?")
        self.name = f"{NAME}:{path}"
        self._servers = read_configuration(file)
        self._questions = [AskedQuestion(asked.strip())] if mark else _questions_in(Path(file))

    @property
    def starts_for_tasks(self) -> bool:
        """Whether the tools have to be listed before it is known what the tasks are."""
        return not all(asked.tools or asked.reference for asked in self._questions)

    @cached_property
    def library(self) -> ToolLibrary:
        """The tools as the servers list them."""
        return ToolLibrary(self._tools.values(), f"MCP servers {', '.join(self._servers)}")

    @cached_property
    def _tools(self) -> Mapping[str, Tool]:
        """The tools by the names that `ServerFunctions` has for them."""
        tools: dict[str, Tool] = {}
        with ServerFunctions(self._servers) as servers:
            for name, function in servers.functions.items():
                described: Any = function
                known_as = given_name(name, [tool.name for tool in tools.values()])
                words = one_line((function.__doc__ or "").strip().partition("\n\n")[0], _LONGEST_WORDS)
                tools[name] = Tool(known_as, words or f"The tool {name}.", parameters_of(described.input_schema))
        return tools

    def tasks(self) -> tuple[Task, ...]:
        """Return a task for each question."""
        return self._tasks

    @cached_property
    def _tasks(self) -> tuple[Task, ...]:
        return tuple(self._task(number, question) for number, question in enumerate(self._questions, start=1))

    def _task(self, number: int, asked: AskedQuestion) -> Task:
        reference = list(asked.reference) or [ReferenceCall(tool) for tool in asked.tools]
        if not reference:
            names = self.library.names
            if len(names) != 1:
                raise InvalidInputError(
                    f"{self.name}, question {number}: the servers have {count_of(len(names), 'tool')}: expected "
                    '"tools": [...] beside the question, those that a solution calls, by which V* is computed'
                )
            reference = [ReferenceCall(name) for name in names]
        tools = [call.tool for call in reference]
        description = f"{asked.question}\n\n{_ASKED_OF[asked.form]}"
        outputs = {"answer": asked.form}
        required = tuple(dict.fromkeys(tools))
        instance_id = instance_id_of(_TASK_TYPE, required, {}, outputs, description)
        return Task(
            instance_id=instance_id,
            task_type=_TASK_TYPE,
            description=description,
            inputs={},
            expected_outputs=outputs,
            required_tools=required,
            constraints={},
            complexity=complexity_of(len(tools)),
            metadata={
                "world": self.name,
                "form": asked.form,
                "scoring": "hotpotqa",
                "answers": ["; ".join(asked.answers) if asked.form == "list" else "".join(asked.answers[:1])],
                "right": list(asked.answers),
                "reference": [asdict(call) for call in reference],
                "split": split_of((instance_id,)),
                **({"evidence": [list(asked.evidence)]} if asked.evidence else {}),
            },
            original_description=description,
        )

    def open(self, task: Task, seed: int) -> McpWorkspace:
        """Return a workspace whose first call starts the servers."""
        return McpWorkspace(ServerFunctions(self._servers), {tool.name: name for name, tool in self._tools.items()})

    def grade(self, task: Task, answer: str | None, calls: Sequence[DoneCall]) -> Grade:
        """Grade an answer as the worlds of pages do; without any right answer one that is given counts."""
        if task.metadata["right"]:
            return grade_answer(task.metadata, answer or "")
        is_answered = bool((answer or "").strip())
        return Grade(is_answered, float(is_answered), {"answered": is_answered})


class McpWorkspace:
    """The servers of one episode.

    Args:
        servers: Not connected yet.
        names: Name of a tool -> what it is called there.
    """

    def __init__(self, servers: ServerFunctions, names: Mapping[str, str]) -> None:
        self._servers, self._names = servers, names
        self._stack: ExitStack | None = None

    def call(self, tool: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Call a tool and return its structured content, or its text under "text"; an error result is a ToolError."""
        if self._stack is None:
            with ExitStack() as opening:
                opening.enter_context(self._servers)
                self._stack = opening.pop_all()
        if tool not in self._names:
            raise ToolError("NOT_FOUND", str(unknown_name("tool", tool, self._names)))
        try:
            value = self._servers.functions[self._names[tool]](**parameters)
        except ToolFailed as failure:
            raise ToolError("OPERATION_FAILED", one_line(str(failure), _LONGEST_WORDS)) from None
        if isinstance(value, Mapping):
            return value
        return {"text" if isinstance(value, str) else "result": value}

    def close(self) -> None:
        """End the servers."""
        if self._stack is not None:
            self._stack.close()


def _questions_in(path: Path) -> list[AskedQuestion]:
    content = read_json(read_text(path, "configuration", "the path of an mcp.json file"), str(path))
    questions = content.get("questions") if isinstance(content, Mapping) else None
    if not isinstance(questions, list) or not questions:
        raise InvalidInputError(
            f'{path} holds no question: expected "questions": [{{"question": ..., "answers": [...]}}] beside the '
            f'servers, or one behind a question mark: "{NAME}:{path}?Which ...?"'
        )
    return [
        validated(AskedQuestion, question, f"{path}, question {number}")
        for number, question in enumerate(questions, start=1)
    ]


def mcp_world(path: str = "") -> McpWorld:
    """Return the world of a client's configuration with questions (`McpWorld`)."""
    if not path:
        raise InvalidInputError(f"world {NAME!r} needs a file: expected {NAME}:FILE, such as {NAME}:mcp.json")
    return McpWorld(path)
