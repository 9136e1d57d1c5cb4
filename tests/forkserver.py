"""Python programs as forks of one process that has imported what they need: a start takes milliseconds of CPU, not
seconds.

`ForkServer.popen` starts `python -m MODULE` as `subprocess.Popen` would: with arguments, environment, folder, standard
streams and exit code of its own, to be killed by its process id. It refuses to know what programs do. What comes before
a program's first line is not tested this way: options of the interpreter, `PYTHONPATH`, what it imports at its start.

Run as a program it is the parent of all of them, with one thread, until whoever asks is gone.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn, Self

from spark_jobs import daemon

ROOT = Path(__file__).parents[1]
MAX_REQUEST_BYTES = 100_000
STREAMS = 2  # that a child gets beside the pipe for its exit code: output and errors
# Beside what slots need: what a program imports, by its module; loaded before it is first forked.
_OF_THE_COMMAND = ("alembic.command", "service.embedded", "service.logs", "typer", "uvloop")
NEEDED = {
    "service.cli": _OF_THE_COMMAND,
    "tests.short_turns": _OF_THE_COMMAND,
    "tests.sparkless": ("benchmarks.running",),
}


class Forked:
    """A child of the fork server; what is used of `subprocess.Popen`."""

    def __init__(self, args: list[str], pid: int, ended: int, stdout: IO[str] | None) -> None:
        self.args, self.pid, self.stdout = args, pid, stdout
        self.returncode: int | None = None
        self._ended = ended  # a pipe: its exit code, once it has one

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        return self._code(0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended. Raises subprocess.TimeoutExpired."""
        code = self._code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _code(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            said = os.read(self._ended, 16)
            self.returncode = int(said) if said else -signal.SIGKILL  # without a word: its parent has ended, and so it
            os.close(self._ended)
        return self.returncode


class ForkServer:
    """The parent, as its tests see it: a context manager with which all of its children end."""

    def __enter__(self) -> Self:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.forkserver", str(theirs.fileno())]
            env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # it loads pandas once
            how = {"cwd": ROOT, "env": env, "pass_fds": [theirs.fileno()], "stdin": subprocess.DEVNULL}
            self._process = subprocess.Popen(command, **how)
        return self

    def popen(
        self,
        args: list[str],
        *,
        env: Mapping[str, str],
        stdout: IO[Any] | int,
        stderr: IO[Any],
        cwd: Path | None = None,
        text: bool = False,
    ) -> Forked:
        """A child that is `args`: this interpreter, `-m`, a module and its arguments. `stdout` is a file, or
        `subprocess.PIPE` for text.

        Raises:
            RuntimeError: the parent has ended; its errors are those of the tests.
        """
        python, option, module, *arguments = args
        assert [python, option] == [sys.executable, "-m"], "any other program has to be started"
        assert text == (stdout == subprocess.PIPE)
        request = {"module": module, "arguments": arguments, "env": dict(env), "cwd": str(cwd or Path.cwd())}
        ended, ends = os.pipe()
        read, output = os.pipe() if isinstance(stdout, int) else (None, os.dup(stdout.fileno()))
        try:
            handles = [ends, output, stderr.fileno()]
            socket.send_fds(self._control, [json.dumps(request).encode()], handles)
            answer = self._control.recv(16)
        finally:
            os.close(ends)
            os.close(output)
        if not answer:
            raise RuntimeError("the fork server has ended")
        return Forked(args, int(answer), ended, None if read is None else os.fdopen(read))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._control.close()
        self._process.wait(30)


# ---------------------------------------------------------------- in the parent


def main() -> None:
    """Fork what is asked for, until nobody is left to ask."""
    daemon.die_with_parent()
    daemon.load()
    control, selector = socket.socket(fileno=int(sys.argv[1])), selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not control:
                selector.unregister(key.fd)
                _report(key.fd, *key.data)
                continue
            message, handles, _, _ = socket.recv_fds(control, MAX_REQUEST_BYTES, 1 + STREAMS)
            if not message:
                return
            pid, ends = _fork(json.loads(message), handles)
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, ends))
            control.send(str(pid).encode())


def _report(child: int, pid: int, ends: int) -> None:
    """Tell whoever asked for it how a child has ended."""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it
        os.write(ends, str(code).encode())
    for handle in (child, ends):
        os.close(handle)


def _fork(program: dict[str, Any], handles: list[int]) -> tuple[int, int]:
    """Its process id, and the pipe for its exit code."""
    for name in NEEDED.get(program["module"], ()):
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "the locks of other threads would stay as they are"
    gc.collect()
    gc.freeze()  # the collector of a child would copy the pages that all share
    ends, *streams = handles
    pid = os.fork()
    if pid == 0:
        _become(program, streams)
    for handle in streams:
        os.close(handle)
    return pid, ends


def _become(program: dict[str, Any], streams: list[int]) -> NoReturn:
    """Be a program, in a child; returns to nothing of its parent, whose objects hold files that are closed here."""
    daemon.die_with_parent()
    for number, handle in enumerate([os.open(os.devnull, os.O_RDONLY), *streams]):
        os.dup2(handle, number)
    os.closerange(1 + STREAMS, os.sysconf("SC_OPEN_MAX"))
    code = 1
    try:
        os.chdir(program["cwd"])
        os.environ.clear()
        os.environ.update(program["env"])
        sys.argv[1:] = program["arguments"]
        runpy.run_module(program["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  the end of this process: nothing of its parent may go on here
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):  # nobody listens any more
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
    os._exit(0)  # DuckDB complains at an orderly exit
