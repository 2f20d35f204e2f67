"""The two protocols, text and native tool calls: how messages are written, read and answered (SPEC section 4)."""
