"""What an expression may contain: functions, operators and types, each with what it can cost.

It knows three tables and the reason behind each choice; it refuses to know syntax (`gate` walks that).

Left out on purpose, though DuckDB has them:
- what reads a clock, a random source, a setting, a file or the session: the same records would give
  other results tomorrow, or elsewhere;
- what multiplies its input without a bound visible in the text (`repeat`, `lpad`, `format`,
  `regexp_replace`), and what takes quadratic time (`levenshtein`, `json_contains`);
- what the processor's mathematical library or ICU decides (`exp`, `ln`, `pow`, `sin`, collations, time
  zones) and `hash`, which changes between versions: a replay on another host must give the same bytes;
- lists, structs, maps, lambdas, aggregates, window functions: an expression is a scalar of one record.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

COLUMNS = ("key", "value", "timestamp", "window_start", "window_end")


@dataclass(frozen=True, slots=True)
class AllowedFunction:
    """One function: its result has at most `growth` × the bytes of all its arguments (0: a small value).

    `literals` are the positions of arguments that must stand in the text as literals; `copies` is how often
    the text of an argument appears once DuckDB has expanded the function, where it is a macro (nested forty
    deep, `nullif` hangs the planner); `picks` says that the result is one of the arguments, `is_json` that it
    is JSON, `escapes` that it quotes text inside JSON (a control character takes six bytes there).
    """

    growth: int = 1
    literals: frozenset[int] = field(default_factory=frozenset)
    copies: int = 1
    picks: bool = False
    is_json: bool = False
    escapes: bool = False


_VALUE = AllowedFunction(growth=0)  # a number, a boolean, a date, a digest
_TEXT = AllowedFunction()
_PATTERN = AllowedFunction(growth=0, literals=frozenset({1, 2}))
_PATH = frozenset({1})

FUNCTIONS: dict[str, AllowedFunction] = {
    # arithmetic: exact, or correctly rounded by IEEE 754
    **dict.fromkeys(("+", "-", "*", "/", "//", "%", "&", "|", "~", "<<", ">>"), _VALUE),
    **dict.fromkeys(("abs", "sign", "round", "floor", "ceil", "ceiling", "trunc", "mod", "sqrt"), _VALUE),
    **dict.fromkeys(("isnan", "isinf", "isfinite"), _VALUE),
    # choice
    **dict.fromkeys(("if", "greatest", "least"), AllowedFunction(picks=True)),
    "nullif": AllowedFunction(picks=True, copies=2),
    # text
    **dict.fromkeys(("~~", "!~~", "~~*", "!~~*"), AllowedFunction(growth=0, literals=frozenset({1}))),
    **dict.fromkeys(("regexp_matches", "regexp_full_match"), _PATTERN),
    "regexp_extract": AllowedFunction(literals=frozenset({1, 2, 3})),
    **dict.fromkeys(("^@", "starts_with", "ends_with", "prefix", "suffix", "contains"), _VALUE),
    **dict.fromkeys(("position", "strpos", "instr", "length", "len", "strlen", "char_length"), _VALUE),
    **dict.fromkeys(("ascii", "ord", "unicode", "chr", "md5", "sha1", "sha256"), _VALUE),
    **dict.fromkeys(("lower", "lcase", "upper", "ucase"), AllowedFunction(growth=2)),  # "ɐ" has 2 bytes, "Ɐ" 3
    **dict.fromkeys(("trim", "ltrim", "rtrim", "substring", "substr", "left", "right"), _TEXT),
    **dict.fromkeys(("reverse", "strip_accents", "concat", "||"), _TEXT),
    "split_part": AllowedFunction(copies=4),
    "translate": AllowedFunction(growth=4),  # one byte may become a character of four
    "replace": AllowedFunction(literals=frozenset({1, 2})),  # `gate` derives its growth from the literals
    # JSON
    **dict.fromkeys(("->", "json_extract"), AllowedFunction(literals=_PATH, is_json=True)),
    **dict.fromkeys(("->>", "json_extract_string"), AllowedFunction(literals=_PATH)),
    **dict.fromkeys(("json_exists", "json_type", "json_array_length"), AllowedFunction(growth=0, literals=_PATH)),
    "json_valid": _VALUE,
    **dict.fromkeys(("to_json", "json_object", "json_array"), AllowedFunction(is_json=True, escapes=True)),
    # time: on DATE and TIMESTAMP, which know no zone (UTC by convention)
    **dict.fromkeys(("epoch", "epoch_ms", "date_part", "datepart", "date_trunc", "datetrunc"), _VALUE),
    **dict.fromkeys(("date_diff", "datediff"), _VALUE),
    "strftime": AllowedFunction(growth=32),
}

# Name in the text -> the name DuckDB gives it. Fixed-size types, and the two that carry text.
_INTEGERS = {
    "TINYINT": ("INT1",),
    "SMALLINT": ("INT2", "SHORT"),
    "INTEGER": ("INT", "INT4", "SIGNED"),
    "BIGINT": ("INT8", "LONG"),
    "UTINYINT": ("UINT8",),
    "USMALLINT": ("UINT16",),
    "UINTEGER": ("UINT32",),
    "UBIGINT": ("UINT64",),
}
_OTHERS = {
    "BOOLEAN": ("BOOL", "LOGICAL"),
    "FLOAT": ("FLOAT4", "REAL"),
    "DOUBLE": ("FLOAT8",),
    "DECIMAL": ("NUMERIC", "DEC"),
    "VARCHAR": ("TEXT", "STRING", "CHAR", "BPCHAR"),
    "JSON": (),
    "DATE": (),
    "TIMESTAMP": ("DATETIME",),
}
TYPES: dict[str, str] = {alias: name for name, aliases in (_INTEGERS | _OTHERS).items() for alias in (name, *aliases)}

# What a whole expression may give: DuckDB's name -> Arrow's. DECIMAL(p,s) is the one with parameters.
RESULTS: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINTEGER": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "VARCHAR": pa.utf8(),
    "JSON": pa.json_(pa.utf8()),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us"),
    '"NULL"': pa.null(),
}
