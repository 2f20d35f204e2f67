"""Environments: what an agent sees of the simulator."""
