"""What a question of the records world costs one core: a scripted agent's, tables and Python included."""

from __future__ import annotations

from benchmarks.measurement import Measurement, column, repeated

TARGET_RATE = 200.0
RUNS = 3
QUESTIONS = 400  # domains and difficulties in turn

# In a fresh process, whose children are then those of the world: what they used is known when they have ended.
_PLAY = """
import json, resource, tempfile
from resilisim.evaluation import evaluate
from resilisim.sandbox import end_idle_processes
from resilisim.worlds import load_world

def used(who):
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime

world = load_world("records-v1")
evaluate("reference", "records-v1:16")  # the data is made here
begin = used(resource.RUSAGE_SELF)
with tempfile.TemporaryDirectory() as folder:
    result = evaluate("reference", "records-v1:{questions}", out=folder + "/run")
own = used(resource.RUSAGE_SELF) - begin
world.records.database.close()
end_idle_processes()
children = used(resource.RUSAGE_CHILDREN)
print(json.dumps({{"rate": result.num_episodes / (own + children), "own": own, "children": children}}))
"""


def measure(long: bool = False) -> list[Measurement]:
    """Measure; the scripted agent plays the reference solutions in one process."""
    answers = repeated(_PLAY.format(questions=QUESTIONS), RUNS)
    shares = [answer["children"] / (answer["own"] + answer["children"]) for answer in answers]
    what = "records-v1: questions of a scripted agent, with records, a processor second"
    note = f"{min(shares):.0%} to {max(shares):.0%} of it in the processes of queries and of Python"
    return [Measurement(what, "1/s", column(answers, "rate"), TARGET_RATE, "higher", note=note)]
