"""The gate: which texts are expressions, and what each may cost.

It asks DuckDB's own parser (`json_serialize_sql`) what a text means and admits it only if every node of the
tree is one it knows. It refuses to know how SQL is written: a second parser would disagree with the one that
runs (sqlglot turns `value->>'a.b'` into a path). It fails closed: a node class, a field of a node or a
function that is not named here is refused, also when a later DuckDB invents it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from service.streams.errors import InvalidExpression
from service.streams.expressions.allowed import COLUMNS, FUNCTIONS, TYPES
from service.streams.expressions.cost import SMALL, Cost, calling, over, pick, replacing, states, value
from service.streams.expressions.words import check_words

MAX_DEPTH = 64
MAX_NODES = 1_000  # as DuckDB plans them
MAX_WORK = 2_000  # bytes that the nodes of an expression may make, together, of one byte of its record
MAX_FIXED_WORK = 1 << 20  # bytes that they may make whatever the record holds

Node = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Admitted:
    """What the gate found out about a text: the columns it reads, and the bound on what it makes of a record."""

    columns: frozenset[str]
    work_per_byte: int
    work_fixed: int


def admit(text: str, parse: Callable[[str], bytes]) -> Admitted:
    """Check a text; `parse` gives DuckDB's tree of a statement as JSON. Raises InvalidExpression."""
    check_words(text)
    tree = _only_item(_parsed(parse, f"SELECT {text}"), "EMPTY")
    walk = _Walk()
    cost = walk.visit(tree, 0)
    _check_cost(cost)
    ran = _only_item(_parsed(parse, f"SELECT {enclosed(text)} AS x FROM batch"), "BASE_TABLE")
    if _meaning(ran | {"alias": ""}) != _meaning(tree):
        raise InvalidExpression("the text means something else inside brackets")
    return Admitted(frozenset(walk.columns), cost.work_per_byte, cost.work_fixed)


def enclosed(text: str) -> str:
    """The text as it runs. The line break ends a trailing `--` comment."""
    return f"({text}\n)"


def _check_cost(cost: Cost) -> None:
    if cost.nodes > MAX_NODES:
        raise InvalidExpression(f"larger than {MAX_NODES} operators, functions, columns and literals")
    if cost.work_per_byte > MAX_WORK or cost.work_fixed > MAX_FIXED_WORK:
        raise InvalidExpression("could make too much of one record: nested growth, or a regular expression too large")


def _parsed(parse: Callable[[str], bytes], statement: str) -> Node:
    try:
        answer: Node = orjson.loads(parse(statement))
    except orjson.JSONDecodeError as error:  # deeper than orjson reads
        raise InvalidExpression(f"nested deeper than {MAX_DEPTH} levels") from error
    if answer["error"]:
        message = answer["error_message"]
        deep = "expression depth" in message
        raise InvalidExpression(f"nested deeper than {MAX_DEPTH} levels" if deep else message)
    return answer


def _only_item(answer: Node, source: str) -> Node:
    """The one select item of the one SELECT; anything else that a statement can have is refused."""
    if len(answer["statements"]) != 1:
        raise InvalidExpression("one expression is expected, this is more than one statement")
    statement = answer["statements"][0]
    node = statement["node"]
    if node["type"] != "SELECT_NODE" or set(node) != _SELECT:
        raise InvalidExpression("one expression is expected, this is a query")
    if node["from_table"]["type"] != source or node["cte_map"]["map"] or any(node[clause] for clause in _CLAUSES):
        raise InvalidExpression("FROM, WHERE, ORDER BY and other clauses are not part of an expression")
    if node["aggregate_handling"] != "STANDARD_HANDLING":
        raise InvalidExpression("clauses are not part of an expression")
    if statement["named_param_map"]:
        raise InvalidExpression("parameters are not available")
    if len(node["select_list"]) != 1:
        raise InvalidExpression(f"one expression is expected, these are {len(node['select_list'])}")
    item: Node = node["select_list"][0]
    return item


_CLAUSES = ("modifiers", "where_clause", "group_expressions", "group_sets", "having", "sample", "qualify")
_SELECT = {"type", "cte_map", "select_list", "from_table", "aggregate_handling", *_CLAUSES}


def _meaning(node: Any) -> Any:
    """A tree without the places in the text."""
    if isinstance(node, dict):
        return {k: _meaning(v) for k, v in node.items() if not k.startswith("query_location")}
    return [_meaning(child) for child in node] if isinstance(node, list) else node


class _Walk:
    """Goes through a tree, node by node; remembers the columns, returns the cost."""

    def __init__(self) -> None:
        self.columns: set[str] = set()

    def visit(self, node: Node, depth: int) -> Cost:
        if depth > MAX_DEPTH:
            raise InvalidExpression(f"nested deeper than {MAX_DEPTH} levels")
        kind = node["class"]
        if kind not in _CLASSES:
            raise InvalidExpression(f"{_WORDS.get(kind, kind.lower().replace('_', ' '))} is not available")
        fields, types, visit = _CLASSES[kind]
        if set(node) - _COMMON != fields or node["type"] not in types:
            raise InvalidExpression(f"{node['type'].lower().replace('_', ' ')} is not available")
        if node["alias"]:
            raise InvalidExpression(f"a name ({node['alias']}) is not part of an expression")
        return visit(self, node, depth + 1)

    def constant(self, node: Node, depth: int) -> Cost:
        kind, text = node["literal"]["kind"], node["literal"]["text"]
        if kind not in {"STRING", "INTEGER", "NUMERIC", "BOOLEAN", "NULL_LITERAL"}:
            raise InvalidExpression(f"a literal of kind {kind.lower()} is not available")
        return value(fixed=len(text.encode()) if kind == "STRING" else SMALL)

    def column(self, node: Node, depth: int) -> Cost:
        path = node["column_names"]
        name = path[0].lower()
        if len(path) > 1 and name == "value":
            raise InvalidExpression(f"write value->>'{path[1]}' for a field of the value")
        if len(path) > 1 or name not in COLUMNS:
            raise InvalidExpression(f"{'.'.join(path)} is not a column; there are {', '.join(COLUMNS)}")
        self.columns.add(name)
        return value(per_byte=1, is_json=name == "value") if name in {"key", "value"} else value(fixed=SMALL)

    def cast(self, node: Node, depth: int) -> Cost:
        name = _type_name(node["type_expr"])
        child = self.visit(node["child"], depth)
        if name in {"VARCHAR", "JSON"}:
            return over([child], child.per_byte, child.fixed + SMALL, is_json=name == "JSON")
        return over([child], 0, SMALL)

    def comparison(self, node: Node, depth: int) -> Cost:
        return over([self.visit(node["left"], depth), self.visit(node["right"], depth)], 0, SMALL)

    def between(self, node: Node, depth: int) -> Cost:
        """DuckDB plans it as two comparisons, and so its input twice."""
        tested = self.visit(node["input"], depth)
        return over([tested, tested, self.visit(node["lower"], depth), self.visit(node["upper"], depth)], 0, SMALL)

    def operator(self, node: Node, depth: int) -> Cost:
        costs = [self.visit(child, depth) for child in node["children"]]
        if node["type"] in {"OPERATOR_COALESCE", "OPERATOR_TRY"}:
            return pick(costs)
        if node["type"] in {"COMPARE_IN", "COMPARE_NOT_IN"}:
            costs += costs[:1] * (len(costs) - 2)  # DuckDB plans a short list as x = a OR x = b
        return over(costs, 0, SMALL)

    def case(self, node: Node, depth: int) -> Cost:
        checks = node["case_checks"]
        if any(set(check) != {"when_expr", "then_expr"} for check in checks):
            raise InvalidExpression("this kind of CASE is not available")
        conditions = [self.visit(check["when_expr"], depth) for check in checks]
        results = [self.visit(then, depth) for then in (*(check["then_expr"] for check in checks), node["else_expr"])]
        return pick(results, conditions)

    def arrow(self, node: Node, depth: int) -> Cost:
        """`a -> b` has the shape of a lambda; without a function that takes one, it is the JSON operator."""
        if node["syntax_type"] != "SINGLE_ARROW":
            raise InvalidExpression("a lambda is not available")
        return self._call("->", [node["lhs"], node["expr"]], depth)

    def function(self, node: Node, depth: int) -> Cost:
        name = node["function_name"].lower()
        if node["schema"] or node["catalog"] or len(node["qualified_name"]["path"]) != 1:
            raise InvalidExpression(
                f"a function is called by its bare name, not {'.'.join(node['qualified_name']['path'])}"
            )
        if name not in FUNCTIONS:
            raise InvalidExpression(_unknown(name))
        if node["filter"] or node["order_bys"]["orders"] or node["distinct"] or node["export_state"]:
            raise InvalidExpression(f"{name} is not an aggregate")
        if any(argument["name"] for argument in node["arguments"]):
            raise InvalidExpression(f"{name} takes no named arguments")
        return self._call(name, [argument["expression"] for argument in node["arguments"]], depth)

    def _call(self, name: str, arguments: list[Node], depth: int) -> Cost:
        function = FUNCTIONS[name]
        for place in function.literals & set(range(len(arguments))):
            _check_literal(name, arguments[place])
        costs = [self.visit(argument, depth) for argument in arguments] * function.copies
        if function.picks:
            return pick(costs)
        sizes = [len(_text(argument)) for argument in arguments]
        growth = replacing(*sizes[1:]) if name == "replace" and len(sizes) == 3 else function.growth
        passes = states(_text(arguments[1]).decode()) if name.startswith("regexp_") and len(arguments) > 1 else 0
        return calling(function, growth, costs, passes)


def _type_name(node: Node) -> str:
    """The canonical name of the type that is cast to; types with parts other than DECIMAL(p, s) are refused."""
    name = TYPES.get(node.get("type_name", "").upper())
    if name is None or node["class"] != "TYPE" or node["alias"] or node["schema"] or node["catalog"]:
        raise InvalidExpression(f"a cast to {node.get('type_name', 'this type')} is not available")
    parts = node["children"]
    if parts and (name != "DECIMAL" or not all(_literal(part) == "INTEGER" for part in parts)):
        raise InvalidExpression(f"{name} takes no parameters")
    return name


def _literal(node: Node) -> str | None:
    """The kind of the literal that a node is, if it is one."""
    return node["literal"]["kind"] if node["class"] == "CONSTANT" else None


def _text(node: Node) -> bytes:
    """The text of a literal, b"" for anything else."""
    return node["literal"]["text"].encode() if node["class"] == "CONSTANT" else b""


def _check_literal(name: str, node: Node) -> None:
    if name in {"->", "->>"} and (chain := _chain(node)) is not None:
        for path in chain:
            _check_literal(name, path)
    elif _literal(node) not in {"STRING", "INTEGER"}:
        raise InvalidExpression(f"{name} needs a literal on its right; put brackets around what belongs together")
    elif name in _TAKES_PATH and re.match(r"\*$|\$.*(\*|\.\.)", node["literal"]["text"], re.DOTALL):
        raise InvalidExpression("a path with wildcards gives a list: name one field")


def _chain(node: Node) -> list[Node] | None:
    """`value->'a'->>'b'` reads as value->('a'->>'b'): the two sides of such a right-hand side."""
    if node["class"] == "LAMBDA":
        return [node["lhs"], node["expr"]]
    if node["class"] == "FUNCTION" and node["function_name"] in {"->", "->>"} and len(node["arguments"]) == 2:
        return [argument["expression"] for argument in node["arguments"]]
    return None


def _unknown(name: str) -> str:
    if not name[0].isalpha() or name in _WORDS:
        return f"{_WORDS.get(name, name)} is not available"
    return f"{name} is not available; there are {', '.join(sorted(n for n in FUNCTIONS if n[0].isalpha()))}"


_TAKES_PATH = {name for name in FUNCTIONS if name.startswith("json_")} | {"->", "->>"}
_COMMON = {"class", "type", "alias", "query_location", "query_location_length"}
_CALL = {"function_name", "schema", "catalog", "qualified_name", "filter", "order_bys", "distinct", "export_state"}
_EQUALITIES = {"COMPARE_EQUAL", "COMPARE_NOTEQUAL", "COMPARE_DISTINCT_FROM", "COMPARE_NOT_DISTINCT_FROM"}
_ORDERINGS = {
    f"COMPARE_{less_or_greater}THAN{or_equal}"
    for less_or_greater in ("LESS", "GREATER")
    for or_equal in ("", "OREQUALTO")
}
_OPERATORS = {"OPERATOR_NOT", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL", "OPERATOR_COALESCE", "OPERATOR_TRY"}

# Node class -> its fields beside the common ones, its types, and who visits it. All else is refused.
_CLASSES: dict[str, tuple[set[str], set[str], Callable[[_Walk, Node, int], Cost]]] = {
    "CONSTANT": ({"literal"}, {"VALUE_CONSTANT"}, _Walk.constant),
    "COLUMN_REF": ({"column_names"}, {"COLUMN_REF"}, _Walk.column),
    "CAST": ({"child", "type_expr", "try_cast"}, {"OPERATOR_CAST"}, _Walk.cast),
    "COMPARISON": ({"left", "right"}, _EQUALITIES | _ORDERINGS, _Walk.comparison),
    "BETWEEN": ({"input", "lower", "upper"}, {"COMPARE_BETWEEN"}, _Walk.between),
    "CONJUNCTION": ({"children"}, {"CONJUNCTION_AND", "CONJUNCTION_OR"}, _Walk.operator),
    "OPERATOR": ({"children"}, _OPERATORS | {"COMPARE_IN", "COMPARE_NOT_IN"}, _Walk.operator),
    "CASE": ({"case_checks", "else_expr"}, {"CASE_EXPR"}, _Walk.case),
    "LAMBDA": ({"lhs", "expr", "syntax_type"}, {"LAMBDA"}, _Walk.arrow),
    "FUNCTION": (_CALL | {"is_operator", "arguments"}, {"FUNCTION"}, _Walk.function),
}
_WORDS = {
    "STAR": "*",
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "PARAMETER": "a parameter",
    "list_value": "a list",
    "list_apply": "a list comprehension",
    "struct_pack": "a struct",
    "row": "a row",
    "map": "a map",
    "timezone": "AT TIME ZONE",
    "to_days": "an interval",
}
