"""The commands for people, against a service that works: what they print, and how they say that something is wrong."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, TextIO

import pytest
import structlog
from typer.testing import CliRunner

from benchmarks.running import wait_until
from millrace_client.commands import applying
from service import cli
from service.catalog.engine import progress_topic
from tests.attached import free_port
from tests.serving import Serving, serving

RUNNER = CliRunner()
PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
NAMES = (f"people-{n}" for n in count())
COUNTS = {"op": "aggregate", "name": "counts", "aggregates": {"n": {"fn": "count"}}}


class Shell:
    """Runs commands with the key of an administrator."""

    def __init__(self, service: Serving, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            "MILLRACE_URL": service.url,
            "MILLRACE_API_KEY": service.secrets["admin"],
            "MILLRACE_CONFIG": str(folder / "config.toml"),
        }

    def run(self, *arguments: str, code: int = 0, stdin: str = "", **environment: str) -> str:
        """What a command prints; on stderr when it is to fail."""
        known = {**self.environment, **environment}
        result = RUNNER.invoke(cli.app, arguments, input=stdin, env=known)
        assert result.exit_code == code, result.output
        return result.stderr if code else result.stdout

    def data(self, *arguments: str, **more: Any) -> Any:
        """What a command prints as JSON."""
        return json.loads(self.run(*arguments, "--output", "json", **more))

    def file(self, text: str, name: str = "file.yaml") -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextIO]:
    """Open until all services have ended: one may be writing a line as the tests here end."""
    with (tmp_path_factory.mktemp("commands") / "service.log").open("w") as opened:
        yield opened


@pytest.fixture(scope="module", autouse=True)
def log_elsewhere(log: TextIO) -> Iterator[None]:
    """The service runs in this process, and what a command prints is compared."""
    before = structlog.get_config()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(log))
    yield
    structlog.configure(**before)


@pytest.fixture
def shell(working: Serving, tmp_path: Path) -> Shell:
    return Shell(working, tmp_path)


@pytest.fixture
def stream(shell: Shell) -> str:
    name = next(NAMES)
    shell.run("stream", "create", name, "--partitions", "2")
    return name


@pytest.fixture
def job(shell: Shell, stream: str) -> str:
    name = f"{stream}-job"
    spec = {"name": name, "source": stream, "operators": [COUNTS]}
    assert f"job {name} is running" in shell.run("job", "submit", "-", "--wait", stdin=json.dumps(spec))
    return name


def rows(table: str) -> dict[str, list[str]]:
    """The cells of each row by its first, of columns without spaces."""
    return {cells[0]: cells for cells in map(str.split, table.splitlines())}


def test_the_examples_of_the_page_run(
    shell: Shell, working: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are saved, its commands are run in their order; others of a shell are left out."""
    page = PAGE.read_text().replace("http://127.0.0.1:8080", working.url)
    for kind, name in ("yaml", "shop.yaml"), ("ndjson", "clicks.ndjson"):
        [text] = re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)
        shell.file(text, name)
    monkeypatch.chdir(tmp_path)
    given = {"MILLRACE_URL": "", "MILLRACE_API_KEY": "", "ADMIN_KEY": working.secrets["admin"]}
    blocks = "".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL))
    commands = [shlex.split(line, comments=True)[1:] for line in blocks.splitlines() if line.startswith("millrace ")]
    printed = {" ".join(each): shell.run(*each, **given) for each in commands if each[0] != "--install-completion"}
    assert len(printed) == 11
    assert "+ job visits would be created" in printed["apply -f shop.yaml --dry-run"]
    assert "+ job visits created" in printed["apply -f shop.yaml"]
    assert printed["post clicks clicks.ndjson"].startswith("3 records appended")
    followed = printed["tail clicks --from earliest --key u1 --max 2 --output json"].splitlines()
    assert [json.loads(line)["value"]["page"] for line in followed] == ["/", "/cart"]


# ---------------------------------------------------------------- streams and records


def test_a_stream_is_made_listed_shown_and_deleted(shell: Shell) -> None:
    name = next(NAMES)
    given = ("stream", "create", name, "--partitions", "3", "--retention-ms", "3600000", "--field", "n=long?")
    assert shell.run(*given) == f"stream {name} has 3 partitions\n"
    assert shell.run(*given) == f"stream {name} has 3 partitions\n"  # it is that one
    listed = rows(shell.run("stream", "list"))
    assert listed["NAME"] == ["NAME", "KIND", "PARTITIONS", "RECORDS", "SIZE", "RETENTION"]
    assert listed[name][:4] == [name, "user", "3", "0"]
    assert listed[name][-2:] == ["1", "h"]
    shown = shell.run("stream", "show", name)
    assert "n: long?" in shown
    assert len(shell.data("stream", "show", name)["partitions"]) == 3
    assert shell.run("stream", "delete", name, stdin="n\n", code=1).startswith("Delete the stream")
    assert name in [each["name"] for each in shell.data("stream", "list")]
    shell.run("stream", "delete", name, "--yes")
    assert name not in [each["name"] for each in shell.data("stream", "list")]


def test_lines_are_posted_and_followed(shell: Shell, stream: str) -> None:
    lines = [{"value": {"n": n}, "key": f"k{n % 3}", "timestamp": n, "headers": {"trace": "t"}} for n in range(1_500)]
    text = "\n\n".join(map(json.dumps, lines))
    said = shell.data("post", stream, "-", stdin=text)
    assert (said["stream"], said["appended"]) == (stream, 1_500)
    followed = shell.run("tail", stream, "--from", "earliest", "--max", "1500", "--output", "json").splitlines()
    records = [json.loads(line) for line in followed]
    assert sorted(record["value"]["n"] for record in records) == list(range(1_500))
    assert records[0]["headers"] == {"trace": "t"}
    of_one = [
        json.loads(line)["value"]["n"]
        for line in shell.run(
            "tail", stream, "--from", "earliest", "--key", "k1", "--max", "500", "-o", "json"
        ).splitlines()
    ]
    assert of_one == list(range(1, 1_500, 3))
    place = next(record["position"] for record in records if record["value"]["n"] == 1_495)
    assert shell.run("tail", stream, "--from", place, "--key", "k0", "--max", "1").split()[2:] == [
        "k0",
        '{"n":1497}',
    ]


def test_a_condition_chooses_what_is_followed_until_it_is_interrupted(shell: Shell, stream: str) -> None:
    """In a process of its own: the service here starts one for conditions, and finds no stdout that is a file."""
    shell.run("post", stream, "--values", stdin="\n".join(map(str, range(20))))
    heard = ["env", "--default-signal=INT"]  # else it ignores interrupts, as what a shell runs in the background does
    command = [*heard, sys.executable, "-m", "service.cli", "tail", stream, "--from", "earliest", "--output", "json"]
    with subprocess.Popen(
        [*command, "--where", "value::int >= 18"],
        env={**os.environ, **shell.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert {json.loads(process.stdout.readline())["value"] for _ in range(2)} == {18, 19}
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (130, "", "")


def test_without_its_extra_a_command_says_what_to_install(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    for absent in ("httpx", "yaml"):
        monkeypatch.setattr(cli, "find_spec", lambda name, absent=absent: None if name == absent else object())
        line = shell.run("stream", "list", code=1)
        assert line == f"millrace: {absent} is not installed: pip install 'millrace[client]'\n"
        assert "Streams: " not in shell.run("--help")


def test_values_may_be_posted_bare(shell: Shell, stream: str) -> None:
    path = shell.file('{"n": 1}\n[2]\n"three"\n', "values.ndjson")
    assert shell.run("post", stream, path, "--values").startswith(f"3 records appended to {stream}, position ")
    found = shell.run("tail", stream, "--from", "earliest", "--max", "3", "-o", "json")
    assert {json.dumps(json.loads(line)["value"]) for line in found.splitlines()} == {'{"n": 1}', "[2]", '"three"'}


def test_control_sequences_of_records_are_shown_and_not_carried_out(shell: Shell, stream: str) -> None:
    shell.run("post", stream, stdin=json.dumps({"key": "\x1b[2J", "value": "\x1b]0;x\x07\u009b1m"}))
    line = shell.run("tail", stream, "--from", "earliest", "--max", "1")
    assert "\\u001b[2J" in line
    assert not set(line) & set("\x1b\x07\u009b")


def test_a_line_that_is_none_is_named_and_what_stands_behind_it_is_not_sent(shell: Shell, stream: str) -> None:
    for text, why in (
        ("{", "is no JSON"),
        ('{"key": "k"}', "is no record"),
        ('{"value": 1, "colour": 2}', "is no record"),
        ("[1]", "is no record"),
        ('{"value": NaN}', "not JSON compliant"),
    ):
        path = shell.file(f'{{"value": 0}}\n{text}\n{{"value": 2}}\n', "bad.ndjson")
        line = shell.run("post", stream, path, code=1)
        assert line.startswith(f"millrace: {path}:2: ")
        assert why in line
        assert line.count("\n") == 1
    assert shell.data("stream", "show", stream)["records"] == 5


def test_a_record_that_is_refused_is_named_by_its_line(shell: Shell) -> None:
    stream = next(NAMES)
    shell.run("stream", "create", stream, "--field", "n=long")
    path = shell.file('{"value": {"n": 1}}\n\n{"value": {"n": "one"}}\n', "bad.ndjson")
    line = shell.run("post", stream, path, code=3)
    assert "422 invalid_records" in line
    assert f"{path}:3 /value/n: " in line
    assert re.search(r"; [01] records before line [13] are appended\n$", line)  # a post is appended as a whole or not
    wrong_key = shell.run("post", stream, stdin='{"value": {"n": 1}, "key": 5}', code=3)
    assert "standard input:1 /key: " in wrong_key


# ---------------------------------------------------------------- jobs and stores


def test_a_job_is_submitted_paused_started_stopped_and_deleted(shell: Shell, stream: str, job: str) -> None:
    listed = rows(shell.run("job", "list"))
    assert listed[job][0:1] + listed[job][2:5] == [job, stream, "-", "0"]
    assert listed[job][1] in ("running", "rebalancing")
    assert shell.run("job", "pause", job) == f"job {job} is paused\n"
    assert [each["name"] for each in shell.data("job", "list", "--state", "paused")] == [job]
    assert shell.run("job", "start", job, "--wait") == f"job {job} is running\n"
    assert shell.run("job", "stop", job, "--wait") == f"job {job} is stopped\n"
    assert shell.run("job", "start", job, "--wait") == f"job {job} is running\n"
    assert "409 " in shell.run("job", "delete", job, "--yes", code=3)
    shell.run("job", "stop", job, "--wait")
    assert shell.run("job", "delete", job, "--yes") == f"job {job} is deleted\n"
    assert "404 unknown_job" in shell.run("job", "show", job, code=3)


def test_a_store_is_looked_into(shell: Shell, stream: str, job: str) -> None:
    lines = "\n".join(json.dumps({"key": f"k{n % 3}", "value": n}) for n in range(30))
    position = shell.data("post", stream, stdin=lines)["position"]
    fresh = ("--min-position", position, "--timeout-ms", "30000")
    [entry] = shell.data("lookup", job, "counts", "k1", *fresh)
    assert (entry["key"], entry["value"]) == ("k1", {"n": 10})
    store = f"{job}-counts"
    assert shell.data("lookup", job, store, "k1", *fresh) == [entry]
    assert shell.data("store", "get", store, "k1") == [entry]
    assert '{"n":10}' in shell.run("store", "get", store, "k1")
    assert shell.data("store", "get", store, "nobody") == []
    assert [each["key"] for each in shell.data("store", "range", store)] == ["k0", "k1", "k2"]
    assert [each["key"] for each in shell.data("store", "range", store, "--from-key", "k1", "--max", "1")] == ["k1"]
    assert rows(shell.run("store", "list"))[store][1:3] == ["key_value", "aggregate"]
    assert f"{job!r} has no store 'n': {store}" in shell.run("lookup", job, "n", "k1", code=3)
    shown = shell.run("job", "show", job)
    assert "running, caught up" in shown or "running, behind" in shown


# ---------------------------------------------------------------- files of streams and jobs


def manifest(name: str, interval: int = 100, window: str = "") -> str:
    return f"""
# what the shop needs
streams:
  - name: {name}
    partitions: 2
    retention_ms: 3600000
jobs:
  - name: {name}-visits
    source: {name}
    commit_interval_ms: {interval}
    operators:
      - op: aggregate
        name: visits{window}
        aggregates:
          n: {{fn: count}}
    sink: {name}-counted
"""


def test_a_file_is_applied_once_and_then_there_is_nothing_to_do(shell: Shell) -> None:
    name = next(NAMES)
    path = shell.file(manifest(name))
    dry = shell.run("apply", "-f", path, "--dry-run")
    assert dry == f"+ stream {name} would be created\n+ job {name}-visits would be created\n"
    assert name not in [each["name"] for each in shell.data("stream", "list")]
    assert shell.run("apply", "-f", path) == f"+ stream {name} created\n+ job {name}-visits created\n"
    for more in ((), ("--dry-run",)):
        assert shell.run("apply", "-f", path, *more).endswith("unchanged\nnothing to do\n")
    steps = shell.data("apply", "-f", path)["steps"]
    assert [step["action"] for step in steps] == ["unchanged", "unchanged"]


def test_what_a_file_has_otherwise_is_shown_and_changed(shell: Shell) -> None:
    name = next(NAMES)
    shell.run("apply", "-f", shell.file(manifest(name)))
    path = shell.file(manifest(name, 50).replace("3600000", "7200000").replace("-counted", "-other"))
    dry = shell.data("apply", "-f", path, "--dry-run")
    changes = [(step["action"], {each["path"] for each in step["differences"]}) for step in dry["steps"]]
    assert changes == [
        ("change", {"retention_ms"}),
        ("change", {"commit_interval_ms", "sink"}),
    ]
    assert [note for note in dry["steps"][1]["notes"] if note.startswith(f"sink {name}-other: added")]
    assert shell.data("job", "show", f"{name}-visits")["spec_version"] == 1
    assert "~ commit_interval_ms: 100 → 50" in shell.run("apply", "-f", path, "--dry-run")


def test_a_change_that_a_store_bears_is_made(shell: Shell) -> None:
    name = next(NAMES)
    shell.run("apply", "-f", shell.file(manifest(name)))
    path = shell.file(manifest(name, 50))
    assert "changed" in shell.run("apply", "-f", path)
    assert shell.run("apply", "-f", path).endswith("nothing to do\n")
    view = shell.data("job", "show", f"{name}-visits")
    assert (view["spec_version"], view["spec"]["commit_interval_ms"]) == (2, 50)
    left_out = shell.file(manifest(name).replace("    commit_interval_ms: 100\n", ""))
    assert "~ commit_interval_ms: 50 → 100" in shell.run("apply", "-f", left_out, "--dry-run")  # back to its default


def test_what_can_not_be_is_said_with_its_line_and_nothing_is_changed(shell: Shell) -> None:
    name = next(NAMES)
    shell.run("apply", "-f", shell.file(manifest(name)))
    for text, line, said in (
        (manifest(name, window="\n        window: {type: session}"), 14, "gap_ms"),
        (manifest(name).replace("partitions: 2", "partitions: 3"), 5, "has 2 partitions"),
        (manifest(name).replace("partitions: 2", "colour: 2"), 5, "is no setting"),
        (manifest(name).replace("fn: count", "fn: guess"), 15, "must be one of 'count'"),
        (manifest(name).replace("n: {fn", "m: {fn"), 15, "can not be changed so"),
    ):
        path = shell.file(text.replace("3600000", "1"))
        found = shell.run("apply", "-f", path, code=3)
        assert f"{path}:{line} /" in found
        assert said in found
        assert found.count("\n") == 1
    assert shell.data("stream", "show", name)["retention_ms"] == 3_600_000


class Changing(Shell):
    """Of a service without an instance: a job that reads something before it is another version stays at that."""

    def __init__(self, service: Serving, folder: Path) -> None:
        super().__init__(service, folder)
        for name in ("left", "right"):
            self.run("stream", "create", name)
            self.run("post", name, stdin='{"value": 1}')
        spec = "jobs:\n  - {name: both, source: [left, right], operators: [], sink: all}\n"
        self.run("apply", "-f", self.file(spec))
        self.path = self.file(spec.replace("left, right", "right"))
        assert "version 2 begins when what is on its way is read" in self.run("apply", "-f", self.path)
        assert self.data("job", "show", "both")["state"] == "changing"


@pytest.fixture
def resting(tmp_path: Path, migrated_sqlite: bytes) -> Iterator[Serving]:
    (tmp_path / "catalog.db").write_bytes(migrated_sqlite)
    with serving(tmp_path, f"sqlite:///{tmp_path}/catalog.db") as service:
        yield service


def test_a_job_that_stays_on_its_way_to_another_version_is_said_to(
    resting: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Changing(resting, tmp_path)
    monkeypatch.setattr(applying, "TIMEOUT_S", 0.1)
    assert "'both' is still on its way to version 2" in shell.run("apply", "-f", shell.path, code=5)
    assert shell.run("job", "start", "both") == "job both is starting\n"  # given up
    assert "~ job both would be changed" in shell.run("apply", "-f", shell.path, "--dry-run")


def test_a_plan_waits_for_a_job_that_is_changing(resting: Serving, tmp_path: Path) -> None:
    shell = Changing(resting, tmp_path)
    client = resting.client("writer")
    topic = progress_topic(client.get("/v1/jobs/both").json()["id"])

    def stop() -> str:
        wait_until(lambda: topic in resting.hub._waiters, "somebody who waits for the job")
        return str(client.post("/v1/jobs/both:stop").json()["state"])

    with ThreadPoolExecutor(1) as thread:
        stopped = thread.submit(stop)
        assert "~ job both would be changed" in shell.run("apply", "-f", shell.path, "--dry-run")
        assert stopped.result() == "stopped"


def test_a_file_that_is_broken_is_said_with_its_line(shell: Shell) -> None:
    broken = shell.file("streams:\n  - name: [a\njobs: []\n")
    assert f"{broken}:3:" in shell.run("apply", "-f", broken, code=1)
    assert f"{broken}:3:" in shell.run("job", "submit", broken, code=1)
    twice = shell.file("streams:\n  - name: a\n    name: b\n")
    assert f"{twice}:3: the name 'name' stands there twice" in shell.run("apply", "-f", twice, code=1)
    other = shell.file("stream:\n  - name: a\n")
    assert f"{other}:1 /stream: " in shell.run("apply", "-f", other, code=1)
    assert "can not be read" in shell.run("apply", "-f", str(shell.folder / "absent.yaml"), code=1)


# ---------------------------------------------------------------- where the service is, and what goes wrong


@pytest.mark.parametrize(
    "command",
    [
        ("stream", "show", "nobody"),
        ("stream", "show", "no/body?x=1"),
        ("tail", "nobody"),
        ("post", "nobody"),
        ("store", "get", "nobody", "k"),
        ("lookup", "nobody", "counts", "k"),
        ("job", "stop", "nobody"),
    ],
)
def test_what_is_not_there_is_one_line(shell: Shell, command: Sequence[str]) -> None:
    line = shell.run(*command, code=3)
    assert re.match("millrace: 404 (unknown_(stream|store|job)|no_such_route): ", line)
    assert line.count("\n") == 1


def test_each_kind_of_trouble_has_an_exit_code(shell: Shell, working: Serving) -> None:
    assert "401 unauthenticated" in shell.run("stream", "list", code=4, MILLRACE_API_KEY="wrong")
    assert "401 unauthenticated" in shell.run("tail", "clicks", "--api-key", "wrong", code=4)
    reader = working.secrets["reader"]
    assert "403 forbidden" in shell.run("stream", "create", "x", code=4, MILLRACE_API_KEY=reader)
    away = f"http://127.0.0.1:{free_port()}"
    for command in (("job", "list"), ("tail", "clicks"), ("post", "clicks")):
        line = shell.run(*command, "--url", away, code=5)
        assert line.startswith(f"millrace: no answer from {away}: ")
        assert line.count("\n") == 1
    assert "is no URL" in shell.run("job", "list", "--url", "elsewhere", code=1)
    assert "printable ASCII" in shell.run("job", "list", "--api-key", "schlüssel", code=1)
    assert "422 " in shell.run("stream", "create", "Clicks", "--partitions", "0", code=3)
    shell.run("stream", "create", "x", "--partitions", "many", code=2)
    shell.run("stream", "create", "x", "--field", "amount", code=2)


def test_a_context_says_where_the_service_is(shell: Shell, working: Serving) -> None:
    config = Path(shell.environment["MILLRACE_CONFIG"])
    nothing = {"MILLRACE_URL": "", "MILLRACE_API_KEY": ""}
    away = f"http://127.0.0.1:{free_port()}"
    shell.run("context", "set", "away", "--url", away, "--api-key", "some-key")
    shell.run("context", "set", 'the "shop"', "--url", working.url, "--api-key-env", "SHOP_KEY")
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert [each["is_current"] for each in shell.data("context", "list")] == [True, False]
    assert "some-key" not in shell.run("context", "list")
    shell.run("job", "list", code=5, **nothing)
    assert "SHOP_KEY, which is not set" in shell.run("job", "list", "--context", 'the "shop"', code=1, **nothing)
    shell.run("context", "use", 'the "shop"')
    shell.run("job", "list", SHOP_KEY=working.secrets["reader"], **nothing)
    assert "there is no context 'nobody'" in shell.run("context", "use", "nobody", code=1)
    # The key of one service does not go to another.
    shell.run("context", "set", "away", "--api-key", working.secrets["reader"])
    assert "401 " in shell.run("job", "list", "--context", "away", "--url", working.url, code=4, MILLRACE_API_KEY="")
    config.chmod(0o644)
    assert f"chmod 600 {config}" in shell.run("job", "list", code=1, **nothing)


def test_names_are_completed_from_the_service(shell: Shell, stream: str) -> None:
    shell_asks = {
        "_MILLRACE_COMPLETE": "complete_bash",
        "COMP_WORDS": f"millrace stream show {stream}",
        "COMP_CWORD": "3",
    }
    result = RUNNER.invoke(cli.app, [], prog_name="millrace", env={**shell.environment, **shell_asks})
    assert result.stdout.split() == [stream]
