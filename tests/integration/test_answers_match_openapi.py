"""What the service really answers is what its OpenAPI document says."""

from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from tests import openapi_documents
from tests.integration.test_slot_protocol import Member
from tests.serving import serving

READS = [
    ("/healthz", "/healthz"),
    ("/readyz", "/readyz"),
    ("/info", "/info"),
    ("/v1/streams", "/v1/streams"),
    ("/v1/streams/{stream}", "/v1/streams/out"),
    ("/v1/streams/{stream}/records", "/v1/streams/out/records"),
    ("/v1/streams/{stream}/subscriptions", "/v1/streams/clicks/subscriptions"),
    ("/v1/streams/{stream}/subscriptions/{subscription}", "/v1/streams/clicks/subscriptions/s"),
    ("/v1/streams/{stream}/subscriptions/{subscription}", "/v1/streams/clicks/subscriptions/nobody"),
    ("/v1/jobs", "/v1/jobs"),
    ("/v1/jobs/{job}", "/v1/jobs/copy"),
    ("/v1/jobs/{job}/tasks", "/v1/jobs/copy/tasks"),
    ("/v1/jobs/{job}/metrics", "/v1/jobs/copy/metrics"),
    ("/v1/jobs/{job}/time", "/v1/jobs/copy/time"),
    ("/v1/jobs/{job}/errors", "/v1/jobs/copy/errors"),
    ("/v1/jobs/{job}/dropped", "/v1/jobs/copy/dropped"),
    ("/v1/jobs/{job}/history", "/v1/jobs/copy/history"),
    ("/v1/jobs/{job}/versions", "/v1/jobs/copy/versions"),
    ("/v1/jobs/{job}/versions/{version}", "/v1/jobs/copy/versions/1"),
    ("/v1/jobs/{job}/versions/{version}", "/v1/jobs/copy/versions/2"),
    ("/v1/instances", "/v1/instances"),
    ("/v1/instances/{instance}", "/v1/instances/{id}"),
    ("/v1/groups/{job}", "/v1/groups/copy"),
    ("/v1/groups/{job}/rebalances", "/v1/groups/copy/rebalances"),
    ("/v1/tokens", "/v1/tokens"),
    ("/v1/aggregators", "/v1/aggregators"),
    ("/v1/jobs/{job}", "/v1/jobs/nobody"),
    ("/v1/jobs", "/v1/jobs?limit=0"),
]


def test_every_read_answers_what_is_declared(tmp_path: Path, migrated_sqlite: bytes) -> None:
    (tmp_path / "catalog.db").write_bytes(migrated_sqlite)
    with serving(tmp_path, f"sqlite:///{tmp_path}/catalog.db") as running:
        member = Member(running)
        member.post_records(3)
        [task] = member.poll([])["tasks"]
        member.commit(member.commit_of(task))
        member.post_records(1)
        error = {"code": "expression_failed", "detail": "no", "operator": "f", "partition": 0, "offset": 3}
        member.ask(":fail", {"task": task["task"], "epoch": task["epoch"], "error": error}).raise_for_status()
        body = {"name": "s", "start": {"offsets": {"0": 1}}}
        made = member.admin.post("/v1/streams/clicks/subscriptions", json=body).raise_for_status()
        for verb in (":pull", ":ack"):
            body = {"consumer": "a"} | ({"positions": [{"partition": 0, "position": 2}]} if verb == ":ack" else {})
            member.admin.post(f"{made.headers['Location']}{verb}", json=body).raise_for_status()
        document = openapi_documents.for_people()
        for path, real in READS:
            answer = member.admin.get(real.replace("{id}", member.instance))
            declared = document["paths"][path]["get"]["responses"]
            response = declared.get(str(answer.status_code), declared["default"])
            known = member.admin.get(answer.url, headers={"If-None-Match": answer.headers.get("ETag", "none")})
            assert str(known.status_code) in declared, real
            kind = answer.headers["Content-Type"]
            schema = {**response["content"][kind]["schema"], "components": document["components"]}
            faults = [fault.message for fault in Draft202012Validator(schema).iter_errors(answer.json())]
            assert faults == [], f"{real}: {answer.text}"


@pytest.mark.parametrize("verb", ["pause", "stop"])
def test_every_verb_answers_the_job(tmp_path: Path, migrated_sqlite: bytes, verb: str) -> None:
    (tmp_path / "catalog.db").write_bytes(migrated_sqlite)
    with serving(tmp_path, f"sqlite:///{tmp_path}/catalog.db") as running:
        member = Member(running)
        answer = member.admin.post(f"/v1/jobs/copy:{verb}")
        document = openapi_documents.for_people()
        schema = {"$ref": "#/components/schemas/JobView", "components": document["components"]}
        assert [fault.message for fault in Draft202012Validator(schema).iter_errors(answer.json())] == []
