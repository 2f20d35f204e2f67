"""What Numba compiles of Workflow-v0: records of episodes, and the scalar functions that begin, step and show them.

`batch_loops` is the door. The kernels know actions and columns (`spaces`) and the simulator's rulebook, and nothing
else of Workflow-v0.
"""
