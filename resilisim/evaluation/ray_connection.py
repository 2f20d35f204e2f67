"""Reaching a Ray cluster, or starting one on this machine, and leaving it as it was."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from resilisim.errors import InfrastructureError, InvalidInputError, MissingExtraError

PROBE_SECONDS = 5.0
# Only lines of text travel: Ray would set a third of the memory aside.
LOCAL_STORE_BYTES = 100 * 2**20
# Read by Ray when it starts processes: nobody who runs a benchmark has agreed to be counted.
_QUIET_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def require_ray() -> Any:
    """Import Ray.

    Raises:
        MissingExtraError: It is not installed; the text says how to get it.
    """
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtraError(f"several machines need 'ray' ({error}): pip install 'resilisim[ray]'") from error


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """Be connected to a cluster; gives the module `ray`.

    A Ray that this process has already initialised is used and stays; any other connection is closed at the end, and a
    Ray that was started here is stopped.

    Args:
        address: "auto" (the cluster of this machine, or of RAY_ADDRESS), "local" (start one here), or HOST:PORT of a
            cluster that this machine belongs to. Ray's client protocol (ray://) is not spoken.

    Raises:
        InvalidInputError: The address is none, or this process is connected to another cluster.
        MissingExtraError: Ray is not installed.
        InfrastructureError: The cluster cannot be reached, or not be started.
    """
    place = os.environ.get("RAY_ADDRESS") or address if address == "auto" else address
    if place not in ("auto", "local"):
        host, port = _parse(place)
    ray = require_ray()
    if ray.is_initialized():
        _refuse_other_cluster(ray, place)
        with _without_messages():
            yield ray
        return
    if place not in ("auto", "local"):
        _probe(place, host, port)
    options: dict[str, Any] = {"address": place, "log_to_driver": False, "logging_level": logging.ERROR}
    if place == "local":
        options |= {"include_dashboard": False, "object_store_memory": LOCAL_STORE_BYTES}
    with _without_messages():
        try:
            with _quiet_environment():
                ray.init(**options)
        except Exception as error:
            ray.shutdown()
            raise InfrastructureError(_cannot_reach(place, error)) from error
        try:
            yield ray
        finally:
            ray.shutdown()


def check_address(address: str) -> None:
    """Refuse what is no address of a cluster (`connected`); whether anybody listens there is not asked.

    Raises:
        InvalidInputError: It is none.
    """
    if address not in ("auto", "local"):
        _parse(address)


def _parse(address: str) -> tuple[str, int]:
    refusal = InvalidInputError(
        f"address {address!r} of a Ray cluster: expected 'auto', 'local' or HOST:PORT, on a machine that belongs to it"
    )
    try:
        parts = urlsplit("//" + address)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise refusal from None
    if not host or not port or parts.path or parts.query or parts.fragment:
        raise refusal
    return host, port


def _probe(address: str, host: str, port: int) -> None:
    """Refuse an address where nobody listens: Ray would try for minutes."""
    try:
        socket.create_connection((host, port), timeout=PROBE_SECONDS).close()
    except OSError as error:
        raise InfrastructureError(_cannot_reach(address, error)) from error


def _cannot_reach(address: str, error: Exception) -> str:
    if address == "auto" and isinstance(error, ConnectionError):
        return "no Ray cluster runs on this machine: start one (ray start --head), or give its address, or 'local'"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    what = "start Ray here" if address == "local" else f"reach the Ray cluster at {address}"
    return f"cannot {what}: {reason}"


def _refuse_other_cluster(ray: Any, address: str) -> None:
    if address in ("auto", "local"):
        return
    here = ray.get_runtime_context().gcs_address
    if here != address:
        raise InvalidInputError(f"address {address!r}: this process is connected to the Ray cluster at {here}")


@contextlib.contextmanager
def _quiet_environment() -> Iterator[None]:
    added = {name: value for name, value in _QUIET_ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextlib.contextmanager
def _without_messages() -> Iterator[None]:
    """Keep Ray from printing to standard output what became of a node; who plays says it in a line of its own.

    `log_to_driver` does not reach these messages; the switch is the one that Ray's debugger uses.
    """
    worker = importlib.import_module("ray._private.worker")
    before = getattr(worker, "_worker_logs_enabled", True)
    worker.__dict__["_worker_logs_enabled"] = False
    try:
        yield
    finally:
        worker.__dict__["_worker_logs_enabled"] = before
