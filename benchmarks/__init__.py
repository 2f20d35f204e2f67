"""How fast is it, and against what? Rates and ratios, each with the machine that they were measured on.

`python -m benchmarks` (or `make bench`) measures everything, `python -m benchmarks exact import` two things. Every
figure is the median of several runs with their spread, in fresh processes where a user would start one.
"""
