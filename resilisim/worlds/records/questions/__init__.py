"""Templates of questions, by domain; importing this files all of them in `template.TEMPLATES`."""

from resilisim.worlds.records.questions import (
    agenda,
    airbnb,
    arithmetic,
    citations,
    coffee,
    flights,
    scirex,
    yelp,
)

__all__ = ["agenda", "airbnb", "arithmetic", "citations", "coffee", "flights", "scirex", "yelp"]
