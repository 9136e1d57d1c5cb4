"""The commands for people without a service: files with their lines, what is different, texts, contexts, plans."""

from __future__ import annotations

import ast
import json
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from millrace_client import Client, Retries
from millrace_client.commands import contexts, printing
from millrace_client.commands.applying import plan
from millrace_client.commands.asking import Asked
from millrace_client.commands.contexts import Context, Contexts, Target
from millrace_client.commands.differences import differences
from millrace_client.commands.failures import Failed, failure_of
from millrace_client.commands.manifests import read_document, read_documents, read_manifest
from millrace_client.commands.printing import Output, duration, moment, print_table, printable
from millrace_client.errors import ApiError, NoAnswer
from millrace_client.exchanges import error_of

ROOT = Path(__file__).parents[3]


def saved(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    return path


# ---------------------------------------------------------------- files


def test_a_pointer_leads_to_its_line_or_to_that_of_what_is_around(tmp_path: Path) -> None:
    path = saved(tmp_path, "a:\n  - b: 1\n    c/d:\n      e: 2\n---\nx: 1\n")
    first, second = read_documents(path)
    assert first.body == {"a": [{"b": 1, "c/d": {"e": 2}}]}
    assert first.place("/a/0/b") == f"{path}:2 /a/0/b"
    assert first.place("/a/0/c~1d") == f"{path}:3 /a/0/c~1d"
    assert first.place("/a/0/c~1d/e") == f"{path}:4 /a/0/c~1d/e"
    assert first.place("/a/0/absent/too") == f"{path}:2 /a/0/absent/too"
    assert second.place("/x") == f"{path}:6 /x"


def test_scalars_are_those_of_json(tmp_path: Path) -> None:
    text = "[yes, on, 2023-11-14, 010, 1:30, 0x1, true, null, ~, -1, 1.5, 1e3, .5, .nan]"
    found = read_document(saved(tmp_path, text)).body
    texts = ["yes", "on", "2023-11-14", "010", "1:30", "0x1"]
    assert found == [*texts, True, None, None, -1, 1.5, 1000.0, ".5", ".nan"]


def test_json_is_read_as_json(tmp_path: Path) -> None:
    assert read_document(saved(tmp_path, '{\n\t"name": "x"}')).body == {"name": "x"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1\nb: 2\n", ":2:"),
        ("a: 1\nb: 2\na: 3\n", ":3: the name 'a' stands there twice"),
        ("a: &x [*x]\n", ":1: holds itself"),
        ("? [1]\n: 2\n", ":1: "),
        ("a: !!python/object:os.system 1\n", ":1:"),
        ("", "has 0 documents"),
        ("a: 1\n---\na: 2\n", "has 2 documents"),
        ("a: \x00", "is no YAML"),
    ],
)
def test_a_file_that_is_broken_is_said_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = saved(tmp_path, text)
    with pytest.raises(Failed, match=r"file\.yaml") as raised:
        read_document(path)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a", "file.yaml:1: a document has the members"),
        ("jobs: []\njob: []", "file.yaml:2 /job: "),
        ("jobs:\n  a: 1", "file.yaml:1 /jobs: is no list"),
        ("jobs:\n  - a", "file.yaml:2 /jobs/0: has no `name`"),
        ("jobs:\n  - name: 1", "file.yaml:2 /jobs/0: has no `name`"),
        ("jobs:\n  - name: a\n---\njobs:\n  - name: a", "file.yaml:5 /jobs/0/name: 'a' was declared already, at"),
    ],
)
def test_what_is_no_manifest_is_said_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(Failed) as raised:
        read_manifest(saved(tmp_path, text))
    assert said in str(raised.value)


# ---------------------------------------------------------------- what is different


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": True}, ["~ a: 1 → true"]),
        ({"a": 1, "b": 2}, {"b": 2, "c": 3}, ["- a: 1", "+ c: 3"]),
        ({"a": {"b": "x"}}, {"a": {"b": "é"}}, ['~ a.b: "x" → "é"']),
        ({"s": "x"}, {"s": ["x"]}, ['~ s: "x" → ["x"]']),
        (
            {"o": [{"name": "a", "n": 1}, {"name": "b"}]},
            {"o": [{"name": "b"}, {"name": "a", "n": 2}]},
            ["~ o.a.n: 1 → 2", '~ o (order): ["a","b"] → ["b","a"]'],
        ),
        ({"o": [{"x": 1}]}, {"o": [{"x": 2}, {"x": 3}]}, ["~ o.0.x: 1 → 2", '+ o.1: {"x":3}']),
        ({"o": [1, 2]}, {"o": [2, 1]}, ["~ o: [1,2] → [2,1]"]),
    ],
)
def test_differences_are_shown_where_they_are(before: Any, after: Any, shown: list[str]) -> None:
    assert [str(each) for each in differences(before, after)] == shown


# ---------------------------------------------------------------- plans


def asked(answer: Callable[[httpx.Request], httpx.Response]) -> Asked:
    client = Client("http://x", retries=Retries(limit_s=0), http=httpx.Client(transport=httpx.MockTransport(answer)))
    return Asked(client, Target("http://x", None), Output.TABLE)


def test_a_job_whose_source_is_made_by_the_file_is_not_judged_before(tmp_path: Path) -> None:
    """Nor one that reads what such a job writes; the others are."""
    jobs = [("first", "in", "between"), ("second", "between", "out"), ("third", "elsewhere", "out")]
    text = {
        "streams": [{"name": "in"}],
        "jobs": [{"name": name, "source": source, "sink": sink} for name, source, sink in jobs],
    }
    judged = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(404, json={"code": "unknown_job"})
        assert request.url.path == "/v1/jobs:validate"
        judged.append(json.loads(request.content)["name"])
        return httpx.Response(200, json={})

    steps = plan(asked(answer), read_manifest(saved(tmp_path, json.dumps(text))))
    assert [step.action for step in steps] == ["create"] * 4
    assert judged == ["third"]


def test_a_job_that_has_begun_to_run_meanwhile_is_judged_again(tmp_path: Path) -> None:
    tags = iter(range(10))
    seen = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            view = {"spec": {"n": 1}, "spec_version": 1, "state": "running"}
            return httpx.Response(200, json=view, headers={"ETag": f'"{next(tags)}"'})
        seen.append(request.headers["If-Match"])
        if len(seen) == 1:
            return httpx.Response(412, json={"code": "stale_tag", "detail": ""})
        return httpx.Response(200, json={"spec": {"n": 1}})

    [step] = plan(asked(answer), read_manifest(saved(tmp_path, "jobs: [{name: a}]")))
    assert (step.action, seen) == ("unchanged", ['"0"', '"1"'])


# ---------------------------------------------------------------- texts


def test_control_characters_are_shown() -> None:
    assert printable("a\x1b[2J\n\x7f\u009b\u202eé 漢") == "a\\u001b[2J\\n\\u007f\\u009b\\u202eé 漢"


def test_times_and_durations_are_those_people_read() -> None:
    assert [moment(ms) for ms in (None, 0, 1_700_000_000_001, -1, 2**63 - 1)] == [
        "-",
        "1970-01-01T00:00:00.000Z",
        "2023-11-14T22:13:20.001Z",
        "1969-12-31T23:59:59.999Z",
        str(2**63 - 1),
    ]
    assert [duration(ms) for ms in (None, 1, 1_500, 60_000, 604_800_000)] == ["-", "1 ms", "1500 ms", "1 min", "7 d"]


@pytest.mark.parametrize("width", [80, 120])
def test_a_table_fits_its_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(printing, "Console", lambda **how: Console(width=width, force_terminal=False, **how))
    columns = [printing.Column(title, str) for title in ("name", "value", "reason")]
    print_table(["x" * 300], columns)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert "".join(lines).count("x") == 900  # nothing is cut off


def test_an_error_is_one_line_with_its_code_and_its_places() -> None:
    problem = {
        "code": "invalid_spec",
        "detail": "The specification is not valid: /a: is wrong",
        "errors": [{"pointer": "/a", "detail": "is wrong"}, {"pointer": "/b", "detail": "too"}],
    }
    failed = failure_of(error_of(422, {}, json.dumps(problem).encode()), lambda pointer: f"here{pointer}")
    assert (str(failed), failed.exit_code) == ("422 invalid_spec: here/a: is wrong; here/b: too", 3)
    codes = {status: failure_of(_error(status)).exit_code for status in (400, 401, 403, 404, 409, 429, 500, 503)}
    assert codes == {400: 3, 401: 4, 403: 4, 404: 3, 409: 3, 429: 5, 500: 5, 503: 5}
    assert failure_of(NoAnswer("away")).exit_code == 5


def _error(status: int) -> ApiError:
    return error_of(status, {}, b"{}")


# ---------------------------------------------------------------- contexts


def test_contexts_are_kept_as_they_were_for_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "config.toml"
    names = ['a "b" \\ é\x7f\n', "c.d"]
    kept = Contexts(names[0], {names[0]: Context("http://x", api_key="k\\"), names[1]: Context("http://y", None, "V")})
    contexts.write(path, kept)
    assert contexts.read(path) == kept
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [each.name for each in path.parent.iterdir()] == ["config.toml"]


@pytest.mark.parametrize(
    "text",
    ["current = 1", "other = 1", "contexts = 1", "[contexts.a]\nkey = 'x'", "[contexts.a]\nurl = 1", "current ="],
)
def test_a_configuration_that_is_none_is_said(tmp_path: Path, text: str) -> None:
    path = saved(tmp_path, text)
    with pytest.raises(Failed, match=r"file\.yaml"):
        contexts.read(path)


@pytest.mark.parametrize("url", ["", "x", "ftp://x", "http://", "http://x:port", "http://x:99999", "http://x\n"])
def test_what_is_no_url_of_a_service_is_said(url: str) -> None:
    with pytest.raises(Failed, match="is no URL"):
        contexts.checked_url(url)


# ---------------------------------------------------------------- borders


def test_the_client_knows_nothing_of_the_service() -> None:
    for path in (ROOT / "clients" / "python" / "millrace_client").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & {"service", "spark_jobs"}, path


def test_the_other_commands_do_not_load_those_for_people() -> None:
    code = "import sys, service.cli; print(*{'httpx', 'yaml', 'millrace_client', 'rich.progress'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
