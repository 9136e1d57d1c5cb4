"""The connection to a service: one that blocks and one for asyncio.

Knows how an exchange is carried out over httpx. Refuses to know what is asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from millrace_client.errors import NoAnswer
from millrace_client.exchanges import (
    Answer,
    Exchange,
    Pause,
    Query,
    Request,
    Retries,
    answered,
    error_of,
    json_request,
)

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8080"
_RETRIES = Retries()


class _Address:
    """Where the service is and who asks, as httpx takes it."""

    def __init__(self, url: str, key: str | None, timeout_s: float) -> None:
        self._url, self._timeout_s = url.rstrip("/"), timeout_s
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    def arguments(self, request: Request) -> dict[str, Any]:
        return {
            "method": request.method,
            "url": self._url + request.path,
            "params": request.parameters() or None,  # an empty one would take that of the path away
            "headers": {**self._headers, **request.headers},
            "content": request.content,
            "timeout": httpx.Timeout(self._timeout_s, read=self._timeout_s + request.wait_s),
        }


class Client:
    """A service, for callers that block; threads may share it. A context manager.

    `key`: an API key. `http`: an httpx client to use, with a proxy or certificates, say; it is not closed.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        key: str | None = None,
        *,
        timeout_s: float = 30.0,
        retries: Retries = _RETRIES,
        http: httpx.Client | None = None,
    ) -> None:
        self.retries = retries
        self._address = _Address(url, key, timeout_s)
        self._is_own = http is None
        self._http = httpx.Client(verify=_has_tls(url)) if http is None else http

    def call(self, method: str, path: str, body: Any = None, *, query: Query | None = None, **more: Any) -> Any:
        """Ask for anything of the API: the answer's JSON. `more`: `headers`, `wait_s`, `is_repeatable`.

        Raises:
            ApiError: the service said no; its class is that of the code.
            NoAnswer: there was none.
        """
        return self.answer(json_request(method, path, body, query=query or {}, **more)).json()

    def items(self, path: str, query: Query | None = None) -> Iterator[Any]:
        """The items of a list, from all its pages."""
        following: str | None = ""
        while following is not None:
            page = self.call("GET", path, query={**(query or {}), "cursor": following or None})
            yield from page["items"]
            following = page["next"]

    def answer(self, request: Request) -> Answer:
        """The good answer to a request, after retries. Raises ApiError, NoAnswer."""
        return self.run(answered(request, self.retries))

    def run(self, exchange: Exchange[T]) -> T:
        """Carry an exchange out."""
        try:
            step = next(exchange)
            while True:
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                    step = next(exchange)
                    continue
                try:
                    answer = self._http.request(**self._address.arguments(step))
                except httpx.RequestError as error:
                    step = exchange.throw(_no_answer(step, error))
                else:
                    step = exchange.send(Answer(answer.status_code, answer.headers, answer.content))
        except StopIteration as end:
            result: T = end.value
            return result

    @contextmanager
    def streaming(self, request: Request) -> Iterator[Iterator[bytes]]:
        """The body of one good answer, as it comes. Raises ApiError, NoAnswer; also while it is read."""
        try:
            with self._http.stream(**self._address.arguments(request)) as answer:
                if answer.is_error:
                    raise error_of(answer.status_code, answer.headers, answer.read())
                yield answer.iter_bytes()
        except httpx.RequestError as error:
            raise _no_answer(request, error) from error

    def close(self) -> None:
        """Close its connections."""
        if self._is_own:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient:
    """A service, for asyncio. An asynchronous context manager; all else as of `Client`."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        key: str | None = None,
        *,
        timeout_s: float = 30.0,
        retries: Retries = _RETRIES,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        self.retries = retries
        self._address = _Address(url, key, timeout_s)
        self._is_own = http is None
        self._http = httpx.AsyncClient(verify=_has_tls(url)) if http is None else http

    async def call(self, method: str, path: str, body: Any = None, *, query: Query | None = None, **more: Any) -> Any:
        """As `Client.call`."""
        return (await self.answer(json_request(method, path, body, query=query or {}, **more))).json()

    async def items(self, path: str, query: Query | None = None) -> AsyncIterator[Any]:
        """The items of a list, from all its pages."""
        following: str | None = ""
        while following is not None:
            page = await self.call("GET", path, query={**(query or {}), "cursor": following or None})
            for item in page["items"]:
                yield item
            following = page["next"]

    async def answer(self, request: Request) -> Answer:
        """The good answer to a request, after retries. Raises ApiError, NoAnswer."""
        return await self.run(answered(request, self.retries))

    async def run(self, exchange: Exchange[T]) -> T:
        """Carry an exchange out."""
        try:
            step = next(exchange)
            while True:
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                    step = next(exchange)
                    continue
                try:
                    answer = await self._http.request(**self._address.arguments(step))
                except httpx.RequestError as error:
                    step = exchange.throw(_no_answer(step, error))
                else:
                    step = exchange.send(Answer(answer.status_code, answer.headers, answer.content))
        except StopIteration as end:
            result: T = end.value
            return result

    @asynccontextmanager
    async def streaming(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        """The body of one good answer, as it comes. Raises ApiError, NoAnswer; also while it is read."""
        try:
            async with self._http.stream(**self._address.arguments(request)) as answer:
                if answer.is_error:
                    raise error_of(answer.status_code, answer.headers, await answer.aread())
                yield answer.aiter_bytes()
        except httpx.RequestError as error:
            raise _no_answer(request, error) from error

    async def close(self) -> None:
        """Close its connections."""
        if self._is_own:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _has_tls(url: str) -> bool:
    """Where there is none, certificates need not be loaded: 50 ms."""
    return not url.startswith("http://")


def _no_answer(request: Request, error: httpx.RequestError) -> NoAnswer:
    failure = NoAnswer(f"{request.method} {request.path}: {error or type(error).__name__}")
    failure.__cause__ = error
    return failure
