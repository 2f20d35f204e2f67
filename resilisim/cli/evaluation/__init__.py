"""Commands that play episodes, and commands about what was played."""
