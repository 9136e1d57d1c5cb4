"""The parent of simulations and filters: a process with one thread that has loaded what they need, and forks one for
each connection that it is given.

It knows when a child begins and ends, and cleans up behind it. It refuses to know what is simulated (`child`), filtered
(`filter_child`) or explained (`explain_child`), and who asks (`processes`): it gets connections over a socket, and ends
when that does.

Why it is forked, and what that costs: ADR 11.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Final

import structlog

from service import logs
from service.simulate import child, explain_child, filter_child
from service.simulate.child import Limits
from service.storage.private import keep_private
from service.streams import kernels

READY: Final = b"r"
SIMULATION: Final = b"s"
FILTER: Final = b"f"
EXPLANATION: Final = b"e"
_CHILDREN: Final = {SIMULATION: child.serve, FILTER: filter_child.serve, EXPLANATION: explain_child.serve}


class ForkedProcesses:
    """The children that run: process id → the folder of what each keeps meanwhile, and its connection.

    A connection ends when the process is gone and its folder too, so who reads to its end knows that nothing is left.
    """

    def __init__(self, control: socket.socket, limits: Limits) -> None:
        self._control, self._limits = control, limits
        self._running: dict[int, tuple[Path, socket.socket]] = {}
        self._log = structlog.get_logger()

    def serve(self) -> None:
        """Begin one for each connection that is handed over, until nobody is left to do so."""
        ended, wakes = socket.socketpair()
        for end in (ended, wakes):
            end.setblocking(False)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # else no byte is written
        self._control.send(READY)
        while True:
            ready, _, _ = select.select([self._control, ended], [], [])
            if ended in ready:
                ended.recv(1024)
                self._reap()
            if self._control in ready:
                message, handles, _, _ = socket.recv_fds(self._control, 1, 1)
                if not message:
                    return
                self._begin(message, socket.socket(fileno=handles[0]))

    def end(self) -> None:
        """End all that run."""
        signal.set_wakeup_fd(-1)
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
        while self._running:
            self._forget(*os.waitpid(-1, 0))

    def _begin(self, kind: bytes, connection: socket.socket) -> None:
        folder = Path(tempfile.mkdtemp(prefix="millrace-simulate-"))
        pid = os.fork()
        if pid == 0:
            self._control.close()
            _answer_and_end(kind, connection, folder, self._limits)
        self._running[pid] = folder, connection

    def _reap(self) -> None:
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._forget(pid, status)

    def _forget(self, pid: int, status: int) -> None:
        folder, connection = self._running.pop(pid)
        shutil.rmtree(folder, ignore_errors=True)
        with connection, contextlib.suppress(OSError):  # whoever asked is gone
            connection.shutdown(socket.SHUT_RDWR)  # children forked since hold it too
        code = os.waitstatus_to_exitcode(status)
        if code != 0:
            self._log.warning("child_ended", code=code)


def _answer_and_end(kind: bytes, connection: socket.socket, folder: Path, limits: Limits) -> None:
    """The whole life of a child: nothing of its parent goes on in it."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with contextlib.suppress(ConnectionError, TimeoutError):  # whoever asked is gone
            _CHILDREN[kind](connection, folder, limits)
        code = 0
    finally:
        os._exit(code)


def main() -> None:
    """Load, then serve the socket whose number is the first argument; the others are the Limits."""
    control, *limits = map(int, sys.argv[1:])
    keep_private()
    logs.configure("info")
    kernels.warm()
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise RuntimeError(f"{threads} threads run in the parent of simulations: a fork would copy their locks")
    gc.collect()
    gc.freeze()  # the collector would write to, and so copy, every page that simulations share
    children = ForkedProcesses(socket.socket(fileno=control), Limits(*limits))
    try:
        children.serve()
    finally:
        children.end()
        os._exit(0)  # modules in C would look for leaks, and complain


if __name__ == "__main__":
    main()
