"""LLM agents as policies: loops around a chat model, all over the same tools, limits and records."""
