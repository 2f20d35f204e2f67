"""The page of a robustness profile: curves and grids beside the exact optimum of each setting."""
