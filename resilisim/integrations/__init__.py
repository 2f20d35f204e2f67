"""Doors to the software of others: one file each, imported where it is used, as are the packages that it needs."""
