"""CodeAct: one block of Python a step, in a namespace that holds the tools as functions."""
