"""A ReAct agent of LangChain and LangGraph (`pip install langchain langchain-openai`)."""

import os

from langchain.agents import create_agent
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI

from resilisim import track_usage
from resilisim.envs import Session


def agent(session: Session) -> str:
    """Run LangGraph's own loop."""
    model = ChatOpenAI(model=os.environ.get("AGENT_MODEL", "gpt-4.1-mini"))
    track_usage(model.root_client)
    tools = [
        StructuredTool(name=tool.name, description=tool.description, args_schema=tool.parameters, func=tool)
        for tool in session.tools
    ]
    graph = create_agent(model, tools)
    state = graph.invoke({"messages": [("user", session.prompt)]}, {"recursion_limit": 100})
    return state["messages"][-1].text
