"""Work done by several processes: jobs go out over pipes, answers come back as they are made.

A worker is handed jobs over its own pipe and sends answers back at the latest a tenth of a second after they were made,
so that a killed run loses next to nothing. It asks for the next job only when it has sent all answers to the last one,
so neither side can block the other. A closed pipe is the only signal there is: it tells the worker that the run is over
or its parent dead, and the parent that the worker has died.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeAlias, TypeVar, cast

from resilisim.at_work import AT_WORK
from resilisim.errors import InfrastructureError

Setup = TypeVar("Setup")
Job = TypeVar("Job")
Answer = TypeVar("Answer")
# Makes, once in each process, the function that turns a job into answers; a function of a module, as it travels.
MakeHandler: TypeAlias = "Callable[[Setup], Callable[[Job], Iterator[Answer]]]"
# Returns a worker's next job, None when there is none left; told its last one (None at first) and the seconds it took.
NextJob: TypeAlias = "Callable[[Job | None, float], Job | None]"

SEND_SECONDS = 0.1
_STARTING = "starting processes"


def one_by_one(jobs: Iterable[Job]) -> NextJob[Job]:
    """Return what hands out jobs in order, whoever asks."""
    left = iter(jobs)
    return lambda last, seconds: next(left, None)


def answers_of_processes(
    make_handler: MakeHandler[Setup, Job, Answer],
    setup: Setup,
    next_job: NextJob[Job],
    workers: int,
    until: float | None = None,
) -> Iterator[Answer]:
    """Yield the answers to all jobs, made by several processes, in the order in which they come.

    `make_handler` is called with `setup`, which is pickled, once in each process. At the moment `until` of the
    monotonic clock all workers are stopped. What a job raises is raised here, an InfrastructureError if a worker dies.
    """
    context = _context(make_handler.__module__)
    processes: dict[Connection, BaseProcess] = {}
    started: dict[Connection, tuple[float, Job]] = {}
    ready: set[Connection] = set()
    threads = max(1, (os.cpu_count() or 1) // workers)
    try:
        with _interrupts_held_back():
            for _ in range(workers):
                ours, theirs = context.Pipe()
                arguments = (theirs, make_handler, setup, threads, dict(os.environ))
                process: BaseProcess = context.Process(target=_work, args=arguments, daemon=True)
                AT_WORK.enter(ours, _STARTING)
                process.start()
                theirs.close()
                processes[ours] = process
        while processes:
            left = None if until is None else max(until - time.monotonic(), 0.0)
            answering = wait(list(processes), left)
            if not answering:
                return
            for connection in answering:
                connection = cast("Connection", connection)
                try:
                    message = connection.recv()
                except (EOFError, OSError):  # what a dead worker's pipe says depends on what it was doing
                    raise _death(processes[connection], began=connection in ready) from None
                if isinstance(message, BaseException):
                    raise message
                if isinstance(message, str):
                    AT_WORK.enter(connection, message)
                    continue
                if message is not None:
                    yield from message
                    continue
                if connection not in ready:
                    AT_WORK.enter(connection, "")
                ready.add(connection)
                since, last = started.pop(connection, (time.monotonic(), None))
                job = next_job(last, time.monotonic() - since)
                if job is None:
                    AT_WORK.enter(connection, "")
                    connection.close()
                    processes.pop(connection).join()
                    continue
                started[connection] = (time.monotonic(), job)
                try:
                    connection.send(job)
                except OSError:
                    raise _death(processes[connection], began=True) from None
    finally:
        for connection, process in processes.items():
            AT_WORK.enter(connection, "")
            connection.close()
            process.terminate()
            process.join()


def _context(module: str) -> Any:
    """Return what starts processes: not forks of this one, whose compiled code and threads may make its children hang.

    On Linux they are forks of a process that has imported `module`, and the seconds that takes are not spent by each.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])  # of the first call: later ones find the process there
    return context


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Let Ctrl-C wait while processes are started: they inherit this until they ignore it, and none is lost."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # starting it would let signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def answers_in_order(
    make_handler: MakeHandler[Setup, tuple[int, Job], tuple[int, Answer]],
    setup: Setup,
    jobs: Iterable[Job],
    workers: int,
) -> Iterator[Answer]:
    """Yield one answer to each job, in their order; handlers are given (number, job) and yield (number, answer)."""
    numbered = enumerate(jobs)
    if workers <= 1:
        handler = make_handler(setup)
        for job in numbered:
            yield from (answer for _, answer in handler(job))
        return
    waiting: dict[int, Answer] = {}
    turn = 0
    for number, answer in answers_of_processes(make_handler, setup, one_by_one(numbered), workers):
        waiting[number] = answer
        while turn in waiting:
            yield waiting.pop(turn)
            turn += 1


def _death(process: BaseProcess, began: bool) -> InfrastructureError:
    process.join(5.0)
    if not began:
        return InfrastructureError(
            f"a worker process ended before it began (exit code {process.exitcode}): "
            'a script that starts several workers needs the guard `if __name__ == "__main__":`'
        )
    return InfrastructureError(
        f"a worker process died (exit code {process.exitcode}); "
        "what was finished is kept, and the same command resumes it"
    )


def _work(
    connection: Connection,
    make_handler: MakeHandler[Any, Any, Any],
    setup: Any,
    threads: int,
    environment: dict[str, str],
) -> None:
    """Be a worker until the pipe is closed."""
    os.environ.clear()  # what this process was forked from may have begun in another one
    os.environ.update(environment)
    # Libraries that are loaded later (retrieval's model) would each start as many threads as the machine has cores.
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent says what it means
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # held back until now (`_interrupts_held_back`)
    # Phases are told from whichever thread does the work, and before answers: the parent reads whenever it waits.
    sending = threading.Lock()

    def send(message: Any) -> None:
        with sending:
            connection.send(message)

    def tell(phase: str) -> None:
        with contextlib.suppress(OSError):  # the run is over, which shows at the next answer
            send(phase)

    AT_WORK.hear = tell
    try:
        try:
            handler = make_handler(setup)
            send(None)
            while True:
                _do_job(send, handler, connection.recv())
                send(None)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:
            send(transportable(error))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the run is over, or its process dead
    finally:
        connection.close()


def _do_job(send: Callable[[Any], None], handler: Callable[[Any], Iterator[Any]], job: Any) -> None:
    made: list[Any] = []
    sent = time.monotonic()
    try:
        for answer in handler(job):
            made.append(answer)
            if time.monotonic() - sent > SEND_SECONDS:
                send(made)
                made, sent = [], time.monotonic()
    finally:
        # Also when the job fails: the answers before that are whole.
        if made:
            send(made)


def transportable(error: Exception) -> Exception:
    """Return the error if it survives the way to the parent, else one that tells the same."""
    notes = list(getattr(error, "__notes__", ()))
    try:
        copy = pickle.loads(pickle.dumps(error))
        if type(copy) is type(error) and str(copy) == str(error):
            error.__notes__ = notes
            return error
    except Exception:
        copy = None  # what cannot be pickled is told as text
    substitute = RuntimeError(f"{type(error).__name__}: {error}")
    for note in notes:
        substitute.add_note(note)
    return substitute
