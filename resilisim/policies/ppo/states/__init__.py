"""States of Workflow-v0 as agents know them: what follows them, lessons made of them, and looking ahead."""
