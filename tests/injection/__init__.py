"""Tests of the injection floor."""
