"""One episode: its record, what each message cost, what was said, and its scores computed again."""
