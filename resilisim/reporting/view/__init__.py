"""All runs of a folder in the browser: progress, reports, two agents compared, and episodes side by side."""
