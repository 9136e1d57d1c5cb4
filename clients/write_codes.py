"""The codes of errors as both clients have them, from the tables of docs/errors.md.

Writes millrace_client/codes.py and src/codes.ts; with `--check` it exits 1 where they are not as the tables have it.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "errors.md"
PYTHON = HERE / "python" / "millrace_client" / "codes.py"
TYPESCRIPT = HERE / "typescript" / "src" / "codes.ts"

WITHOUT_STATUS = 422  # of what ends a simulation
FAILED_JOBS = "## Failed jobs"
SIMULATED = 6  # of the codes of failed jobs, the first ones: the others are never answered
WIDTH = 110
TRANSIENT = {"request_timeout", "idempotency_in_flight"}  # beside those whose family is


class Code(NamedTuple):
    """A code that an answer may have, when, and the status of that answer."""

    name: str
    status: int
    when: str

    @property
    def class_name(self) -> str:
        return "".join(word.capitalize() for word in self.name.split("_"))


FAMILIES = {
    400: "BadRequestError",
    401: "NotAuthenticatedError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    409: "ConflictError",
    410: "GoneError",
    412: "PreconditionError",
    422: "UnprocessableError",
    428: "PreconditionError",
    429: "TooManyRequestsError",
    500: "ServerError",
    503: "UnavailableError",
}


def codes(page: str) -> list[Code]:
    """Each code that an answer may have, in the order of the page."""
    found: dict[str, Code] = {}
    of_jobs = 0
    place_of_jobs = page.index(FAILED_JOBS)
    for row in re.finditer(r"^\| (`[^\n]*) \|$", page, re.MULTILINE):
        cells = row[1]
        names, *rest = [cell.strip() for cell in cells.split(" | ")]
        has_status = re.fullmatch(r"[\d, ]+", rest[0])
        statuses = [int(status) for status in rest[0].split(",")] if has_status else []
        if not has_status and rest[0] != "–":
            of_jobs += row.start() > place_of_jobs
            statuses = [WITHOUT_STATUS] if of_jobs <= SIMULATED else []
        when = rest[1] if has_status else rest[0]
        for place, name in enumerate(re.findall("`([a-z_]+)`", names)):
            if statuses:
                found.setdefault(name, Code(name, statuses[min(place, len(statuses) - 1)], when))
    return list(found.values())


def python(found: list[Code]) -> str:
    """The module of a class a code."""
    families = sorted({_family(code) for code in found})
    lines = [
        '"""A class for each code of docs/errors.md, below its family; written by clients/write_codes.py."""',
        "",
        "from __future__ import annotations",
        "",
        "from millrace_client.errors import (",
        *(f"    {name}," for name in sorted({"ApiError", *families})),
        ")",
    ]
    for code in found:
        lines += [
            "",
            "",
            f"class {code.class_name}({_family(code)}):",
            f'    """{_sentence(code.when)}"""',
            "",
            f'    code = "{code.name}"',
            f"    http_status = {code.status}",
            *(["    is_transient = True"] if code.name in TRANSIENT else []),
        ]
    lines += ["", "", "BY_CODE: dict[str, type[ApiError]] = {"]
    lines += [f'    "{code.name}": {code.class_name},' for code in found]
    return "\n".join([*lines, "}", ""])


def typescript(found: list[Code]) -> str:
    """The status of each code."""
    lines = [
        "// The codes of docs/errors.md and the status of each; written by clients/write_codes.py.",
        "export const STATUS_OF_CODE = {",
        *(f"  {code.name}: {code.status}, // {code.when}" for code in found),
        "} as const;",
        "",
        "export type ErrorCode = keyof typeof STATUS_OF_CODE;",
        "",
    ]
    return "\n".join(lines)


def _family(code: Code) -> str:
    return FAMILIES.get(code.status, "RequestError")


def _sentence(when: str) -> str:
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", when)
    text = text[0].upper() + text[1:] + "."
    return text if len(text) <= WIDTH else text[: WIDTH - 1].rpartition(" ")[0] + " …"


def main() -> None:
    """Exits 1 with what differs."""
    found = codes(PAGE.read_text())
    texts = {PYTHON: python(found), TYPESCRIPT: typescript(found)}
    if "--check" not in sys.argv[1:]:
        for path, text in texts.items():
            path.write_text(text)
        return
    stale = [path.name for path, text in texts.items() if not path.exists() or path.read_text() != text]
    if stale:
        sys.exit(f"{', '.join(stale)}: not as docs/errors.md has it; run clients/write_codes.py")


if __name__ == "__main__":
    main()
