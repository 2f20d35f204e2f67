"""The example `examples/agents/openai_agents.py`, really run with its framework."""

from frameworks import check_example

if __name__ == "__main__":
    check_example("openai_agents")
