"""What the kill test kills: `python -m tests.evaluation.kill_target FOLDER WORKERS`."""

from __future__ import annotations

import sys

from resilisim.evaluation import evaluate
from tests.evaluation.toy_policies import toy_tasks

ARGUMENTS = {
    "policies": ["tests.evaluation.toy_policies:Slow", "tests.evaluation.toy_policies:Quitter"],
    "prompts": ("baseline", "optimal"),
    "seeds": 10,
}

if __name__ == "__main__":
    evaluate(tasks=toy_tasks(), out=sys.argv[1], workers=int(sys.argv[2]), progress=False, **ARGUMENTS)
