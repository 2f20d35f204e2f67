"""A loop of one's own around the `openai` client (`pip install openai`)."""

import os

from openai import OpenAI

from resilisim import track_usage
from resilisim.envs import Session


def agent(session: Session) -> str | None:
    """Let the model call functions until it answers in words."""
    client, model = track_usage(OpenAI()), os.environ.get("AGENT_MODEL", "gpt-4.1-mini")
    messages: list = [{"role": "user", "content": session.prompt}]
    while True:
        reply = client.chat.completions.create(model=model, messages=messages, tools=session.openai_tools())
        message = reply.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            result = session.call(call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
