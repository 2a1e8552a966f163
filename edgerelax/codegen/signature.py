"""Where a program begins: read the inputs' sizes, solve for the symbols, check the rest.

Each check names the input, the dimension and what was expected (design 10).
"""

from collections.abc import Mapping

from edgerelax.codegen.integers import Integers
from edgerelax.codegen.program import FunctionBuilder, Reg
from edgerelax.ir.graph import Var
from edgerelax.ir.types import as_tensor
from edgerelax.sym import Expr, Symbol


def match_inputs(function: FunctionBuilder, integers: Integers, params: Mapping[Var, int]) -> None:
    """Define the symbols of the parameters' annotations and check every dimension.

    `params` are numbered as the program's inputs.
    """
    todo: list[tuple[Expr, Reg, str]] = []
    for param, k in params.items():
        tensor = as_tensor(param.annotation)
        assert tensor is not None and tensor.dims is not None, "parameters have known ranks"
        for axis, dim in enumerate(tensor.dims):
            text = f"input '{param.name}', dimension {axis} ({dim})"
            todo.append((dim, function.load_dim(k, axis), text))
    left = [item for item in todo if not _bind(function, integers, *item)]
    pending = len(left) + 1
    while left and len(left) < pending:
        pending = len(left)
        left = [item for item in left if not _solve(function, integers, *item)]
    for dim, size, text in todo:
        atom = dim.atom
        if isinstance(atom, Symbol) and integers.symbols.get(atom) == size:
            check_symbol(function, integers, atom, text)
        else:
            function.check_eq(
                size, integers.reg(dim), f"{text}: the size and what it must be differ"
            )


def check_symbol(
    function: FunctionBuilder, integers: Integers, symbol: Symbol, text: str, least: int = 0
) -> None:
    """Check a defined symbol's bounds; it is known to be at least `least`."""
    value = integers.symbols[symbol]
    if symbol.lo > least:
        lo = function.const(symbol.lo)
        function.check_le(lo, value, f"{text}: at least {symbol.lo} is expected")
    if symbol.hi is not None:
        hi = function.const(symbol.hi)
        function.check_le(value, hi, f"{text}: at most {symbol.hi} is allowed")
    if symbol.multiple_of > 1:
        divisor = function.const(symbol.multiple_of)
        function.check_divisible(
            value, divisor, f"{text}: a multiple of {symbol.multiple_of} is expected"
        )


def _bind(function: FunctionBuilder, integers: Integers, dim: Expr, size: Reg, text: str) -> bool:
    """A bare new symbol is the size itself."""
    atom = dim.atom
    if isinstance(atom, Symbol) and atom not in integers.symbols:
        integers.define(atom, size)
        return True
    return integers.is_defined(dim)


def _solve(function: FunctionBuilder, integers: Integers, dim: Expr, size: Reg, text: str) -> bool:
    """k*v + rest with one unknown v gives v; that it fits is checked with the other dims."""
    unknown = [s for s in dim.symbols() if s not in integers.symbols]
    if len(unknown) != 1:
        return not unknown
    symbol = unknown[0]
    factor = next((k for k, monomial in dim.terms() if monomial == (symbol,)), None)
    if factor is None or symbol in (dim - symbol * factor).symbols():
        return False
    rest = integers.reg(dim - symbol * factor)
    value = function.floordiv(function.sub(size, rest), function.const(factor))
    integers.define(symbol, value)
    check_symbol(function, integers, symbol, text)
    return True
