"""An agent of the OpenAI Agents SDK (`pip install openai-agents`)."""

import os

from agents import Agent, FunctionTool, OpenAIChatCompletionsModel, Runner
from openai import AsyncOpenAI

from resilisim import track_usage
from resilisim.envs import Session


async def agent(session: Session) -> str:
    """Run the SDK's own loop."""
    tools = [
        FunctionTool(tool.name, tool.description, tool.parameters, invoke(session, tool.name), strict_json_schema=False)
        for tool in session.tools
    ]
    async with AsyncOpenAI() as client:
        model = OpenAIChatCompletionsModel(os.environ.get("AGENT_MODEL", "gpt-4.1-mini"), track_usage(client))
        result = await Runner.run(Agent("worker", tools=tools, model=model), session.prompt, max_turns=50)
        return result.final_output


def invoke(session: Session, name: str):  # noqa: ANN201
    """Return what the SDK calls with the arguments as the model wrote them."""
    return lambda _, arguments: session.acall(name, arguments)
