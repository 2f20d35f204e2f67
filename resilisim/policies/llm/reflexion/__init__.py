"""Reflexion: trials, a verdict on each, and a few lines on what went wrong before the next one."""
