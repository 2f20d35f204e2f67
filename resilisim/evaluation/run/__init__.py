"""A run of many episodes: what it consists of, who plays, and what is written down."""
