"""The first look at a text, before DuckDB's parser sees it: its length, its words, its brackets.

It asks DuckDB's own tokenizer and refuses what no expression contains, so that the parser can not be kept busy
(4,000 open brackets take it 18 s, twenty nested PIVOTs 14 s) nor made to copy (each WHEN copies what its CASE
compares, thirty nested ones fill the memory). It refuses to know grammar: `gate` judges what is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import duckdb

from service.streams.errors import InvalidExpression
from service.streams.expressions.allowed import COLUMNS, FUNCTIONS, TYPES

MAX_TEXT = 4_096  # characters
MAX_BRACKETS = 64
MAX_SIGNS = 16  # operators in a row: "- - - …" over 4,096 characters takes the parser 2 s
MAX_COMPARED = 16  # tokens between CASE and its first WHEN

_SYNTAX = (
    *("AND", "OR", "NOT", "IS", "NULL", "ISNULL", "NOTNULL", "TRUE", "FALSE", "DISTINCT", "FROM"),
    *("IN", "BETWEEN", "LIKE", "ILIKE", "SIMILAR", "TO", "CASE", "WHEN", "THEN", "ELSE", "END", "COALESCE", "IFNULL"),
    *("CAST", "TRY_CAST", "TRY", "AS", "PRECISION", "WITHOUT", "TIME", "ZONE"),
    *("POSITION", "FOR", "BOTH", "LEADING", "TRAILING", "EXTRACT", "YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR"),
    *("MINUTE", "SECOND", "MILLISECOND", "MICROSECOND", "DECADE", "CENTURY", "MILLENNIUM"),
)
_KEYWORDS = frozenset(word.upper() for word in (*_SYNTAX, *FUNCTIONS, *TYPES, *COLUMNS))
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")


def check_words(text: str) -> None:
    """Raises InvalidExpression for a text that the parser should not see."""
    if len(text) > MAX_TEXT:
        raise InvalidExpression(f"longer than {MAX_TEXT:,} characters")
    if any(char == "\0" or "\ud800" <= char <= "\udfff" for char in text):
        raise InvalidExpression("holds a character that is not text")
    tokens = list(_tokens(text))
    for (_, before), (kind, token) in pairwise([("", ""), *tokens]):
        _check_word(kind, token, after_dot=before == ".")
    _check_operators([token if kind == "operator" else "" for kind, token in tokens])
    _check_cases([token.upper() if kind == "keyword" else "" for kind, token in tokens])


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """The kind and the text of each token; comments are none."""
    encoded = text.encode()
    tokens = duckdb.tokenize(text)
    starts = [*(start for start, _ in tokens), len(encoded)]
    for (start, end), (_, kind) in zip(pairwise(starts), tokens, strict=True):
        if kind != duckdb.token_type.comment:
            yield kind.name, encoded[start:end].decode(errors="replace").strip()


def _check_word(kind: str, token: str, *, after_dot: bool) -> None:
    if kind == "keyword" and token.upper() not in _KEYWORDS and not after_dot:  # there it is a name
        raise InvalidExpression(f"{token.upper()} is not available")
    if kind == "identifier" and not token.startswith('"') and not token.isascii():
        raise InvalidExpression(f"{token} is not a column")  # it may hold a space that only the parser sees


def _check_operators(operators: list[str]) -> None:
    depth = signs = 0
    for operator in operators:
        depth += (operator in _OPENING) - (operator in _CLOSING)
        signs = signs + 1 if operator and operator not in _OPENING | _CLOSING else 0
        if depth > MAX_BRACKETS:
            raise InvalidExpression(f"more than {MAX_BRACKETS} brackets inside each other")
        if signs > MAX_SIGNS:
            raise InvalidExpression(f"more than {MAX_SIGNS} operators in a row")


def _check_cases(keywords: list[str]) -> None:
    """What stands between CASE and its first WHEN must be short."""
    compared: list[int] = []  # for each open CASE, the place after it; its first WHEN makes it endless
    for place, keyword in enumerate(keywords):
        if keyword == "CASE":
            compared.append(place + 1)
        elif keyword == "WHEN" and compared:
            if place - compared[-1] > MAX_COMPARED:
                raise InvalidExpression("a CASE compares too much: write CASE WHEN … = … THEN")
            compared[-1] = len(keywords)
        elif keyword == "END" and compared:
            compared.pop()
