"""Worlds: what calls really do, where more than an order of names counts, and how answers are scored."""
