"""A net of golden records: what episodes came to before the house was rebuilt, so that a rebuilt one plays the same."""
