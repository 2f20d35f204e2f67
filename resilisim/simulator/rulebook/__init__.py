"""A law as a rulebook: chances, what calls bring and lead to, with a section for each part that the law has."""
