"""What the texts of records are deflated against: `python -m benchmarks.texts_dictionary FILE`.

Pieces that stand in many episodes: of prompts, of what agents are told, of replies. A dictionary that has been released
is never changed, as records could not be read any more; a new one gets a new number (`episode.texts.FORMAT`).
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from resilisim.chat import ChatReply, ChatRequest
from resilisim.envs.conversation import ConversationEnv
from resilisim.evaluation.episode.play import play_episode
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.policies.registry import LLM_POLICIES, make_policy
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.sources import sample_tasks

MOST_BYTES = 29_000  # the rest of the window belongs to the messages of the record
REPLIES_BYTES = 9_000  # of these, for whole replies of tools
NUM_TASKS = 12
LEAST_EPISODES = 4  # in which a piece stands, of tasks that are not one
LEAST_LENGTH = 14
_PIECE = re.compile(r".+?(?:\\n)+|.+")  # a line with the line ends behind it, in JSON


class _Mute:
    """A model that finishes at once, after it was told everything."""

    name = "mute"

    async def complete(self, request: ChatRequest) -> ChatReply:
        return ChatReply("Thought: I am done.\nFinal Answer: done")

    async def aclose(self) -> None:
        """Nothing is open."""


def said_in(record: EpisodeRecord) -> str:
    """Return what was said in an episode as its record packs it."""
    agent = record.get("agent", {})
    return json.dumps([record["texts"], agent.get("messages"), agent.get("structure")], separators=(",", ":"))


def dictionary() -> bytes:
    """Return the pieces, those that stand in most episodes last."""
    tasks = sample_tasks(benchmark_tasks(), NUM_TASKS)
    agents = [make_policy(name, models=_Mute()) for name in LLM_POLICIES]
    found: Counter[str] = Counter()
    for task in tasks:
        records = [_play(agent, task, "optimal") for agent in agents]
        records += [_play(make_policy("repairing-follower"), task, prompt) for prompt in ("optimal", "baseline")]
        records += [_play(make_policy("random"), task, "chain_of_thought")]
        for pieces in (dict.fromkeys(_PIECE.findall(said_in(record))) for record in records):
            found.update(piece for piece in pieces if len(piece) >= LEAST_LENGTH)
    replies = _replies()
    often = sorted((piece for piece, count in found.items() if count >= LEAST_EPISODES), key=found.__getitem__)
    text = "".join(often).encode("ascii")[-(MOST_BYTES - len(replies)) :]
    return replies + text


def _play(policy: Any, task: Task, prompt: str) -> EpisodeRecord:
    return play_episode(ConversationEnv(), policy, task, prompt, 0)


def _replies() -> bytes:
    """Return one reply of each tool, as many as have room."""
    seen: dict[str, str] = {}
    for task in sample_tasks(benchmark_tasks(), 60):
        record = _play(make_policy("repairing-follower"), task, "optimal")
        texts = record["texts"]
        assert not isinstance(texts, str)
        for step, reply in zip(record["steps"], texts["replies"], strict=True):
            if step["success"] and step["tool"] is not None:
                seen.setdefault(step["tool"], json.dumps(reply))
    return "".join(seen.values()).encode("ascii")[:REPLIES_BYTES]


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(dictionary())
