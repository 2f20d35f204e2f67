"""The competent model of the knowledge worlds, made to feel each switch: temperature, examples of tools, limits.

    with LoopbackServer(SwitchModel([load_world("records-v1")])) as server: ...

A model named "wandering" does nothing useful in a share of its replies, half the temperature that it is asked at; the
seed of the request says in which ones. One named "unpractised" knows the parameters of a tool only from an example or
from the error of its first try.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from resilisim.seeding import Draws
from resilisim.worlds import World
from tests.chat.loopback import Answer, Seen, completion
from tests.doubles.world_models import WorldModel

WANDERS: Final = 0.5  # share of replies at temperature 1
_ACTION = re.compile(r"Action: (\w+) (\{.*\})", re.DOTALL)


class SwitchModel:
    """Answers requests of agents about the questions of worlds, as the model's name says."""

    def __init__(self, worlds: Sequence[World]) -> None:
        self._competent = WorldModel(worlds)

    def __call__(self, seen: Seen) -> Answer:
        """Answer a request."""
        wanders = seen.body["model"] == "wandering"
        seen = replace(seen, body={**seen.body, "model": "competent"} if wanders else seen.body)
        messages = [str(message["content"]) for message in seen.body["messages"]]
        if wanders and _draw(seen) < WANDERS * (seen.body.get("temperature") or 0.0):
            is_planner = "<|begin_search_query|>" in messages[0]
            return completion(
                "I wonder." if is_planner else "Thought: I wonder.\nAction: ponder {}", usage=_usage(messages)
            )
        answer = self._competent(replace(seen, body={**seen.body, "model": "competent"}))
        if seen.body["model"] == "unpractised":
            return _unpractised(answer, messages)
        return answer


def _draw(seen: Seen) -> float:
    return Draws("wandering", seen.body.get("seed"), len(seen.body["messages"])).uniform()


def _unpractised(answer: Answer, messages: Sequence[str]) -> Answer:
    """Return an answer with the parameters of a tool called "input" where nothing has told what they are called."""
    body: Any = json.loads(answer.body)
    message = body["choices"][0]["message"]
    action = _ACTION.search(message["content"] or "")
    if action is None or action[1] in ("finish", "python"):
        return answer
    name = action[1]
    knows = f"Example of {name}(" in messages[0] or any(
        said.startswith("Observation:") and name in said for said in messages[2:]
    )
    if knows:
        return answer
    given = next(iter(json.loads(action[2]).values()), "")
    message["content"] = f"Thought: Next.\nAction: {name} {json.dumps({'input': given})}"
    return replace(answer, body=json.dumps(body).encode())


def _usage(messages: Sequence[str]) -> dict[str, int]:
    return {"prompt_tokens": sum(map(len, messages)) // 4, "completion_tokens": 5}
