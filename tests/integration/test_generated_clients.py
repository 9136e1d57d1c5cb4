"""What `make clients` makes, against a service: every operation by each of the two clients; the TypeScript client."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.operations import Answered, call_all
from tests.serving import Serving

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "clients"
DOCUMENT = json.loads((ROOT / "openapi" / "openapi.json").read_bytes())
OPERATIONS = {
    operation["operationId"]: (method, path, operation)
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
}


class PythonClient:
    """The functions `sync_detailed` of the package that `make clients` makes."""

    def __init__(self, url: str, key: str) -> None:
        generated = importlib.import_module("millrace_client.generated")
        self._models = importlib.import_module("millrace_client.generated.models")
        self._client = generated.AuthenticatedClient(url, token=key, timeout=90)
        self.called: set[str] = set()

    def close(self) -> None:
        self._client.get_httpx_client().close()

    def __call__(
        self,
        operation: str,
        *,
        path: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> Answered:
        [tag] = OPERATIONS[operation][2]["tags"]
        module = importlib.import_module(f"millrace_client.generated.api.{tag}.{operation}")
        function = module.sync_detailed
        given = {**(path or {}), **(query or {}), **(headers or {})}
        arguments = {_named(name, function): value for name, value in given.items()}
        if body is not None:
            arguments["body"] = self._model(operation).from_dict(body)
        answer = function(client=self._client, **arguments)
        self.called.add(operation)
        assert answer.status_code < 300, f"{operation}: {answer.content.decode()}"
        data = answer.parsed.to_dict() if hasattr(answer.parsed, "to_dict") else answer.parsed
        assert data is not None or answer.status_code == 204, operation
        return Answered(answer.status_code, data, answer.headers.get("ETag", ""))

    def _model(self, operation: str) -> Any:
        schema = OPERATIONS[operation][2]["requestBody"]["content"]["application/json"]["schema"]
        schema = schema.get("anyOf", [schema])[0]
        name = schema.get("$ref", "").rpartition("/")[2] or "AppendRecordsJsonBody"
        return getattr(self._models, name)


def _named(name: str, function: Any) -> str:
    """As Python has it: `from_`, `if_match`, `key_path` where the query has a `key` too."""
    python = name.lower().replace("-", "_")
    parameters = inspect.signature(function).parameters
    return next(found for found in (python, f"{python}_", f"{python}_path") if found in parameters)


class TypeScriptClient:
    """`openapi-fetch` over the types that `make clients` makes, in a process of Node that is asked line by line."""

    def __init__(self, url: str, key: str) -> None:
        command = ["openapi/with-node", "node", "clients/typescript/tests/operations.mjs", url, key]
        self._node = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.called: set[str] = set()

    def __call__(
        self,
        operation: str,
        *,
        path: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> Answered:
        method, template, _ = OPERATIONS[operation]
        params = {"path": path or {}, "query": query or {}, "header": headers or {}}
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        sent = {"params": params} if body is None else {"params": params, "body": body}
        self._node.stdin.write(json.dumps([method.upper(), template, sent]) + "\n")
        self._node.stdin.flush()
        status, data, tag = json.loads(self._node.stdout.readline())
        self.called.add(operation)
        assert status < 300, f"{operation}: {data}"
        return Answered(status, data, tag)

    def close(self) -> None:
        with self._node:  # its end of input is its end
            pass
        assert self._node.returncode == 0


@pytest.fixture(params=["python", "typescript"])
def client(request: pytest.FixtureRequest, working: Serving) -> Iterator[PythonClient | TypeScriptClient]:
    kind = PythonClient if request.param == "python" else TypeScriptClient
    asked = kind(working.url, working.secrets["admin"])
    yield asked
    asked.close()


def test_every_operation_is_called(client: PythonClient | TypeScriptClient, working: Serving) -> None:
    """`make clients` has to come first, as it does in `make test`."""
    http = working.client()
    at = {"incarnation": "1"}
    joined = http.post("/v1/instances:join", json={"name": "left", "host": "here", "cores": 1, **at})
    http.post(f"/v1/instances/{joined.json()['instance_id']}:leave", json=at).raise_for_status()
    call_all(client, type(client).__name__.lower())
    assert client.called == OPERATIONS.keys()


def test_each_part_of_the_typescript_client_works_in_a_page(working: Serving) -> None:
    """Producer, consumers, job, store and errors, and the examples of its README, bundled for browsers."""
    bundles = [f"clients/typescript/dist/page/{name}.js" for name in ("live", "readme")]
    command = ["openapi/with-node", "node", "clients/typescript/tests/in-a-page.mjs", working.url]
    done = subprocess.run(
        [*command, working.secrets["admin"], *bundles],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
