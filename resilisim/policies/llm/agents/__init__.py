"""The agents that ship: a module or a package each; the prompts of a module `NAME` lie in `prompts/NAME`."""
