"""Conversations to train on: whole episodes of the exact optimum (or another policy), each message with its worth.

Nothing is filtered: good play with bad luck stays good play, and each turn says what it was worth. Once full success is
out of reach (value 0) all messages are equal, and the player goes on: who trains on the records leaves such turns out.

A transcript holds an episode as chat messages, in the form in which models are trained on them; where a prompt asks for
it, "Reasoning:" says in a sentence why a message is sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

from resilisim.bounds import Share
from resilisim.chat import ToolCall
from resilisim.datasets.demonstrator import Demonstrator
from resilisim.datasets.mistakes import MistakenDemonstrator
from resilisim.datasets.rollout import EPISODES_GROUP, ArgumentsForm, RolloutSpec, Stage, Start
from resilisim.datasets.schema import JSON_TYPE, Column, DataType, Record, RecordSchema, json_problem, shipped_columns
from resilisim.envs.protocol.message_reader import read_native, read_text
from resilisim.envs.protocol.native_tools import native_tools
from resilisim.envs.reply import Info, Reply
from resilisim.errors import InvalidInputError
from resilisim.evaluation import EpisodeRecord, play_episode
from resilisim.options import option
from resilisim.policies.base import Policy, is_privileged, policy_name
from resilisim.policies.llm.agents.react import OBSERVED, terse_instructions, written_action
from resilisim.policies.registry import make_policy
from resilisim.seeding import Draws
from resilisim.simulator import Message
from resilisim.tasks import Task
from resilisim.tasks.split import split_of_task
from resilisim.tasks.wording import Searcher
from resilisim.tool_library import ToolLibrary

_TAG = re.compile(r"<(tool_search|tool_info|tool_call)>.*?</\1>|<(?:finish|wait)\s*/>", re.DOTALL | re.IGNORECASE)
_TAG_OR_ANSWER = re.compile(f"{_TAG.pattern}|<finish>.*?</finish>", _TAG.flags)


def message_type(protocol: str, arguments: ArgumentsForm) -> DataType:
    """Return the type of a chat message: a native one can also hold calls, or answer one.

    With arguments as objects a native message is one JSON value, as chat templates take it: a struct would give every
    message the keys of all, and every call the arguments of all, null where there are none.
    """
    if protocol == "text":
        return {"role": "string", "content": "string"}
    if arguments == "object":
        return JSON_TYPE
    function: DataType = {"name": "string", "arguments": "string"}
    calls: DataType = [{"id": "string", "type": "string", "function": function}]
    return {"role": "string", "content": "string", "tool_calls": calls, "tool_call_id": "string"}


def episode_schema(kind: str, protocol: str, arguments: ArgumentsForm) -> RecordSchema:
    """Return the columns of a kind of played episodes; messages and tools depend on protocol and form of arguments.

    What may be missing in all records of a file is an empty text, since the last version, and no null: loaders that
    guess types from the first file (`load_dataset("json", ...)`) cannot go on where later files have texts. Native ones
    have objects since version 2.
    """
    objects = protocol == "native" and arguments == "object"
    columns = []
    for column in shipped_columns(kind):
        if column.name in ("messages", "prompt", "chosen", "rejected"):
            column = replace(column, type=[message_type(protocol, arguments)])
        elif column.name == "tools" and objects:
            column = Column("tools", [JSON_TYPE], column.description.replace(" as JSON text", ""))
        columns.append(column)
    return RecordSchema(f"resilisim-{kind}-{protocol}-{3 if objects else 2}", tuple(columns))


class Transcript:
    """An episode as chat messages, in the form of `message_type`, the prompt first; arguments of calls as JSON text.

    What a policy says in the text protocol becomes a native call where the stage's protocol is native, so that every
    policy can be recorded in both.
    """

    def __init__(self, stage: Stage, start: Reply) -> None:
        self._stage = stage
        self.messages: list[Record] = []
        if stage.form == "react":
            self.messages.append(_message("text", "system", terse_instructions()))
        prompt = start.work if stage.form == "react" else start.observation
        self.messages.append(_message(stage.protocol, "user", prompt))

    def column(self, messages: Sequence[Record] | None = None) -> list[Record]:
        """Return messages, those so far if none are given, as they stand in records."""
        return [self._record(message) for message in (self.messages if messages is None else messages)]

    def _record(self, message: Record) -> Record:
        if self._stage.protocol == "text" or self._stage.arguments == "text":
            return message
        plain = {name: value for name, value in message.items() if value is not None}
        if "tool_calls" in plain:
            plain["tool_calls"] = [_with_object(call) for call in plain["tool_calls"]]
        return plain

    def assistant_message(self, action: str | Mapping[str, Any]) -> Record:
        """Return the message that a policy's action becomes if it is the next one."""
        if self._stage.protocol == "text":
            text = cast("str", action)
            if self._stage.form == "react":
                text = _as_action(self._stage.read(text)) or text
            elif self._stage.settings.prompt_style == "terse":
                text = _spaced(text)
            return _message("text", "assistant", text)
        native = action if isinstance(action, Mapping) else _json_object(action)
        if native is not None:
            return _native_message(native)
        # An id of nine letters and digits is what the pickiest chat templates want.
        return _translate(cast("str", action), self._stage, f"call{len(self.messages):05d}")

    def say(self, action: str | Mapping[str, Any]) -> Any:
        """Add a policy's action, and return what to send to the environment: a text, or a native message."""
        message = self.assistant_message(action)
        self.messages.append(message)
        if self._stage.form == "react":
            return action
        return message["content"] if self._stage.protocol == "text" else message

    def hear(self, reply: Reply) -> None:
        """Add the environment's reply."""
        protocol = self._stage.protocol
        if self._stage.form == "react":
            self.messages.append(_message("text", "user", OBSERVED + reply.text))
            return
        self.messages += [
            _message(protocol, answer["role"], answer["content"], call_id=answer.get("tool_call_id"))
            for answer in reply.messages
        ]


def _message(
    protocol: str, role: str, content: str, calls: list[Record] | None = None, call_id: str | None = None
) -> Record:
    message: Record = {"role": role, "content": content}
    return message if protocol == "text" else {**message, "tool_calls": calls, "tool_call_id": call_id}


def _spaced(text: str) -> str:
    """Return a message with a space before the name that it calls, as the name stands in terse prompts and replies.

    To most tokenizers a word behind a space is one token and without it several others: small models can repeat tokens,
    but do not know how they are spelled.
    """
    return re.sub(r"<(tool_call|tool_info)>(?=\S)", r"<\1> ", text)


def _as_action(message: Message) -> str | None:
    """Return a message as the agent react writes it, a space before names here, too; None for one that does nothing."""
    name, arguments = _native_function(message)
    if name is None:
        return None
    if message.kind == "finish":
        return written_action(name, {"answer": "done"})
    return written_action(name, {key: f" {value}" if key == "name" else value for key, value in arguments.items()})


def _native_message(message: Mapping[str, Any]) -> Record:
    """Return an OpenAI-style assistant message with the fields of `message_type` and no others."""
    content, calls = message.get("content"), message.get("tool_calls")
    listed = calls if isinstance(calls, list) else []
    kept = [_call_as_given(call) for call in listed if isinstance(call, Mapping)]
    return _message("native", "assistant", content if isinstance(content, str) else "", kept or None)


def _call_as_given(call: Mapping[str, Any]) -> Record:
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return ToolCall(str(call.get("id", "")), str(function.get("name", "")), text).to_openai()


def _with_object(call: Record) -> Record:
    """Return a call with its arguments as an object; as they are where a policy wrote what is none."""
    function = call["function"]
    value = _json_object(function["arguments"])
    if value is None or json_problem(value, "arguments") is not None:
        return call
    return {**call, "function": {**function, "arguments": value}}


def _translate(text: str, stage: Stage, identity: str) -> Record:
    """Return a message of the text protocol as a native one that means the same; as it is where none does."""
    # The mode "ignore" does not even read parameters.
    mode = "lenient" if stage.parameters == "ignore" else stage.parameters
    offers_wait = stage.settings.offers_wait
    read = read_text(text, stage.library, mode, stage.answers, offers_wait)
    name, arguments = _native_function(read)
    if name is not None:
        call = ToolCall(identity, name, json.dumps(arguments, ensure_ascii=False)).to_openai()
        words = (_TAG_OR_ANSWER if stage.answers else _TAG).sub("", text).strip()
        message = _message("native", "assistant", words, [call])
        offered = [function["function"]["name"] for function in native_tools(offers_wait=offers_wait)]
        meant = read_native(message, stage.library, stage.parameters, offered, stage.answers)
        if _meaning(meant) == _meaning(stage.read(text)):
            return message
    return _message("native", "assistant", text)


def _native_function(message: Message) -> tuple[str | None, dict[str, Any]]:
    if message.kind == "search":
        return "tool_search", {"query": message.query}
    if message.kind == "info":
        return "tool_info", {"name": message.tool}
    if message.kind == "finish":
        return "finish", {} if message.answer is None else {"answer": message.answer}
    if message.kind == "wait":
        return "wait", {}
    if message.kind in ("execute", "rejected") and message.tool is not None:
        parameters = {"parameters": dict(message.parameters)} if message.parameters else {}
        return "tool_call", {"name": message.tool, **parameters}
    return None, {}


def _meaning(message: Message) -> tuple[object, ...]:
    return message.kind, message.tool, message.query, message.problems, message.answer


def _json_object(text: str) -> Mapping[str, Any] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


DEMONSTRATOR = "exact-optimum"
REFERENCE = "reference"
OF_THE_OPTIMUM = ("explore", "plan_margin")  # options that others do not know


@dataclass(frozen=True, slots=True)
class ConversationSpec(RolloutSpec):
    """What conversations are made of; the records are a function of it and of the task.

    The exact optimum plays (`demonstrator.Demonstrator`, which `search` and `pass_parameters` are about), in worlds the
    reference solutions, or any policy that `make_policy` knows, for worse demonstrations with their regrets.
    """

    kind: ClassVar[str] = "conversations"
    policy: str = option(
        DEMONSTRATOR, "Policy that plays conversations: exact-optimum, or any other.", group=EPISODES_GROUP
    )
    explore: Share = option(
        0.0,
        "Share of the steps of the exact optimum that are deliberate mistakes.",
        group=EPISODES_GROUP,
    )
    plan_margin: Share = option(
        0.0,
        "How much success probability the exact optimum may give away in a call to do the step that the "
        "plan names first.",
        group=EPISODES_GROUP,
    )

    def __post_init__(self) -> None:
        """Refuse for anybody else what only the exact optimum does."""
        RolloutSpec.__post_init__(self)
        played = "a world" if self.environment.world is not None else repr(self.policy)
        for name in OF_THE_OPTIMUM:
            if getattr(self, name) and played != repr(DEMONSTRATOR):
                raise InvalidInputError(f"{name} is {getattr(self, name)} with {played}: expected {DEMONSTRATOR!r}")

    def arguments(self) -> dict[str, Any]:
        """Return what decides the records; what came later is left out where it is as it was before."""
        values = RolloutSpec.arguments(self)
        return {name: value for name, value in values.items() if value or name not in OF_THE_OPTIMUM}

    def make(self, library: ToolLibrary) -> ConversationSource:
        """Return the source of the records."""
        return ConversationSource(self, library)


# What a turn's entry takes from the step of the episode's record.
_OF_STEPS = (
    *("turn", "kind", "tool", "success", "success_probability"),
    *("value", "action_value", "regret", "luck", "label"),
)


class ConversationSource:
    """Plays the episodes of one task after the other; searches are answered by retrieval unless told otherwise."""

    def __init__(self, spec: ConversationSpec, library: ToolLibrary, searcher: Searcher | None = None) -> None:
        self.schema = episode_schema(spec.kind, spec.environment.protocol, spec.call_arguments)
        self._spec = spec
        self._stage = Stage(library, spec, searcher)
        # In a world what is demonstrated are the reference solutions.
        self._played = REFERENCE if spec.policy == DEMONSTRATOR and spec.environment.world is not None else spec.policy
        self._policy = self._other_policy(library)

    def _other_policy(self, library: ToolLibrary) -> Policy | None:
        """Return who plays with a library's tools; None if it is the demonstrator, who knows the task, too."""
        if self._played == DEMONSTRATOR:
            return None
        policy = make_policy(self._played, offered={"library": library})
        if not hasattr(policy, "reset"):  # an agent with a loop of its own
            raise InvalidInputError(f"policy is {self._played!r}: expected one that answers message by message")
        return policy

    def records(self, task: Task) -> Iterator[Record]:
        """Yield one record for each prompt type and seed, prompt types outermost."""
        spec, salt, split = self._spec, self._spec.environment.salt, split_of_task(task)
        stage, task = self._stage.of_task(task)
        how = (stage, task, spec.search, spec.pass_parameters, spec.plan_margin)
        policy = self._policy if stage is self._stage else self._other_policy(stage.library)
        player = policy or Demonstrator(*how)
        for start in stage.starts(task):
            if spec.explore:
                draws = Draws("resilisim/datasets/mistakes", salt, task.instance_id, start.prompt_type, start.seed)
                player = MistakenDemonstrator(*how, share=spec.explore, draws=draws)
            recorder = _Recorder(player, stage)
            episode = play_episode(stage.environment, recorder, task, start.prompt, start.seed)
            yield self._record(split, episode, start, recorder)

    def _record(self, split: str, episode: EpisodeRecord, start: Start, recorder: _Recorder) -> Record:
        own = {
            "split": split,
            "planner": episode["planner"] or "",
            "flaw": start.flaw_column(),
            "protocol": self._stage.protocol,
            "messages": recorder.transcript.column(),
            "tools": recorder.stage.tools_column,
            "reward": float(episode["outcome"]),
            "success": episode["outcome"] == 1,
            "level": episode["score"]["level"],
            "num_turns": len(episode["steps"]),
            "turns": [
                {
                    "message_index": place,
                    **{name: step[name] for name in _OF_STEPS},
                    "tool": step["tool"] or "",
                    "label": step["label"] or "",
                }
                for step, place in zip(map(dict, episode["steps"]), recorder.places, strict=True)
            ],
        }
        values: Mapping[str, Any] = {**episode, **own}
        return {name: values[name] for name in self.schema.struct}


class _Recorder:
    """Passes on what a policy reads and says, and keeps it as chat messages."""

    def __init__(self, policy: Policy, stage: Stage) -> None:
        self.name = policy_name(policy)
        self.privileged = is_privileged(policy)
        self.places: list[int | None] = []  # for each turn the place of its message, None where the policy stopped
        self._policy = policy
        self.stage = stage

    def reset(self, observation: str, info: Info) -> None:
        self.transcript = Transcript(self.stage, Reply(observation, info))
        self._policy.reset(observation, info)

    def act(self, observation: str, info: Info) -> Any:
        if self.places:
            self.transcript.hear(Reply(observation, info))
        action: str | Mapping[str, Any] | None = self._policy.act(observation, info)
        if action is None:
            self.places.append(None)
            return None
        self.places.append(len(self.transcript.messages))
        return self.transcript.say(action)
