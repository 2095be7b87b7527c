"""Assert lists (MBPP) and check functions (HumanEval) as calls to make in the box and values to compare outside it.

    assert f(2) == [1, 2]             Expression("f(2)", ([1, 2],))
    assert set(f(2)) == set((1, 2))   Expression("set(f(2))", ({1, 2},))
    assert abs(f(2) - 0.5) < 1e-6     Expression("f(2)", (0.5,), Comparator("tokens", absolute=1e-6))
    assert not f(2)                   Expression("bool(f(2))", (False,))

Whatever cannot be put so stays a `Script`. A side is moved only if it calls and converts and does nothing else: a
comparison inside the program's process can be forged by an `__eq__`.
"""

import ast
import builtins
from typing import Any

from pipeline.verify.code.compare import Comparator
from pipeline.verify.code.suite import BadReference, Expression, Script

CONVERSIONS = frozenset(
    {"abs", "bool", "dict", "float", "frozenset", "int", "len", "list", "max", "min", "round", "set", "sorted"}
    | {"str", "sum", "tuple"}
)
"""Builtins that may stand around a call: their result still has to be known to be forged."""

_BUILTINS = frozenset(dir(builtins))
_HARMLESS = (
    *(ast.Call, ast.Name, ast.Attribute, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.UnaryOp),
    *(ast.BinOp, ast.operator, ast.unaryop, ast.keyword, ast.Starred, ast.Subscript, ast.Slice, ast.expr_context),
)
_NOT_CONSTANT = object()


def read_asserts(text: str, entry: str | None) -> list[Expression | Script]:
    """Tests of one text of statements, or of its `check(candidate)`. Raises BadReference for no Python or no test."""
    try:
        return _tests_of(ast.parse(text), entry)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, BadReference):
            raise
        raise BadReference(f"is not Python that can be read ({error})") from None


def _tests_of(module: ast.Module, entry: str | None) -> list[Expression | Script]:
    before, body = _statements(module, entry)
    own = _names_bound(module) - {"math"}  # which every expression finds
    prepared = any(map(_calls_for_effect, body))
    tests: list[Expression | Script] = []
    rest: list[ast.stmt] = []
    for statement in body:
        pair = _as_pair(statement, own) if isinstance(statement, ast.Assert) and not prepared else None
        if pair is not None:
            tests.append(pair)
        elif not _says_nothing(statement):
            rest.append(statement)
    if any(isinstance(node, ast.Assert | ast.Raise) for statement in rest for node in ast.walk(statement)):
        script = ast.Module([*before, *rest], [])
        tests.append(Script(ast.unparse(script), _names_used(script)))
    if not tests:
        raise BadReference("holds no assert")
    return tests


def _statements(module: ast.Module, entry: str | None) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """What runs before the asserts, and the statements that they stand among."""
    checks = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "check"]
    if not checks:
        return [], module.body
    check = checks[-1]
    if entry is None or len(check.args.args) != 1:
        raise BadReference("defines check(), which needs one parameter and the name of the function to check")
    candidate = check.args.args[0].arg
    for node in ast.walk(check):
        if isinstance(node, ast.Name) and node.id == candidate:
            node.id = entry
    calls_check = [node for node in module.body if isinstance(node, ast.Expr) and "check(" in ast.unparse(node)]
    return [node for node in module.body if node is not check and node not in calls_check], check.body


def _names_bound(module: ast.Module) -> frozenset[str]:
    """Names that the text itself gives a meaning: an expression moved out of it would not find them."""
    bound: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            bound.add(node.name)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).split(".")[0])
    return frozenset(bound)


def _says_nothing(statement: ast.stmt) -> bool:
    """Whether a statement tests nothing: a docstring, `pass`, `assert True`."""
    if isinstance(statement, ast.Pass):
        return True
    if isinstance(statement, ast.Assert):
        return isinstance(statement.test, ast.Constant) and bool(statement.test.value)
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _calls_for_effect(statement: ast.stmt) -> bool:
    """Whether a statement may change what later asserts see: `push(1)` before `assert pop() == 1`."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and _callee(call) not in _BUILTINS


def _as_pair(statement: ast.Assert, own: frozenset[str]) -> Expression | None:
    """An assert as an expression and the value that it must have, None where it has no such form."""
    test = statement.test
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _truth(test.operand, False, own)
    if isinstance(test, ast.Call):
        return _is_close(test, own) or _truth(test, True, own)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    left, right, comparison = test.left, test.comparators[0], test.ops[0]
    if isinstance(comparison, ast.Lt | ast.LtE):
        return _difference_below(left, right, own)
    if isinstance(comparison, ast.Is) and not (isinstance(right, ast.Constant) and right.value in (None, True, False)):
        return None
    if not isinstance(comparison, ast.Eq | ast.Is):
        return None
    for called, value in ((left, constant(right)), (right, constant(left))):
        if value is not _NOT_CONSTANT and _is_movable(called, own):
            return Expression(ast.unparse(called), (value,))
    return None


def _truth(called: ast.expr, expected: bool, own: frozenset[str]) -> Expression | None:
    """`assert f(x)`, if it is the program's function that is called and no builtin such as `all`."""
    if not isinstance(called, ast.Call) or not _is_movable(called, own):
        return None
    if isinstance(called.func, ast.Name) and called.func.id in _BUILTINS:
        return None
    if isinstance(called.func, ast.Attribute) and not isinstance(called.func.value, ast.Call):
        return None  # a function of a module, such as math.isnan
    return Expression(f"bool({ast.unparse(called)})", (expected,))


def _is_close(test: ast.Call, own: frozenset[str]) -> Expression | None:
    """`assert math.isclose(f(x), 0.5, rel_tol=1e-9)`."""
    if ast.unparse(test.func) not in ("math.isclose", "isclose") or len(test.args) != 2:
        return None
    options = {keyword.arg: constant(keyword.value) for keyword in test.keywords}
    if not options.keys() <= {"rel_tol", "abs_tol"} or not all(isinstance(v, int | float) for v in options.values()):
        return None
    rule = Comparator("tokens", float(options.get("rel_tol", 1e-9)), float(options.get("abs_tol", 0.0)))
    return _near(test.args[0], test.args[1], rule, own)


def _difference_below(left: ast.expr, right: ast.expr, own: frozenset[str]) -> Expression | None:
    """`assert abs(f(x) - 0.5) < 1e-6`."""
    bound = constant(right)
    if not isinstance(bound, float) or not 0 < bound < 1 or not isinstance(left, ast.Call) or len(left.args) != 1:
        return None
    inner = left.args[0]
    if ast.unparse(left.func) not in ("abs", "math.fabs") or not isinstance(inner, ast.BinOp):
        return None
    return (
        _near(inner.left, inner.right, Comparator("tokens", 0.0, bound), own) if isinstance(inner.op, ast.Sub) else None
    )


def _near(one: ast.expr, other: ast.expr, rule: Comparator, own: frozenset[str]) -> Expression | None:
    for called, value in ((one, constant(other)), (other, constant(one))):
        if isinstance(value, int | float) and not isinstance(value, bool) and _is_movable(called, own):
            return Expression(ast.unparse(called), (float(value),), rule)
    return None


def _is_movable(node: ast.expr, own: frozenset[str]) -> bool:
    """Whether an expression only calls, converts and builds values, with names found beside the program."""
    if constant(node) is not _NOT_CONSTANT:
        return False
    parts = list(ast.walk(node))
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    calls = any(isinstance(part, ast.Call) and _callee(part) not in _BUILTINS for part in parts)
    return calls and all(isinstance(part, _HARMLESS) for part in parts) and not names & (own | _BUILTINS - CONVERSIONS)


def _callee(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def constant(node: ast.expr) -> Any:  # noqa: ANN401 - any Python value
    """The value of an expression of literals, `_NOT_CONSTANT` for any other. Nothing is evaluated but arithmetic."""
    try:
        value = ast.literal_eval(node)
        return _NOT_CONSTANT if isinstance(value, complex) or value is ... else value
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        pass
    if isinstance(node, ast.Call) and not node.keywords and isinstance(node.func, ast.Name):
        return _converted(node.func.id, [constant(argument) for argument in node.args])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = constant(node.operand)
        return -value if isinstance(value, int | float) else _NOT_CONSTANT
    if isinstance(node, ast.BinOp):
        return _arithmetic(node.op, constant(node.left), constant(node.right))
    if isinstance(node, ast.List | ast.Tuple):
        parts = [constant(part) for part in node.elts]
        return _NOT_CONSTANT if _NOT_CONSTANT in parts else parts if isinstance(node, ast.List) else tuple(parts)
    return _NOT_CONSTANT


def _converted(name: str, values: list[Any]) -> Any:  # noqa: ANN401 - any Python value
    """`set((1, 2))` and `float("inf")`."""
    kinds: dict[str, Any] = {"set": set, "frozenset": set, "tuple": tuple, "list": list, "float": float}
    if name not in kinds or len(values) > 1 or any(value is _NOT_CONSTANT for value in values):
        return _NOT_CONSTANT
    try:
        return kinds[name](*values)
    except (TypeError, ValueError, OverflowError):
        return _NOT_CONSTANT


def _arithmetic(operator: ast.operator, left: Any, right: Any) -> Any:  # noqa: ANN401 - any Python values
    """`10 ** 9 + 7`, as long as it stays small."""
    if type(left) not in (int, float) or type(right) not in (int, float):
        return _NOT_CONSTANT
    try:
        if isinstance(operator, ast.Pow):
            return left**right if abs(left) <= 1000 and abs(right) <= 1000 else _NOT_CONSTANT
        if isinstance(operator, ast.Add | ast.Sub):
            return left + right if isinstance(operator, ast.Add) else left - right
        if isinstance(operator, ast.Mult | ast.Div):
            return left * right if isinstance(operator, ast.Mult) else left / right
    except ArithmeticError:
        pass
    return _NOT_CONSTANT


def _names_used(script: ast.Module) -> tuple[str, ...]:
    """Names that a script uses without giving them a meaning: the functions of the program."""
    used = {node.id for node in ast.walk(script) if isinstance(node, ast.Name)}
    return tuple(sorted(used - _names_bound(script) - _BUILTINS))


def called_name(test: object) -> str | None:
    """The function of the program that an assert calls, where its form shows it."""
    if isinstance(test, Script):
        return test.names[0] if test.names else None
    if not isinstance(test, Expression):
        return None
    calls = [node for node in ast.walk(ast.parse(test.text, mode="eval")) if isinstance(node, ast.Call)]
    return next((name for name in map(_callee, calls) if name and name not in _BUILTINS), None)
