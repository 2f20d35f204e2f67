"""What was said in an episode: prompt, replies of the environment, and all that an LLM agent was told and wrote.

A record on disk holds it packed: deflated against a dictionary that every version of this package has, and against the
messages of the record's own steps, so that what stands in those is not stored again. A line is then whole by itself:
it can be moved, merged and scored again without another file.
"""

from __future__ import annotations

import base64
import json
import re
import warnings
import zlib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Any, Final, Literal, cast, get_args

from resilisim.envs.feedback import words_in
from resilisim.errors import StoreError
from resilisim.evaluation.episode.record import EpisodeRecord, SpokenTexts
from resilisim.redaction import without_secrets_in

RecordTexts = Literal["all", "failures", "none"]
RECORD_TEXTS: Final = get_args(RecordTexts)
# Which of them it is where nobody says: what a model was paid for, and of everything else what went wrong.
DEFAULT_FOR_AGENTS: Final[RecordTexts] = "all"
DEFAULT_FOR_OTHERS: Final[RecordTexts] = "failures"

FORMAT: Final = "1:"  # number of the dictionary; a better one gets a number of its own, and the old one stays
_WINDOW: Final = 32_768  # bytes that deflate looks back
MOST_BYTES: Final = 256_000_000  # unpacked; what is more is not a text that was ever said
_MOST_PARTS: Final = 1_000_000  # values in them; an episode of thousands of calls has a hundred thousand
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
COMPRESSION_LEVEL: Final = 6

# Of the reply to a call this is measured, and stays in the open; the rest is what was said.
_MEASURES: Final = frozenset({"usage", "finish_reason", "model", "latency_seconds", "attempts", "dropped"})

_FRAME_LENGTH: Final = 80  # of what an agent writes around a reply ("Observation:")


def stored(record: EpisodeRecord, keep: RecordTexts | None = None) -> EpisodeRecord:
    """Return a record as it is written: without secrets, with its texts packed, or without them.

    Those of "all" episodes are kept, of "failures" (no full success), or of "none"; if omitted, all of LLM agents and
    in worlds, and the failures of other policies, but for those that were explored, of which there are too many.
    """
    if isinstance(record.get("texts"), str):
        return record
    record = without_secrets_in(record)  # before they are packed
    spoken, agent = record.get("texts"), record.get("agent")
    # What calls in a world returned is needed to grade the episode again.
    if keep is None:
        default = "none" if "branch" in record else DEFAULT_FOR_OTHERS
        keep = default if agent is None and "world" not in record else DEFAULT_FOR_AGENTS
    kept = {name: value for name, value in record.items() if name != "texts"}
    said: dict[str, Any] = {"spoken": spoken}
    if agent is not None:
        kept["agent"], said["agent"] = _taken_out(agent)
    if keep == "all" or (keep == "failures" and not record["outcome"]):
        data = _encoded(said)
        problem = _problem(data)
        if problem is None:
            kept["texts"] = _pack(data, record)
        else:  # nothing could read them again
            reason = f"{problem}: they are not kept"
            warnings.warn(f"the texts of episode {record['index']} {reason}", UserWarning, stacklevel=2)
    return cast("EpisodeRecord", kept)


def opened(record: EpisodeRecord) -> EpisodeRecord:
    """Return a record with its texts in their places, as it was played; what was not kept is missing.

    Older records have no prompt and no replies of the environment, and their agent's texts in the open.

    Raises:
        StoreError: The texts are broken.

    Example:
        >>> from resilisim import evaluate
        >>> from resilisim.evaluation import opened, read_records
        >>> result = evaluate("plan-follower", 1, record_texts="all")
        >>> record = next(read_records(result.directory))
        >>> type(record["texts"]).__name__, opened(record)["texts"]["prompt"][:6]
        ('str', '# Task')
    """
    packed = record.get("texts")
    if not isinstance(packed, str):
        return record
    try:
        said = _read(_unpacked(packed, record))
        spoken = said["spoken"]
        if said.keys() - {"spoken", "agent"} or (spoken is not None and spoken.keys() != {"prompt", "replies"}):
            raise ValueError("they hold what no record has")
        whole = {name: value for name, value in record.items() if name != "texts"}
        if spoken is not None:
            _check_texts([spoken["prompt"], *spoken["replies"]])
            whole["texts"] = SpokenTexts(prompt=spoken["prompt"], replies=spoken["replies"])
            if len(spoken["replies"]) != len(record["steps"]):
                raise ValueError("the number of replies is not that of the steps")
        if "agent" in said:
            whole["agent"] = _put_back(record["agent"], said["agent"])
    except (ValueError, zlib.error, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"the texts of episode {record['index']} are broken: {error!r:.120}") from error
    return cast("EpisodeRecord", whole)


def opened_if_whole(record: EpisodeRecord) -> tuple[EpisodeRecord, str | None]:
    """Return an opened record and None; of one whose texts are broken the record as it stands, and what is wrong.

    For readers of whole runs: what was said in one episode is not worth all the others.
    """
    try:
        return opened(record), None
    except StoreError as error:
        return record, str(error)


def has_agent_texts(record: EpisodeRecord) -> bool:
    """Return whether an opened record of an LLM agent holds what its models were told and wrote."""
    return "messages" in record.get("agent", {})


def _taken_out(agent: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an agent's part without its texts, and these."""
    calls, said = [], []
    for call in agent["calls"]:
        reply = call["reply"]
        measured = {name: value for name, value in reply.items() if name in _MEASURES}
        calls.append({**{name: value for name, value in call.items() if name != "messages"}, "reply": measured})
        said.append([call["messages"], {name: value for name, value in reply.items() if name not in _MEASURES}])
    kept = {name: value for name, value in agent.items() if name not in ("messages", "structure")}
    texts = {"messages": agent["messages"], "calls": said, "structure": agent["structure"]}
    return {**kept, "calls": calls}, texts


def _put_back(agent: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    messages = said["messages"]
    _check_texts([message[name] for message in messages for name in ("role", "content")])
    calls = []
    for call, (numbers, texts) in zip(agent["calls"], said["calls"], strict=True):
        _check_texts([texts["text"], *(one[name] for one in texts["tool_calls"] for name in ("name", "arguments"))])
        if not all(isinstance(number, int) and 0 <= number < len(messages) for number in numbers):
            raise ValueError(f"messages {numbers!r:.60} are not all there")
        calls.append({**call, "messages": numbers, "reply": {**texts, **call["reply"]}})
    return {**agent, "messages": messages, "calls": calls, "structure": dict(said["structure"])}


def _check_texts(values: Iterable[object]) -> None:
    wrong = next((value for value in values if not isinstance(value, str)), None)
    if wrong is not None:
        raise TypeError(f"{wrong!r:.60} is not a text")


def _encoded(said: Mapping[str, Any]) -> bytes:
    # ASCII, as a model may write halves of characters, which UTF-8 does not have.
    return json.dumps(said, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def _pack(data: bytes, record: EpisodeRecord) -> str:
    packer = zlib.compressobj(COMPRESSION_LEVEL, zdict=_dictionary(record))
    return FORMAT + base64.b64encode(packer.compress(data) + packer.flush()).decode("ascii")


def _unpacked(packed: str, record: EpisodeRecord) -> bytes:
    if not packed.startswith(FORMAT):
        raise ValueError(f"they are written as {packed[:12]!r}, expected {FORMAT!r}: by a later version?")
    unpacker = zlib.decompressobj(zdict=_dictionary(record))
    data = unpacker.decompress(base64.b64decode(packed[len(FORMAT) :], validate=True), MOST_BYTES)
    if not unpacker.eof:
        raise ValueError("they do not end")
    return data


def _problem(data: bytes) -> str | None:
    """Return why texts would not be read: too long, or of too many parts."""
    if len(data) > MOST_BYTES:
        return f"take {len(data):,} bytes, more than the {MOST_BYTES:,} that are read"
    if data.count(b",") + data.count(b"[") + data.count(b"{") > _MOST_PARTS:
        outside = _STRING.sub(b"", data)
        parts = outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        if parts > _MOST_PARTS:
            return f"hold {parts:,} values, more than the {_MOST_PARTS:,} that are read"
    return None


def _read(data: bytes) -> dict[str, Any]:
    """Return the JSON value of unpacked texts: a few long ones, so that one of many small parts is refused unread.

    Each part takes many times its length in memory, and lists of lists are what can be packed best.
    """
    problem = _problem(data)
    if problem is not None:
        raise ValueError(f"they {problem}")
    said = json.loads(data)
    if not isinstance(said, dict):
        raise TypeError("they are no object")
    return said


def _dictionary(record: EpisodeRecord) -> bytes:
    """Return what texts are deflated against: the nearer to the end, the cheaper it is to refer to."""
    messages = json.dumps([step["message"] for step in record["steps"]], separators=(",", ":"), ensure_ascii=True)
    return (_common_texts() + messages.encode("ascii"))[-_WINDOW:]


@cache
def _common_texts() -> bytes:
    """Return the texts that stand in many episodes (chosen once, from episodes of all agents)."""
    return resources.files(__package__).joinpath("texts-1.dictionary").read_bytes()


def spoken_texts(record: EpisodeRecord) -> SpokenTexts | None:
    """Return what the environment said in an opened record, as it was sent; None where it was not kept."""
    spoken = record.get("texts")
    return None if isinstance(spoken, str) else spoken


def replies_of(record: EpisodeRecord) -> list[str | None]:
    """Return what the environment answered to each step of an opened record, in words; None where it was not kept."""
    spoken = spoken_texts(record)
    if spoken is None:
        return [None] * len(record["steps"])
    return [observation_text(reply) for reply in spoken["replies"]]


def observation_text(observation: str) -> str:
    """Return the words of an observation in a record, which keeps what was sent: under the native protocol JSON."""
    if not observation.startswith("[{"):
        return observation
    try:
        return "\n".join(str(message["content"]) for message in json.loads(observation) if message["content"])
    except (ValueError, KeyError, TypeError):
        return observation


def prompt_of(record: EpisodeRecord) -> str | None:
    """Return the prompt of an opened record, in words; None where it was not kept."""
    spoken = spoken_texts(record)
    return None if spoken is None else observation_text(spoken["prompt"])


def newly_told(record: EpisodeRecord) -> list[list[int]]:
    """Return for each call of an opened record which messages a model was told then for the first time, by number.

    What the environment answered and what the agent had said itself are left out: they stand elsewhere in the record.
    """
    agent = record.get("agent", {})
    replies = [(reply, words_in(reply)) for reply in replies_of(record) if reply]
    shown: set[int] = set()
    new_messages: list[list[int]] = []
    for number, call in enumerate(agent.get("calls", ())):
        new = [place for place in dict.fromkeys(call.get("messages", ())) if place not in shown]
        shown.update(new)
        new_messages.append([place for place in new if not _is_known(agent["messages"][place], number, replies)])
    return new_messages


def _is_known(message: Mapping[str, Any], call: int, replies: list[tuple[str, str]]) -> bool:
    """Tell whether a message only repeats what the agent said (not in its first call: an example) or what it heard."""
    text = message["content"]
    if message["role"] == "assistant":
        return call > 0
    return any(words in text and len(text) <= len(reply) + _FRAME_LENGTH for reply, words in replies)
