"""PPO on Workflow-v0: network, policy for sb3-contrib's MaskablePPO, training, checkpoints.

Nothing is imported here, so that torch is loaded only by whoever asks for one of the modules.
"""

SHIPPED_CHECKPOINTS = ("default", "benchmark")  # the names of trained policies that ship
