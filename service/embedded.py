"""`millrace up`: one data directory, the API in this process, instances as children.

Knows processes, locks and signals. Refuses to know what the API serves and what an instance does. Nothing it
leaves behind can block the next start: the lock lives and dies with the process, children watch a pipe of ours.
"""

import asyncio
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import os
import resource
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import structlog
import uvicorn

from service.api.dashboard import sign_in_link
from service.app import Service, create_app
from service.auth import install_admin
from service.catalog import keys, sessions
from service.catalog.engine import Catalog
from service.connections import Connection
from service.settings import Settings
from service.storage.private import private_folder

BACK_OFF_S = (0.5, 1, 2, 4, 8, 16, 30)
HEALTHY_AFTER_S = 60.0
GRACE_S = 10  # in which requests under way may end
END_S = 15.0  # in which all may: what takes longer waits for a database or a resolver that does not answer
FILES_BESIDE_CONNECTIONS = 1_024  # replicas, segments, the catalog
Announce = Callable[[str], None]  # told the URL once it is served
# How long a thread that computes keeps others waiting. With the default of 5 ms the thread that writes groups waits for
# the event loop after each of its ten system calls: with 64 clients that post, p99 was 129 ms and is 69, p50 37 and 30.
SWITCH_INTERVAL_S = 0.000_5
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class DataDirBusy(Exception):
    """Another `millrace up` runs on this data directory."""

    def __init__(self, folder: Path, pid: str) -> None:
        super().__init__(f"{folder} is in use by another `millrace up` (pid {pid or 'unknown'}); stop it first")


class CatalogNotCurrent(Exception):
    """The catalog's schema is another version's."""

    def __init__(self) -> None:
        super().__init__("the catalog's schema is not this version's: run `millrace migrate`")


@contextmanager
def data_dir_lock(folder: Path) -> Iterator[None]:
    """Hold `<folder>/lock`, with our pid in it; the kernel lets go of it when we end, however we end."""
    private_folder(folder)
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataDirBusy(folder, os.pread(handle, 32, 0).decode("ascii", "replace").strip()) from error
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def admin_secret(settings: Settings) -> str:
    """The bootstrap admin key: the setting, else `<data-dir>/admin-key`, made (mode 0600) when missing."""
    if settings.api_key is not None:
        return settings.api_key.get_secret_value()
    path = settings.data_dir / "admin-key"
    with contextlib.suppress(FileExistsError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    structlog.get_logger().info("admin_key", path=str(path))
    secret = path.read_text().strip()
    if not secret:  # the process died between making the file and filling it
        path.unlink()
        return admin_secret(settings)
    return secret


def dashboard_link(settings: Settings, url: str) -> str:
    """The dashboard's address; with authentication, with a code that signs the folder's admin in once."""
    home = settings.public_url or url
    if settings.auth == "off":
        return f"{home}/admin"
    catalog = Catalog(settings.database_url)
    try:
        key = catalog.read(keys.find_key, keys.digest(admin_secret(settings)))
        return sign_in_link(home, catalog.write(sessions.make_code, key.id)) if key else f"{home}/admin"
    finally:
        catalog.close()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host.strip("[]"), port), family=family, backlog=2048)


def url_of(listener: socket.socket) -> str:
    """Where the socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """uvicorn that logs through us, says when it is up, and leaves the signals to us.

    They are ours because it must outlive the instances' last commits.
    """

    def __init__(self, app: Service, settings: Settings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                http=partial(Connection, settings=settings, quick_gets=app.quick_gets),  # type: ignore[arg-type]  # makes what a class would
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # nothing here asks who or where a caller is
                timeout_keep_alive=settings.idle_timeout_ms / 1000,  # type: ignore[arg-type]  # passed on as it is
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        self.is_up = asyncio.Event()  # set as well when it could not start: see `started`

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the app and the sockets."""
        try:
            await super().startup(sockets)
        finally:
            self.is_up.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave SIGTERM and SIGINT alone."""
        yield


class InstanceProcess:
    """One instance as a child, started again with growing pauses when it ends before it is told to."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self._command = command
        self._environment = dict(environment)
        self._process: asyncio.subprocess.Process | None = None
        self._is_stopping = False
        self._log = structlog.get_logger()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def supervise(self) -> None:
        """Start it, wait for its end, start it again; returns after `stop`."""
        failures = 0
        while not self._is_stopping:
            started = time.monotonic()
            code = await self._run_once()
            if self._is_stopping:
                return
            failures = 0 if time.monotonic() - started >= HEALTHY_AFTER_S else failures
            pause = BACK_OFF_S[min(failures, len(BACK_OFF_S) - 1)]
            failures += 1
            self._log.warning("instance_ended", code=code, restart_in_s=pause)
            await asyncio.sleep(pause)

    async def stop(self, timeout_s: float) -> None:
        """Ask it to commit and leave; end it when it takes longer than that."""
        self._is_stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout_s):
                await process.wait()
        except TimeoutError:
            self._log.warning("instance_killed", pid=process.pid, waited_s=timeout_s)
            process.kill()
            await process.wait()

    async def _run_once(self) -> int | None:
        """Its exit code; None when it could not be started."""
        try:
            self._process = await self._start()
        except OSError as error:
            self._log.error("instance_not_started", error=str(error))
            return None
        self._log.info("instance_started", pid=self._process.pid)
        return await self._process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,  # never written: its end tells the child that we are gone
            stdout=sys.stderr.fileno(),
            env=self._environment,
            preexec_fn=_die_with_parent,  # one system call, looked up before the fork
        )


async def serve(settings: Settings, *, announce: Announce) -> None:
    """`millrace api`: serve until SIGTERM or SIGINT, on a catalog that is migrated already."""
    _prepare(settings, migrate=False)
    await _serve(settings, announce, lambda url: [])


async def up(
    settings: Settings, *, instances: int, cores: int | None, has_spark_ui: bool = False, announce: Announce
) -> None:
    """`millrace up`: migrate, serve, keep `instances` children running; on SIGTERM or SIGINT drain and return."""
    key = _prepare(settings, migrate=True)
    environment = {**os.environ, "MILLRACE_API_KEY": key, "MILLRACE_REPLICA_DIR": str(settings.replica_dir)}
    await _serve(
        settings,
        announce,
        lambda url: [
            InstanceProcess(instance_command(url, index, cores, has_spark_ui=has_spark_ui), environment)
            for index in range(instances)
        ],
    )


def instance_command(url: str, index: int, cores: int | None, *, has_spark_ui: bool = False) -> list[str]:
    """How an instance is started here; `cores` bounds the slots that each job has there."""
    master = f"local[{cores or os.cpu_count() or 1}]"
    arguments = ["--api", url, "--spark-master", master, "--name", f"embedded-{index}", "--watch-stdin"]
    ui = ["--spark-ui"] if has_spark_ui else []
    return [sys.executable, "-m", "spark_jobs.instance", *arguments, *ui]


def _prepare(settings: Settings, *, migrate: bool) -> str:
    """Migrate or check the catalog, install the admin key; returns a fresh key for our instances."""
    catalog = Catalog(settings.database_url)
    try:
        if migrate:
            catalog.upgrade()
        elif not catalog.is_current:
            raise CatalogNotCurrent
        if migrate or settings.api_key is not None:
            catalog.write(install_admin, secret=admin_secret(settings))
        if not migrate:
            return ""
        catalog.write(keys.drop_ephemeral_keys)
        _, secret = catalog.write(keys.create_key, name="embedded instances", role="instance", ephemeral=True)
        return secret
    finally:
        catalog.close()


async def _serve(settings: Settings, announce: Announce, children_of: Callable[[str], list[InstanceProcess]]) -> None:
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    _allow_files(settings.max_connections)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    listener = listen(settings.host, settings.port)
    app = create_app(settings)
    server = Server(app, settings)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await server.is_up.wait()
    if not server.started:
        await serving
        raise OSError("the service could not start; the log says why")
    gc.freeze()  # what is here by now stays: looking through it took 150 ms in which nobody was answered
    announce(url_of(listener))
    children = children_of(_loopback_url(listener))
    supervision = [asyncio.create_task(child.supervise()) for child in children]
    await asyncio.wait([asyncio.create_task(asked.wait()), serving], return_when=asyncio.FIRST_COMPLETED)
    app.state.is_draining = True
    await asyncio.gather(*(child.stop(settings.drain_timeout_ms / 1000) for child in children))
    for task in supervision:
        task.cancel()
    _end_within(END_S)
    app.state.hub.close()
    server.should_exit = True
    await serving
    gc.unfreeze()  # modules in C that count what is left at the end would complain


def _end_within(limit_s: float) -> None:
    """End this process unless it has ended by then, whatever its threads wait for: what was answered is kept."""

    def end() -> None:
        structlog.get_logger().critical("end_not_awaited", waited_s=limit_s)
        faulthandler.dump_traceback()
        os._exit(1)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()


def _allow_files(connections: int) -> None:
    """Let the process open as many files as connections may be, and those of the service, as far as the system does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + FILES_BESIDE_CONNECTIONS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )


def _loopback_url(listener: socket.socket) -> str:
    """Where a child of ours reaches the socket, whatever it is bound to."""
    return url_of(listener).replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
