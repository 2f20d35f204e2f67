"""Policies without a model: baselines from below, plan followers, and the exact optimum."""
