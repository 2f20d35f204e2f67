"""Does the software do what its specification says? Simulation against closed forms and brute force.

`pytest verification` (or `make verify`) answers with pass or fail, at one family-wise error rate over all statistical
tests of the run; there is no plot to look at. All seeds are fixed, so the answer is the same in every run: `--shift N`
takes other luck, `--problems N` so many random small problems, `-k small_problems` one check.
"""
