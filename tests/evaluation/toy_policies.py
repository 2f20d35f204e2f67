"""Policies small enough to know by heart; several processes find them by `module:attribute`."""

import json
import os
import time
from pathlib import Path

from resilisim.errors import CheckFailed, InfrastructureError
from resilisim.tasks import Task
from resilisim.tool_library import default_library
from resilisim.workflows.prompts import parse_steps

TOY_LISTS = (
    ("file_operations_reader",),
    ("file_operations_reader", "data_processing_parser", "data_processing_filter"),
    ("file_operations_reader", "data_processing_transformer", "file_operations_writer"),
)


READER, PARSER, FILTER = TOY_LISTS[1]
TRANSFORMER = "data_processing_transformer"


def task_of(*tools):
    """Return a task that requires these tools."""
    return Task.from_mapping({"required_tools": list(tools), "description": "Do it."}, default_library())


def call(tool, parameters=None):
    """Return the message that calls a tool."""
    given = "" if parameters is None else " " + json.dumps(parameters)
    return f"<tool_call>{tool}{given}</tool_call>"


def toy_tasks(count=6):
    """Return small tasks over the default library."""
    library = default_library()
    return [
        Task.from_mapping(
            {
                "required_tools": list(TOY_LISTS[number % len(TOY_LISTS)]),
                "description": f"Toy number {number}.",
                "task_type": f"toy_{number % 2}",
            },
            library,
        )
        for number in range(count)
    ]


class Reading:
    """Runs the steps of the plan in its prompt in turn, each until it succeeds."""

    name = "reading"

    def reset(self, observation, info):
        self.steps = [step.tool for step in parse_steps(observation)]

    def act(self, observation, info):
        execution = info.get("execution")
        if execution is not None and execution["success"]:
            self.steps.pop(0)
        return f"<tool_call>{self.steps[0]}</tool_call>" if self.steps else "<finish/>"


class Noting(Reading):
    """The same, with a note of the process it runs in."""

    name = "noting"

    def reset(self, observation, info):
        super().reset(observation, info)
        folder = os.environ.get("RESILISIM_TEST_PIDS")
        if folder:
            (Path(folder) / str(os.getpid())).touch()


class Slow(Noting):
    """The same, with a wait for something outside."""

    name = "slow"

    def reset(self, observation, info):
        super().reset(observation, info)
        time.sleep(0.02)


class Quitter:
    """Stops at once."""

    name = "quitter"

    def reset(self, observation, info):
        pass

    def act(self, observation, info):
        return None


class Scripted:
    """Sends the given messages, then stops."""

    name = "scripted"

    def __init__(self, messages=()):
        self.messages = messages

    def reset(self, observation, info):
        self.left = list(self.messages)
        self.infos = [info]

    def act(self, observation, info):
        self.infos.append(info)
        return self.left.pop(0) if self.left else None


class PrivilegedScripted(Scripted):
    """The same, with the full view."""

    name = "privileged-scripted"
    privileged = True


class Broken(Reading):
    """Raises in the third toy task."""

    name = "broken"

    def reset(self, observation, info):
        super().reset(observation, info)
        if "Toy number 2" in observation:
            raise KeyError("no such thing")


class Unsound(Broken):
    """Runs into a check of ours in the third toy task."""

    name = "unsound"

    def reset(self, observation, info):
        try:
            super().reset(observation, info)
        except KeyError as error:
            raise CheckFailed("the identity does not hold") from error


class Unreachable(Reading):
    """Loses its endpoint."""

    name = "unreachable"

    def act(self, observation, info):
        raise InfrastructureError("the endpoint does not answer")


class Searching(Reading):
    """Searches once, then stops."""

    name = "searching"

    def act(self, observation, info):
        return "<tool_search>read a file</tool_search>" if info["turn"] == 0 else None


class Exiting(Reading):
    """Wants to end the process in the third toy task."""

    name = "exiting"

    def act(self, observation, info):
        if self.in_third:
            raise SystemExit("good\nbye")
        return super().act(observation, info)

    def reset(self, observation, info):
        super().reset(observation, info)
        self.in_third = "Toy number 2" in observation


class Halves(Reading):
    """Writes halves of characters, which no text can hold."""

    name = "halves"

    def act(self, observation, info):
        if info["turn"] == 0:
            return "\ud800 half <tool_info>\udfff</tool_info>"
        return "<finish/>" if info["turn"] > 1 else '<tool_call>\udfff {"source": "\ud800"}</tool_call>'


class Dying(Reading):
    """Takes its process down."""

    name = "dying"

    def act(self, observation, info):
        os._exit(3)
