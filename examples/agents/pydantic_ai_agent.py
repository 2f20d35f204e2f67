"""An agent of Pydantic AI (`pip install "pydantic-ai-slim[openai]"`)."""

import os

from openai import AsyncOpenAI
from pydantic_ai import Agent, Tool
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from resilisim import track_usage
from resilisim.envs import Session


async def agent(session: Session) -> str:
    """Run Pydantic AI's own loop."""
    tools = [Tool.from_schema(tool.acall, tool.name, tool.description, tool.parameters) for tool in session.tools]
    async with AsyncOpenAI() as client:
        provider = OpenAIProvider(openai_client=track_usage(client))
        model = OpenAIChatModel(os.environ.get("AGENT_MODEL", "gpt-4.1-mini"), provider=provider)
        result = await Agent(model, tools=tools).run(session.prompt)
        return result.output
