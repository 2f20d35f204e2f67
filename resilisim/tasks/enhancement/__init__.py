"""Tasks made better by a language model: descriptions rewritten, or whole tasks designed; everything is checked.

A task that the model does not get right stays as the rules made it, with the reason in its metadata.
"""

MODES = ("rewrite", "design")
