"""The example `examples/agents/pydantic_ai_agent.py`, really run with its framework."""

from frameworks import check_example

if __name__ == "__main__":
    check_example("pydantic_ai_agent")
