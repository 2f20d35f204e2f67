"""Jobs done by several processes: every answer comes, errors travel, and deaths are told."""

import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from resilisim.at_work import AT_WORK
from resilisim.errors import InfrastructureError, InvalidInputError
from resilisim.processes import _context, answers_in_order, answers_of_processes, one_by_one, transportable


def make_counter(base):
    return lambda job: ((job, base + number) for number in range(job))


def make_failing(limit):
    def handle(job):
        yield job
        if job == limit:
            raise InvalidInputError(f"job {job} is refused")

    return handle


def make_dying(code):
    def handle(job):
        os._exit(code)
        yield job

    return handle


def make_solving(what):
    def handle(job):
        with AT_WORK.about(f"{job} of 2"), AT_WORK.on(what):
            yield job

    return handle


def make_nothing(code):
    os._exit(code)


def test_every_answer_to_every_job_comes_once():
    jobs, done = iter(range(1, 8)), []

    def next_job(last, seconds):
        assert seconds >= 0.0
        done.append(last)
        return next(jobs, None)

    answers = list(answers_of_processes(make_counter, 100, next_job, 3))
    assert sorted(answers) == [(job, 100 + number) for job in range(1, 8) for number in range(job)]
    for job in range(1, 8):
        assert [number for place, number in answers if place == job] == list(range(100, 100 + job))
    assert sorted(last for last in done if last is not None) == list(range(1, 8))
    assert done.count(None) == 3


def test_the_phases_of_workers_are_heard_of(monkeypatch):
    heard = []
    monkeypatch.setattr(AT_WORK, "enter", lambda worker, phase: heard.append(phase))
    assert list(answers_of_processes(make_solving, "solving", one_by_one([1, 2]), 1)) == [1, 2]
    assert heard == ["starting processes", "", "solving 1 of 2", "", "solving 2 of 2", "", ""]


def test_an_error_of_a_job_is_raised_after_the_answers_before_it():
    answers = answers_of_processes(make_failing, 2, one_by_one([1, 2, 3]), 1)
    assert [next(answers), next(answers)] == [1, 2]
    with pytest.raises(InvalidInputError, match="job 2 is refused"):
        next(answers)


def test_a_worker_that_dies_is_told_with_its_exit_code():
    with pytest.raises(InfrastructureError, match=r"^a worker process died \(exit code 5\); what was finished is kept"):
        list(answers_of_processes(make_dying, 5, one_by_one([1]), 1))
    with pytest.raises(InfrastructureError, match=r"before it began \(exit code 6\): a script .* needs the guard"):
        list(answers_of_processes(make_nothing, 6, one_by_one([1]), 1))


class Broken(Connection):
    """A pipe as the system may leave it when the worker at its other end is killed."""

    error: Exception
    broken_for = "recv"

    def recv(self):
        if self.broken_for == "recv":
            raise self.error
        return super().recv()

    def send(self, obj):
        self.close()
        raise self.error


@pytest.mark.parametrize(
    ("direction", "error"),
    [("recv", ConnectionResetError()), ("recv", OSError("got end of file")), ("send", BrokenPipeError())],
)
def test_nor_does_it_matter_how_the_pipe_of_a_dead_worker_breaks(direction, error, monkeypatch):
    context = _context(__name__)
    make_pipe = context.Pipe

    def make_broken():
        ours, theirs = make_pipe()
        broken = Broken(os.dup(ours.fileno()))
        broken.error, broken.broken_for = error, direction
        ours.close()
        return broken, theirs

    monkeypatch.setattr(context, "Pipe", make_broken)
    with pytest.raises(InfrastructureError, match=r"a worker process (died|ended before it began)"):
        list(answers_of_processes(make_nothing if direction == "recv" else make_dying, 5, one_by_one([1]), 1))


def test_an_error_that_cannot_travel_is_told_as_text():
    class Local(Exception):
        pass

    error = Local("what")
    error.add_note("where")
    told = transportable(error)
    assert (type(told), str(told), told.__notes__) == (RuntimeError, "Local: what", ["where"])
    kept = transportable(KeyError("x"))
    assert isinstance(kept, KeyError)


def make_squarer(offset):
    """Return a handler whose later jobs are quicker, so that answers come out of order."""

    def handle(job):
        number, value = job
        for _ in range(20_000 * max(0, 12 - number)):
            pass
        yield number, value * value + offset

    return handle


@pytest.mark.parametrize("workers", [1, 3])
def test_answers_in_order_come_in_the_order_of_the_jobs(workers):
    jobs = list(range(5, 45))
    assert list(answers_in_order(make_squarer, 7, jobs, workers)) == [job * job + 7 for job in jobs]


ROOT = Path(__file__).parents[1]


class InterruptedOnArrival:
    """Travels to a worker, which is interrupted while it unpacks this: before it could ignore Ctrl-C."""

    def __reduce__(self):
        return arrive, (os.getpid(),)


def arrive(sender):
    if os.getpid() != sender:
        os.kill(os.getpid(), signal.SIGINT)
    return InterruptedOnArrival()


def make_squares(setup):
    return lambda number: iter([number * number])


def squares(count):
    return sorted(answers_of_processes(make_squares, InterruptedOnArrival(), one_by_one(range(count)), 2))


def test_a_worker_that_is_interrupted_before_it_begins_works_on_and_says_nothing():
    script = (
        "import signal\n"
        "from tests.test_processes import squares\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "print(squares(6), signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (ended.stderr, ended.returncode) == ("", 0)
    assert ended.stdout == "[0, 1, 4, 9, 16, 25] set()\n"  # and the parent can be interrupted again
