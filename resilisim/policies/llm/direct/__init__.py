"""The model talks to the environment itself, with nothing in between."""
