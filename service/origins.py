"""Whose page a browser's request comes from.

Knows the headers that browsers set and pages can not forge: `Host`, `Origin`, `Sec-Fetch-Site`. Refuses to know who
asks: what shows a key needs none of this, for no other page has the key.
"""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from service.problems import ProblemError
from service.settings import Settings

_OWN_SITES: Final = frozenset({"same-origin", "none"})  # none: typed by a person, or a bookmark


def is_own_host(fields: Headers, settings: Settings) -> bool:
    """Whether a request was sent to this service by one of its own names. Else some page had its own name point here
    (DNS rebinding), and would read the answer as one of its own.
    """
    try:
        name = urlsplit("//" + fields.get("host", "localhost")).hostname or ""
    except ValueError:
        return False
    return name in {"localhost", settings.host, _public_name(settings)} or name.endswith(".localhost") or _is_ip(name)


def is_own_page(fields: Headers, settings: Settings) -> bool:
    """Whether the page that sent a request is one of this service; also where no page says so."""
    origin = fields.get("origin", "").lower()
    host = fields.get("host", "").lower()
    return not origin or origin in {f"http://{host}", f"https://{host}", settings.public_url}


def refuse_other_pages(fields: Headers, settings: Settings) -> None:
    """Raises ProblemError 403 for what is sent by a page of somebody else's."""
    if not is_own_page(fields, settings):
        raise ProblemError(403, "cross_site_request", f"a page of {fields['origin']} may not ask for this")


def refuse_other_sites(fields: Headers) -> None:
    """Raises ProblemError 403 where a page of somebody else's had the browser ask, as an image or a script.

    Cookies do not tell ports apart, nor does `SameSite`: a page of another port of this machine has them sent along.
    """
    if fields.get("sec-fetch-site", "none") not in _OWN_SITES:
        raise ProblemError(403, "cross_site_request", "a page of another site may not ask for this")


def is_encrypted(fields: Headers, settings: Settings) -> bool:
    """Whether people reach the service over TLS, which ends in front of it: by its setting, else by their page."""
    return (settings.public_url or fields.get("origin", "").lower()).startswith("https://")


def _public_name(settings: Settings) -> str | None:
    return urlsplit(settings.public_url).hostname if settings.public_url else None


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
