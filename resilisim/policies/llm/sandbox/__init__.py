"""Running Python that a model wrote, outside of the simulator's process.

The sandbox is `pydantic-monty`: an interpreter of a subset of Python, made for such code, in worker processes. What it
lacks (inheritance of classes, `del`, generators, most of the standard library) is told to the model as an error of its
block. Measured on two shared cores: 10 ms (45 ms at worst) until the first block has run, 0.5 ms for a block, 0.4 ms
for a call of a host's function, 1 ms to end; 0.25 ms of each is this process's own; 12 MB for a worker. 256 sandboxes
that start within 3 s hold the event loop up for at most 13 ms, 256 that start at one moment for 80 to 400 ms.
"""

from resilisim.policies.llm.sandbox.box import Sandbox
from resilisim.policies.llm.sandbox.limits import SandboxLimits
from resilisim.policies.llm.sandbox.results import NO_OUTPUT, RESTARTED, CodeResult
from resilisim.policies.llm.sandbox.values import JsonValue, NotJsonError
from resilisim.policies.llm.sandbox.worker import HostCallError, HostFunction

__all__ = [
    "NO_OUTPUT",
    "RESTARTED",
    "CodeResult",
    "HostCallError",
    "HostFunction",
    "JsonValue",
    "NotJsonError",
    "Sandbox",
    "SandboxLimits",
]
