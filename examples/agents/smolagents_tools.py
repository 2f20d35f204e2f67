"""A tool-calling agent of smolagents (`pip install "smolagents[openai]"`)."""

import os

from smolagents import OpenAIModel, Tool, ToolCallingAgent

from resilisim import track_usage
from resilisim.envs import Session
from resilisim.envs.session_tools import SessionTool


class Function(Tool):
    """A tool of the session; smolagents asks of each argument whether it may be left out."""

    output_type = "string"
    skip_forward_signature_validation = True

    def __init__(self, tool: SessionTool) -> None:
        super().__init__()
        self.name, self.description, self.forward = tool.name, tool.description, tool
        required = tool.parameters.get("required", ())
        self.inputs = {
            name: {**schema, "nullable": name not in required} for name, schema in tool.parameters["properties"].items()
        }


def agent(session: Session) -> str:
    """Run smolagents' own loop."""
    model = OpenAIModel(os.environ.get("AGENT_MODEL", "gpt-4.1-mini"))
    track_usage(model.client)
    tools = [Function(tool) for tool in session.tools]
    return ToolCallingAgent(tools, model, max_steps=50, verbosity_level=0).run(session.prompt)
