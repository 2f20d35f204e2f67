"""Commands that play episodes, and the report of what was played."""
