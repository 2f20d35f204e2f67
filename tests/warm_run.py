"""What stands for a Python in command lines (`warm`): `python warm_run.py SOCKET -m resilisim ...`."""

import json
import os
import signal
import socket
import sys


def main() -> None:
    """Have the command run in a fork, and end as it ends."""
    streams = [number for number in (0, 1, 2) if _is_open(number)]
    asked = {"arguments": sys.argv[2:], "folder": os.getcwd(), "environment": dict(os.environ), "streams": streams}
    data = json.dumps(asked).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(sys.argv[1])
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, frame: server.sendall(bytes([number])))
        socket.send_fds(server, [b"!"], streams)
        server.sendall(len(data).to_bytes(4, "big") + data)
        for number in streams:  # nobody waits for this program to close them
            os.close(number)
        code = int(server.makefile("rb").readline())
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


main()
