"""Secrets at rest: sealed with a key that does not lie where they lie.

It knows one key, of the deployment or of a file that is made when it is first needed. It refuses to know whose secrets
these are.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.fernet import Fernet


class NotSealedHere(ValueError):
    """What was sealed with another key can not be opened."""

    def __init__(self) -> None:
        super().__init__("a secret was sealed with another key: give every API process the same MILLRACE_SECRET_KEY")


class Sealer:
    """Seals texts and opens them (Fernet: AES-128-CBC and HMAC-SHA256). `key`: 32 bytes in URL-safe base64; None: that
    in the file `path`, which is made (mode 0600) where there is none.
    """

    def __init__(self, key: str | None, path: Path) -> None:
        self._key, self._path = key, path

    def seal(self, text: str) -> str:
        """The text as it may be stored."""
        sealed: bytes = self._fernet.encrypt(text.encode())
        return sealed.decode()

    def open(self, sealed: str) -> str:
        """A text that was sealed. Raises NotSealedHere."""
        from cryptography.fernet import InvalidToken

        try:
            text: bytes = self._fernet.decrypt(sealed.encode())
        except InvalidToken as error:
            raise NotSealedHere from error
        return text.decode()

    @cached_property
    def _fernet(self) -> Fernet:
        from cryptography.fernet import Fernet  # 30 ms and 6 MB, for those alone who keep secrets

        return Fernet(self._key if self._key is not None else key_of_file(self._path))


def key_of_file(path: Path) -> str:
    """The key in a file; a new one where there is none."""
    with contextlib.suppress(FileExistsError):
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(base64.urlsafe_b64encode(secrets.token_bytes(32)).decode() + "\n")
        try:
            os.link(draft, path)  # whole, or not at all
        finally:
            draft.unlink()
    return path.read_text().strip()
