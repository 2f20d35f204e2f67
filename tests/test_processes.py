"""Jobs done by several processes: every answer comes, errors travel, and deaths are told."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import pytest

from resilisim.errors import InfrastructureError, InvalidInputError
from resilisim.processes import answers_in_order, answers_of_processes, one_by_one, transportable


def make_counter(base: int) -> Callable[[int], Iterator[tuple[int, int]]]:
    return lambda job: ((job, base + number) for number in range(job))


def make_failing(limit: int) -> Callable[[int], Iterator[int]]:
    def handle(job: int) -> Iterator[int]:
        yield job
        if job == limit:
            raise InvalidInputError(f"job {job} is refused")

    return handle


def make_dying(code: int) -> Callable[[int], Iterator[int]]:
    def handle(job: int) -> Iterator[int]:
        os._exit(code)
        yield job

    return handle


def make_nothing(code: int) -> Callable[[int], Iterator[int]]:
    os._exit(code)


def test_every_answer_to_every_job_comes_once() -> None:
    jobs, done = iter(range(1, 8)), []

    def next_job(last: int | None, seconds: float) -> int | None:
        assert seconds >= 0.0
        done.append(last)
        return next(jobs, None)

    answers = list(answers_of_processes(make_counter, 100, next_job, 3))
    assert sorted(answers) == [(job, 100 + number) for job in range(1, 8) for number in range(job)]
    for job in range(1, 8):
        assert [number for place, number in answers if place == job] == list(range(100, 100 + job))
    assert sorted(last for last in done if last is not None) == list(range(1, 8))
    assert done.count(None) == 3


def test_an_error_of_a_job_is_raised_after_the_answers_before_it() -> None:
    answers = answers_of_processes(make_failing, 2, one_by_one([1, 2, 3]), 1)
    assert [next(answers), next(answers)] == [1, 2]
    with pytest.raises(InvalidInputError, match="job 2 is refused"):
        next(answers)


def test_a_worker_that_dies_is_told_with_its_exit_code() -> None:
    with pytest.raises(InfrastructureError, match=r"^a worker process died \(exit code 5\); what was finished is kept"):
        list(answers_of_processes(make_dying, 5, one_by_one([1]), 1))
    with pytest.raises(InfrastructureError, match=r"before it began \(exit code 6\): a script .* needs the guard"):
        list(answers_of_processes(make_nothing, 6, one_by_one([1]), 1))


class Broken(Connection):
    """A pipe as the system may leave it when the worker at its other end is killed."""

    error: Exception
    broken_for = "recv"

    def recv(self) -> object:
        if self.broken_for == "recv":
            raise self.error
        return super().recv()

    def send(self, obj: object) -> None:
        self.close()
        raise self.error


@pytest.mark.parametrize(
    ("direction", "error"),
    [("recv", ConnectionResetError()), ("recv", OSError("got end of file")), ("send", BrokenPipeError())],
)
def test_nor_does_it_matter_how_the_pipe_of_a_dead_worker_breaks(
    direction: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = multiprocessing.get_context("spawn")
    make_pipe = context.Pipe

    def make_broken() -> tuple[Connection, Connection]:
        ours, theirs = make_pipe()
        broken = Broken(os.dup(ours.fileno()))
        broken.error, broken.broken_for = error, direction
        ours.close()
        return broken, theirs

    monkeypatch.setattr(context, "Pipe", make_broken)
    with pytest.raises(InfrastructureError, match=r"a worker process (died|ended before it began)"):
        list(answers_of_processes(make_nothing if direction == "recv" else make_dying, 5, one_by_one([1]), 1))


def test_an_error_that_cannot_travel_is_told_as_text() -> None:
    class Local(Exception):
        pass

    error = Local("what")
    error.add_note("where")
    told = transportable(error)
    assert (type(told), str(told), told.__notes__) == (RuntimeError, "Local: what", ["where"])
    kept = transportable(KeyError("x"))
    assert isinstance(kept, KeyError)


def make_squarer(offset: int) -> Callable[[tuple[int, int]], Iterator[tuple[int, int]]]:
    """Return a handler whose later jobs are quicker, so that answers come out of order."""

    def handle(job: tuple[int, int]) -> Iterator[tuple[int, int]]:
        number, value = job
        for _ in range(20_000 * max(0, 12 - number)):
            pass
        yield number, value * value + offset

    return handle


@pytest.mark.parametrize("workers", [1, 3])
def test_answers_in_order_come_in_the_order_of_the_jobs(workers: int) -> None:
    jobs = list(range(5, 45))
    assert list(answers_in_order(make_squarer, 7, jobs, workers)) == [job * job + 7 for job in jobs]
