"""Failures that lose an episode: shrunk to the fewest, looked for by an adversary, or tried one by one."""
