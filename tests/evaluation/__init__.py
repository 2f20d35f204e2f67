"""Tests of the evaluation floor."""
