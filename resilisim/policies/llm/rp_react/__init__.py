"""RP-ReAct: a planner that asks sub-questions, and executors that answer them with tools."""
