"""Expressions of `umem.evaluate`: from text to a graph of operations. Nothing of the text is ever executed.

A graph's nodes are numbered so that operands come before what uses them, and equal ones are one node.
"""

from __future__ import annotations

import ast
import operator
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

#: characters of an expression; how deep it nests; bits of an integer that numbers in it come to
MOST_CHARACTERS = 20_000
MOST_LEVELS = 100
MOST_BITS = 4096

_BINARY: dict[type, str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "true_divide",
    ast.FloorDiv: "floor_divide",
    ast.Mod: "remainder",
    ast.Pow: "power",
    ast.BitAnd: "bitwise_and",
    ast.BitOr: "bitwise_or",
    ast.BitXor: "bitwise_xor",
    ast.LShift: "left_shift",
    ast.RShift: "right_shift",
}
_UNARY: dict[type, str] = {ast.USub: "negative", ast.Invert: "invert"}
_COMPARISONS: dict[type, str] = {
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
}
#: functions by name: the ufunc (or where), and how many arguments it takes
_FUNCTIONS: dict[str, tuple[str, int]] = {
    **{
        name: (name, 1)
        for name in (
            "sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh",
            "arccosh", "arctanh", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt",
            "floor", "ceil", "trunc", "rint", "isnan", "isinf", "isfinite",
        )
    },
    **{name: (name, 2) for name in ("arctan2", "minimum", "maximum", "fmod", "hypot")},
    "abs": ("absolute", 1),
    "where": ("where", 3),
}  # fmt: skip
_ALLOWED = (
    "An expression has names, numbers, + - * / // % ** & | ^ ~ << >>, one comparison at a time, "
    f"parentheses, and the functions {' '.join(sorted(_FUNCTIONS))}."
)
#: what Python computes with numbers that are no arrays
_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "true_divide": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "power": operator.pow,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "left_shift": operator.lshift,
    "right_shift": operator.rshift,
    "negative": operator.neg,
    "invert": operator.invert,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "absolute": abs,
}


@dataclass(frozen=True)
class Node:
    """A name, a number or an operation; `at` is where it stands in the text."""

    kind: str  # "name", "number", or the name of the operation
    value: Any  # a name's; a number's; else None
    args: tuple[int, ...]
    at: tuple[int, int]  # line and column, from 0, in characters


@dataclass(frozen=True, eq=False)  # the same object while it is kept: a key that costs nothing
class Expression:
    text: str
    nodes: tuple[Node, ...]  # the last is the result
    names: tuple[int, ...]  # nodes of names


def fail(
    kind: type[Exception], reason: str, text: str, at: tuple[int, int], hint: str = ""
) -> NoReturn:
    """Raises an error whose message shows the expression and points at the character."""
    line, column = at
    lines = text.split("\n")
    shown = lines[min(line, len(lines) - 1)].replace("\t", " ")
    mark = " " * sum(map(_width, shown[:column])) + "^"
    raise kind("\n".join(filter(None, (reason, "    " + shown, "    " + mark, hint))))


def _width(character: str) -> int:
    """Columns that a terminal gives it."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


@lru_cache(maxsize=256)
def parse(text: str) -> Expression:
    """Raises SyntaxError, or what Python raises for numbers, such as ZeroDivisionError."""
    start = (0, 0)
    if len(text) > MOST_CHARACTERS:
        raise SyntaxError(f"the expression has more than {MOST_CHARACTERS:,} characters")
    stripped = text.strip()
    if not stripped:
        fail(SyntaxError, "the expression is empty", text, start, _ALLOWED)
    try:
        tree = ast.parse(stripped, mode="eval")
    except SyntaxError as error:
        line = (error.lineno or 1) - 1
        end = len(stripped.split("\n")[line])
        at = (line, error.offset - 1 if error.offset else end)  # 0: something is missing at the end
        reason = error.msg
    except (RecursionError, MemoryError):
        at, reason = start, "the expression nests too deeply"
    except ValueError as error:  # characters that are none
        at, reason = start, str(error)
        stripped = stripped.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
    else:
        return _Builder(stripped).build(tree.body)
    fail(SyntaxError, reason, stripped, at, _ALLOWED)


class _Builder:
    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.split("\n")
        self.nodes: list[Node] = []
        self.numbers: dict[object, int] = {}  # of nodes, by what makes them equal

    def build(self, tree: ast.expr) -> Expression:
        root = self.visit(tree, 0)
        if root != len(self.nodes) - 1:
            # numbers that were folded away are behind it
            self.nodes = self.nodes[: root + 1]
        names = tuple(i for i, node in enumerate(self.nodes) if node.kind == "name")
        return Expression(self.text, tuple(self.nodes), names)

    def refuse(self, reason: str, tree: ast.AST) -> NoReturn:
        fail(SyntaxError, reason, self.text, self.place(tree), _ALLOWED)

    def place(self, tree: Any) -> tuple[int, int]:
        line = tree.lineno - 1
        before = self.lines[line].encode()[: tree.col_offset]  # ast counts bytes
        return line, len(before.decode())

    def place_of_operator(self, left: Any, tree: Any) -> tuple[int, int]:
        """Behind the left operand and what closes its parentheses."""
        line = left.end_lineno - 1
        text = self.lines[line]
        column = len(text.encode()[: left.end_col_offset].decode())
        while text[column : column + 1] in (" ", ")", "\t"):
            column += 1
        return (line, column) if column < len(text) else self.place(tree)

    def add(self, kind: str, value: Any, args: tuple[int, ...], at: tuple[int, int]) -> int:
        # 1, 1.0 and True are equal, and so are 0.0 and -0.0; NaN is not.
        key = (kind, type(value), repr(value), args)
        if key not in self.numbers:
            self.numbers[key] = len(self.nodes)
            self.nodes.append(Node(kind, value, args, at))
        return self.numbers[key]

    def operation(self, kind: str, args: tuple[int, ...], at: tuple[int, int]) -> int:
        operands = [self.nodes[i] for i in args]
        if all(node.kind == "number" for node in operands):
            values = [node.value for node in operands]
            return self.add("number", compute(kind, values, self.text, at), (), at)
        return self.add(kind, None, args, at)

    def visit(self, tree: ast.expr, level: int) -> int:
        args: tuple[int, ...]
        if level > MOST_LEVELS:
            self.refuse(f"the expression nests more than {MOST_LEVELS} levels deep", tree)
        level += 1
        match tree:
            case ast.Name(id=name):
                return self.add("name", name, (), self.place(tree))
            case ast.Constant(value=value) if isinstance(value, (bool, int, float, complex)):
                return self.add("number", value, (), self.place(tree))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                args = (self.visit(left, level), self.visit(right, level))
                return self.operation(_BINARY[type(op)], args, self.place_of_operator(left, tree))
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.visit(operand, level)
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
                args = (self.visit(operand, level),)
                return self.operation(_UNARY[type(op)], args, self.place(tree))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
                args = (self.visit(left, level), self.visit(right, level))
                place = self.place_of_operator(left, tree)
                return self.operation(_COMPARISONS[type(op)], args, place)
            case ast.Call(func=ast.Name(id=name)):
                return self.call(name, tree, level)
        self.refuse(self.reason(tree), tree)

    def call(self, name: str, tree: ast.Call, level: int) -> int:
        if name not in _FUNCTIONS:
            self.refuse(f"there is no function {name!r}", tree)
        kind, count = _FUNCTIONS[name]
        if tree.keywords:
            self.refuse(f"{name}() takes no keyword arguments", tree.keywords[0])
        for argument in tree.args:
            if isinstance(argument, ast.Starred):
                self.refuse("an expression has no *", argument)
        if len(tree.args) != count:
            s = "" if count == 1 else "s"
            self.refuse(f"{name}() takes {count} argument{s}, not {len(tree.args)}", tree)
        args = tuple(self.visit(argument, level) for argument in tree.args)
        return self.operation(kind, args, self.place(tree))

    def reason(self, tree: ast.expr) -> str:
        match tree:
            case ast.Compare(ops=[_, _, *_]):
                return "comparisons cannot be chained: write (a < b) & (b < c)"
            case ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                return "'and', 'or' and 'not' do not work on arrays: use & | ~ with parentheses"
            case ast.IfExp():
                return "there is no 'if' in an expression: use where(condition, a, b)"
            case ast.Attribute():
                return "an expression has no attributes: give the value a name first"
            case ast.Subscript():
                return "an expression has no indices: give the view a name first"
            case ast.Constant(value=value):
                return f"an expression has numbers, no {type(value).__name__}"
            case ast.BinOp():
                return "there is no '@' in an expression: multiply matrices outside of it"
            case ast.Compare():
                return "there is no 'is' and no 'in' in an expression: use == or !="
            case ast.List() | ast.Tuple():
                return "an expression has no lists and no tuples: give an array a name first"
            case ast.Call():
                return "only functions by their name can be called"
        return f"an expression has no {type(tree).__name__}"


def compute(kind: str, values: list[Any], text: str, at: tuple[int, int]) -> Any:
    """An operation on numbers, none of them an array: Python's for Python's, else NumPy's."""
    if kind in ("power", "left_shift") and all(isinstance(v, int) for v in values):
        base, by = values
        bits = abs(base).bit_length() * by if kind == "power" else abs(base).bit_length() + by
        if bits > MOST_BITS:
            fail(OverflowError, f"an integer of more than {MOST_BITS} bits", text, at)
    try:
        if kind == "where":
            return np.where(*values)[()]
        function = _OPERATORS.get(kind)
        return function(*values) if function else getattr(np, kind)(*values)
    except (TypeError, ValueError, ArithmeticError) as error:
        fail(type(error), str(error), text, at)


# --- which part is of arrays --------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Split:
    """An expression once it is known which names are arrays.

    What depends on no array is computed first, each time: its values are numbers to the rest.
    """

    scalars: tuple[int, ...]  # nodes to compute, in order
    operations: tuple[int, ...]  # nodes that depend on arrays, in order
    roots: tuple[int, ...]  # nodes without arrays that operations use
    exponents: frozenset[int]  # of the roots


@lru_cache(maxsize=256)
def split(expression: Expression, arrays: frozenset[int]) -> Split:
    """`arrays`: the nodes of names that are arrays."""
    depends: set[int] = set(arrays)
    scalars, operations, roots, exponents = [], [], dict[int, None](), set()
    for i, node in enumerate(expression.nodes):
        if not node.args:
            continue
        if depends.isdisjoint(node.args):
            scalars.append(i)
            continue
        depends.add(i)
        operations.append(i)
        free = [j for j in node.args if j not in depends]
        roots.update(dict.fromkeys(free))
        if node.kind == "power" and node.args[1] in free:
            exponents.add(node.args[1])
    return Split(tuple(scalars), tuple(operations), tuple(roots), frozenset(exponents))
