"""What tests of played datasets share: a search without a model, small tasks, and replaying what a record holds."""

import json
from dataclasses import replace
from typing import Any

from resilisim.datasets.conversations import ConversationSource, ConversationSpec
from resilisim.datasets.preferences import PreferenceSource, PreferenceSpec
from resilisim.datasets.rollout import TRAINING_ENVIRONMENT
from resilisim.envs.conversation import ConversationEnv
from resilisim.tasks import Task
from resilisim.tool_library import default_library
from resilisim.tool_library.retrieval import default_retriever

READER, PARSER = "file_operations_reader", "data_processing_parser"
FILTER, TRANSFORMER = "data_processing_filter", "data_processing_transformer"
WRITER = "file_operations_writer"


Record = dict[str, Any]


def source_of(spec, library=None, **options):
    """Return a source that needs no model; options that the spec does not have are the environment's."""
    own = {name: options.pop(name) for name in tuple(options) if name in spec.__dataclass_fields__}
    own = {"alternatives": False, "environment": replace(TRAINING_ENVIRONMENT, **options), **own}
    library = library or default_library()
    return SOURCES[spec](spec(**own), library, default_retriever(library, "lexical"))


SOURCES = {ConversationSpec: ConversationSource, PreferenceSpec: PreferenceSource}


def records_of(spec, **options):
    """Return the records of the tasks below."""
    source = source_of(spec, **options)
    return [record for task in tasks() for record in source.records(task)]


def task_of(*tools, description="", **fields):
    """Return a task whose text names no tool."""
    text = description or " ".join(default_library()[tool].original_description for tool in tools)
    return Task.from_mapping({"required_tools": list(tools), "description": text, **fields}, default_library())


def tasks():
    """Return tasks with and without dependencies outside their lists."""
    return [
        task_of(READER, inputs={"source": "orders.csv"}),
        task_of(READER, PARSER, FILTER),
        task_of(READER, TRANSFORMER, WRITER, inputs={"source": "orders.csv"}),
        task_of("network_fetcher", "network_validator", TRANSFORMER, "network_poster"),
    ]


def replay(record, messages, task):
    """Send a record's messages to a fresh environment and assert that it answers as the record says.

    Returns:
        The environment, and its info after the last of them.
    """
    env = ConversationEnv(TRAINING_ENVIRONMENT, protocol=record["protocol"], search="lexical")
    observation, info = env.reset(seed=record["seed"], options={"task": task, "prompt": record["prompt_type"]})
    assert messages[0] == {**messages[0], "role": "user", "content": observation}
    heard = []
    for message in messages[1:]:
        if message["role"] == "assistant":
            assert not heard
            observation, _, _, _, info = env.step(message["content"] if record["protocol"] == "text" else message)
            plain = record["protocol"] == "text"
            heard = [{"role": "user", "content": observation}] if plain else json.loads(observation)
        else:
            expected = heard.pop(0)
            assert {key: message[key] for key in expected} == expected
    return env, info
