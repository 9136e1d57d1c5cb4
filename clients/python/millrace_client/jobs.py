"""Jobs: submitted, waited for, changed, stopped.

A handle remembers the specification as it was last seen through it: a change is refused with `StaleTag` where somebody
else has changed it since. What only moved the job, a rebalance or a restart, is no reason.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Self

from millrace_client.clients import AsyncClient, Client
from millrace_client.codes import StaleTag
from millrace_client.errors import JobFailed
from millrace_client.exchanges import Answer, Exchange, Query, Request, Retries, answered, json_request, path_of
from millrace_client.records import JobView

Until = Literal["running", "caught_up", "stopped"]
Verb = Literal["pause", "resume", "stop", "restart", "flush"]

LONGEST_WAIT_S: Final = 30.0  # of one request


def _submission(spec: Mapping[str, Any]) -> Request:
    return json_request("POST", "/v1/jobs", spec, is_repeatable=True)  # an equal one again is that job


def _change(spec: Mapping[str, Any], renames: Mapping[str, str] | None, restart: Sequence[str]) -> Mapping[str, Any]:
    found = dict(spec)
    if renames:
        found["renames"] = dict(renames)
    if restart:
        found["restart"] = list(restart)
    return found


class _JobAsSeen:
    """The requests that are made of a job, with the tag and the version that were seen last."""

    def __init__(self, name: str) -> None:
        self._name, self._path = name, path_of("jobs", name)
        self._tag, self._spec_version = "", 0

    def seen(self, answer: Answer) -> JobView:
        view: JobView = answer.json()
        self._tag, self._spec_version = answer.headers.get("ETag", ""), view["spec_version"]
        return view

    def view(self) -> Request:
        return json_request("GET", self._path)

    def verb(self, verb: Verb) -> Request:
        return json_request("POST", f"{self._path}:{verb}")

    def changed(self, method: str, body: Mapping[str, Any], retries: Retries) -> Exchange[JobView]:
        """The job, changed. Raises StaleTag, and what `answered` does."""
        return self.seen((yield from self._as_seen(method, body, {}, retries)))

    def judged(self, body: Mapping[str, Any], retries: Retries) -> Exchange[Mapping[str, Any]]:
        """What a change would do. Raises StaleTag, and what `answered` does."""
        verdict: Mapping[str, Any] = (yield from self._as_seen("PUT", body, {"dry_run": True}, retries)).json()
        return verdict

    def _as_seen(self, method: str, body: Mapping[str, Any], query: Query, retries: Retries) -> Exchange[Answer]:
        """Asked of the version that was seen last: the tag alone is another one whenever its tasks move."""
        if not self._tag:
            self.seen((yield from answered(self.view(), retries)))
        version = self._spec_version
        while True:
            how: dict[str, Any] = {"headers": {"If-Match": self._tag}, "is_repeatable": bool(query)}
            request = json_request(method, self._path, body, query=query, **how)
            try:
                return (yield from answered(request, retries))
            except StaleTag:
                self.seen((yield from answered(self.view(), retries)))
                if self._spec_version != version:
                    self._spec_version = version
                    raise

    def deletion(self) -> Request:
        return json_request("DELETE", self._path)

    def waited(self, until: Until, timeout_s: float, retries: Retries) -> Exchange[JobView]:
        """The job when it is so. Raises JobFailed, TimeoutError, and what `answered` does."""
        until_s = time.monotonic() + timeout_s
        while True:
            wait_s = min(LONGEST_WAIT_S, max(0.0, until_s - time.monotonic()))
            query = {"wait": until, "timeout_ms": int(wait_s * 1000)}
            view = self.seen(
                (yield from answered(json_request("GET", self._path, query=query, wait_s=wait_s), retries))
            )
            if view["caught_up"] if until == "caught_up" else view["state"] == until:
                return view
            if view["state"] in ("failed", "stopped"):
                error = view["error"] or {"code": "", "detail": view["reason"]}
                raise JobFailed(self._name, view["state"], error["code"], error["detail"])
            if time.monotonic() >= until_s:
                raise TimeoutError(f"job {self._name!r} is {view['state']}, not {until}, after {timeout_s:g} s")


class Job:
    """A job by its name."""

    def __init__(self, client: Client, name: str) -> None:
        self.name = name
        self._client, self._job = client, _JobAsSeen(name)

    @classmethod
    def submit(cls, client: Client, spec: Mapping[str, Any]) -> Self:
        """Make a job; one that is there and equal is that job. Raises JobExists, InvalidSpec, …"""
        job = cls(client, spec["name"])
        job._job.seen(client.answer(_submission(spec)))
        return job

    def view(self) -> JobView:
        """The job as it stands."""
        return self._job.seen(self._client.answer(self._job.view()))

    def wait(self, until: Until = "caught_up", timeout_s: float = 60.0) -> JobView:
        """Return when it is running, has read all there is, or is stopped.

        Raises:
            JobFailed: it failed or stopped before.
            TimeoutError: it was not so in time.
        """
        return self._client.run(self._job.waited(until, timeout_s, self._client.retries))

    def change(self, **settings: Any) -> JobView:
        """Change settings that may change as it runs, such as `max_batch_records`. Raises StaleTag."""
        return self._client.run(self._job.changed("PATCH", settings, self._client.retries))

    def update(
        self, spec: Mapping[str, Any], *, renames: Mapping[str, str] | None = None, restart: Sequence[str] = ()
    ) -> JobView:
        """Give it another specification, over its stores and positions. Raises StaleTag, IncompatibleChange."""
        body = _change(spec, renames, restart)
        return self._client.run(self._job.changed("PUT", body, self._client.retries))

    def dry_run(
        self, spec: Mapping[str, Any], *, renames: Mapping[str, str] | None = None, restart: Sequence[str] = ()
    ) -> Mapping[str, Any]:
        """The service's verdict on an `update`, which changes nothing. Raises StaleTag, InvalidSpec."""
        return self._client.run(self._job.judged(_change(spec, renames, restart), self._client.retries))

    def pause(self) -> JobView:
        """Stop reading, until `resume`."""
        return self._ask("pause")

    def resume(self) -> JobView:
        """Go on after a pause."""
        return self._ask("resume")

    def stop(self) -> JobView:
        """Commit what is under way, then stop: `wait("stopped")` is when it has."""
        return self._ask("stop")

    def restart(self) -> JobView:
        """Run again after a stop or a failure."""
        return self._ask("restart")

    def flush(self) -> JobView:
        """Close what is open, once what is there was read."""
        return self._ask("flush")

    def delete(self) -> None:
        """Delete it, with its stores, when it is stopped."""
        self._client.answer(self._job.deletion())

    def _ask(self, verb: Verb) -> JobView:
        return self._job.seen(self._client.answer(self._job.verb(verb)))


class AsyncJob:
    """As `Job`, for asyncio."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self.name = name
        self._client, self._job = client, _JobAsSeen(name)

    @classmethod
    async def submit(cls, client: AsyncClient, spec: Mapping[str, Any]) -> Self:
        """As `Job.submit`."""
        job = cls(client, spec["name"])
        job._job.seen(await client.answer(_submission(spec)))
        return job

    async def view(self) -> JobView:
        """As `Job.view`."""
        return self._job.seen(await self._client.answer(self._job.view()))

    async def wait(self, until: Until = "caught_up", timeout_s: float = 60.0) -> JobView:
        """As `Job.wait`."""
        return await self._client.run(self._job.waited(until, timeout_s, self._client.retries))

    async def change(self, **settings: Any) -> JobView:
        """As `Job.change`."""
        return await self._client.run(self._job.changed("PATCH", settings, self._client.retries))

    async def update(
        self, spec: Mapping[str, Any], *, renames: Mapping[str, str] | None = None, restart: Sequence[str] = ()
    ) -> JobView:
        """As `Job.update`."""
        body = _change(spec, renames, restart)
        return await self._client.run(self._job.changed("PUT", body, self._client.retries))

    async def dry_run(
        self, spec: Mapping[str, Any], *, renames: Mapping[str, str] | None = None, restart: Sequence[str] = ()
    ) -> Mapping[str, Any]:
        """As `Job.dry_run`."""
        return await self._client.run(self._job.judged(_change(spec, renames, restart), self._client.retries))

    async def pause(self) -> JobView:
        """As `Job.pause`."""
        return await self._ask("pause")

    async def resume(self) -> JobView:
        """As `Job.resume`."""
        return await self._ask("resume")

    async def stop(self) -> JobView:
        """As `Job.stop`."""
        return await self._ask("stop")

    async def restart(self) -> JobView:
        """As `Job.restart`."""
        return await self._ask("restart")

    async def flush(self) -> JobView:
        """As `Job.flush`."""
        return await self._ask("flush")

    async def delete(self) -> None:
        """As `Job.delete`."""
        await self._client.answer(self._job.deletion())

    async def _ask(self, verb: Verb) -> JobView:
        return self._job.seen(await self._client.answer(self._job.verb(verb)))
