"""The example `examples/agents/smolagents_tools.py`, really run with its framework."""

from frameworks import check_example

if __name__ == "__main__":
    check_example("smolagents_tools")
