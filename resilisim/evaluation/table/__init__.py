"""The table of a run's episodes, and everything that is summed, summarised or compared from it."""
