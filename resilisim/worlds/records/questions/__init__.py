"""Templates of questions, by domain; importing this files all of them in `template.QUESTION_TEMPLATES`."""

import importlib

for _domain in ("agenda", "airbnb", "arithmetic", "citations", "coffee", "flights", "scirex", "yelp"):
    importlib.import_module(f"{__name__}.{_domain}")
