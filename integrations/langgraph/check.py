"""The example `examples/agents/langgraph_react.py`, really run with its framework."""

from frameworks import check_example

if __name__ == "__main__":
    check_example("langgraph_react")
