"""Traces of agents in production, read into the record of calls that `inject` writes: what went wrong, and by whom."""
