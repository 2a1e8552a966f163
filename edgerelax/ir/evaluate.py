"""The meaning of graph functions in numpy: operators by their references, loops by the interpreter.

Every value is checked against its annotation as it appears, so that a wrong annotation rule, a
wrong lowering or a wrong pass is found at the first binding that differs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from edgerelax.ir.concrete import Shaped, bind_dims, concrete
from edgerelax.ir.diagnostics import InputError, ShapeError, UnsupportedError, VerifyError
from edgerelax.ir.graph import (
    Binding,
    Block,
    Call,
    CallGraph,
    CallLibrary,
    CallTIR,
    Constant,
    Expression,
    GetItem,
    GraphFunc,
    IfElse,
    MakeShape,
    MakeTuple,
    MatchCast,
    Module,
    ReadInts,
    Repeat,
    ToDevice,
    Value,
    Var,
    operands,
)
from edgerelax.ir.loop_interp import run_loop
from edgerelax.ir.op import Array
from edgerelax.ir.types import Annotation, IntTensor, Shape, Tensor, Tuple, as_tensor
from edgerelax.sym import Symbol

Sizes = dict[Symbol, int]
Observe = Callable[[Var, Any], None]
Library = Callable[..., Any]
"""A library function in numpy: `function(*arrays, **attributes)`."""


def evaluate(
    module: Module,
    inputs: Mapping[str, Array],
    func: str = "main",
    *,
    observe: Observe | None = None,
    libraries: Mapping[str, Library] | None = None,
) -> dict[str, Array]:
    """Run a graph function on arrays by input name; gives arrays by output name.

    `observe` sees every binding's variable and value: an array, a tuple of values or one of ints.
    """
    if func not in module.funcs:
        raise InputError(f"no function {func}; the module has {', '.join(module.funcs) or 'none'}")
    called = module.funcs[func]
    names = [p.name for p in called.params]
    for name in (*names, *inputs):
        if name not in inputs:
            raise InputError(f"{func}: input {name} is missing; it takes {', '.join(names)}")
        if name not in names:
            raise InputError(f"{func}: no input {name}; it takes {', '.join(names) or 'none'}")
    run = _Run(module, observe, libraries or {})
    args = [np.asarray(inputs[name]) for name in names]
    with np.errstate(all="ignore"):
        results = run.func(called, args, {})
    return {n: np.asarray(r) for n, r in zip(called.result_names, results, strict=True)}


class _Run:
    """One evaluation of a module."""

    def __init__(
        self, module: Module, observe: Observe | None, libraries: Mapping[str, Library]
    ) -> None:
        self.module, self.observe, self.libraries = module, observe, libraries

    def func(self, func: GraphFunc, args: Sequence[Any], outer: Sizes) -> tuple[Any, ...]:
        known = outer if func.attrs.get("primitive") else {}
        sizes = dict(known)
        values: dict[Value, Any] = {}
        shaped: list[Shaped] = []
        for param, arg in zip(func.params, args, strict=True):
            check_kind(func.name, param.name, param.annotation, arg)
            shaped.extend(shapes_of(param.name, param.annotation, arg))
            values[param] = arg
        sizes = bind_dims(func.name, shaped, sizes)
        return self.block(func.body, values, sizes)

    def block(self, block: Block, values: dict[Value, Any], sizes: Sizes) -> tuple[Any, ...]:
        """Run bindings, forgetting each value after its last use."""
        last = {v: k for k, b in enumerate(block.bindings) for v in operands(b.value)}
        kept = set(block.results)
        own = {b.var for b in block.bindings}
        for k, binding in enumerate(block.bindings):
            self.binding(binding, values, sizes)
            for value in operands(binding.value):
                if last[value] == k and value in own and value not in kept:
                    values.pop(value, None)
        return tuple(self.value(r, values) for r in block.results)

    def binding(self, binding: Binding, values: dict[Value, Any], sizes: Sizes) -> None:
        var = binding.var
        try:
            result = self.expression(binding.value, values, sizes)
        except (ValueError, IndexError, KeyError, ZeroDivisionError) as error:
            raise ShapeError(
                f"{var.name}: {error}", node=f"{var.name}: {var.annotation}", origin=var.origin
            ) from error
        if isinstance(binding.value, MatchCast):
            check_kind("match_cast", var.name, var.annotation, result)
            shaped = list(shapes_of(var.name, var.annotation, result))
            sizes.update(bind_dims(f"match_cast ({var.origin or var.name})", shaped, sizes))
        else:
            check_value(var, result, sizes)
        values[var] = result
        if self.observe is not None:
            self.observe(var, result)

    def value(self, value: Value, values: Mapping[Value, Any]) -> Any:
        if isinstance(value, Constant):
            return value.data
        if value not in values:
            raise VerifyError(f"{value.name} is used before it is defined", origin=value.origin)
        return values[value]

    def expression(self, value: Expression, values: dict[Value, Any], sizes: Sizes) -> Any:
        match value:
            case Call(op=op, args=args, attrs=attrs):
                given = [None if a is None else self.value(a, values) for a in args]
                return _settled(op.reference(*given, **concrete(attrs, sizes)))
            case CallTIR():
                return self.call_tir(value, values, sizes)
            case CallLibrary(func=name, args=call_args, attrs=attrs):
                if name not in self.libraries:
                    raise UnsupportedError(
                        f"library function {name} has no numpy meaning here",
                        hint="evaluate the module as it was before library dispatch",
                    )
                given = [self.value(a, values) for a in call_args]
                return _settled(self.libraries[name](*given, **concrete(attrs, sizes)))
            case CallGraph(func=name, args=call_args):
                given = [self.value(a, values) for a in call_args]
                results = self.func(self.module.funcs[name], given, sizes)
                return results[0] if len(results) == 1 else results
            case ReadInts(value=source):
                return tuple(int(i) for i in np.asarray(self.value(source, values)).reshape(-1))
            case MakeShape(dims=dims):
                return concrete(dims, sizes)
            case MakeTuple(fields=fields):
                return tuple(self.value(f, values) for f in fields)
            case GetItem(value=source, index=index):
                return self.value(source, values)[index]
            case MatchCast(value=source) | ToDevice(value=source):
                return self.value(source, values)
            case IfElse():
                return self.branch(value, values, sizes)
            case Repeat():
                return self.repeat(value, values, sizes)
            case Var() | Constant():
                return self.value(value, values)
        raise TypeError(f"{type(value).__name__} has no meaning here")

    def call_tir(self, call: CallTIR, values: dict[Value, Any], sizes: Sizes) -> Any:
        if call.func not in self.module.loops:
            raise VerifyError(f"no loop function {call.func} in the module")
        symbols = {s.name: n for s, n in sizes.items()}
        symbols.update({s.name: e.eval(sizes) for s, e in call.symbols})
        arrays = [self.value(a, values) for a in call.args]
        results = run_loop(self.module.loops[call.func], arrays, symbols)
        return results[0] if len(results) == 1 else tuple(results)

    def branch(self, branch: IfElse, values: dict[Value, Any], sizes: Sizes) -> tuple[Any, ...]:
        if isinstance(branch.cond, Var | Constant):
            taken = bool(np.asarray(self.value(branch.cond, values)).reshape(-1)[0])
        else:
            taken = branch.cond.eval(sizes) != 0
        arm, exprs = (
            (branch.then, branch.then_symbols) if taken else (branch.other, branch.other_symbols)
        )
        inner = dict(sizes)
        results = self.block(arm, dict(values), inner)
        for symbol, expr in zip(branch.symbols, exprs, strict=True):
            sizes[symbol] = expr.eval(inner)
        return results

    def repeat(self, repeat: Repeat, values: dict[Value, Any], sizes: Sizes) -> tuple[Any, ...]:
        carried = tuple(self.value(v, values) for v in repeat.initial)
        integers = tuple(e.eval(sizes) for e in repeat.first)
        for run in range(repeat.trips.eval(sizes)):
            inner = {**sizes, repeat.counter: run}
            inner.update(zip(repeat.symbols, integers, strict=True))
            given = zip(repeat.params, carried, strict=True)
            carried = self.block(repeat.body, {**values, **dict(given)}, inner)
            for param, value in zip(repeat.params, carried, strict=True):
                check_value(param, value, sizes)
            integers = tuple(e.eval(inner) for e in repeat.next)
            if repeat.going is not None and repeat.going.eval(inner) == 0:
                break
        sizes.update(zip(repeat.after, integers, strict=True))
        return carried


def _settled(result: Any) -> Any:
    """References may give numpy scalars and lists."""
    if isinstance(result, tuple | list):
        return tuple(np.asarray(r) for r in result)
    return np.asarray(result)


def check_kind(what: str, name: str, annotation: Annotation, value: Any) -> None:
    """Raise ShapeError if a value is no tensor, or not of the annotated dtype and rank."""
    wanted = as_tensor(annotation)
    if wanted is None:
        return
    if not isinstance(value, np.ndarray):
        raise ShapeError(f"{what}: {name} must be {annotation}, got {value}")
    if wanted.dtype is not None and value.dtype != wanted.dtype.numpy:
        raise ShapeError(f"{what}: {name} must be {wanted.dtype}, got {value.dtype}")
    if wanted.rank is not None and value.ndim != wanted.rank:
        raise ShapeError(
            f"{what}: {name} must have rank {wanted.rank}, got shape {list(value.shape)}"
        )


def shapes_of(name: str, annotation: Annotation, value: Any) -> Iterator[Shaped]:
    """What an annotation says of integers, beside the integers of a value."""
    match annotation:
        case Tensor(dims=dims) if dims is not None:
            yield name, dims, value.shape
        case IntTensor(values=values):
            yield name, annotation.tensor.dims or (), value.shape
            yield name, values, tuple(int(i) for i in value.reshape(-1))
        case Shape(dims=dims) if dims is not None:
            yield name, dims, tuple(int(i) for i in value)
        case Tuple(fields=fields):
            for k, (field, inner) in enumerate(zip(fields, value, strict=True)):
                yield from shapes_of(f"{name}[{k}]", field, inner)


def check_value(var: Var, value: Any, sizes: Mapping[Symbol, int]) -> None:
    """Raise VerifyError if a computed value is not what its annotation says."""
    annotation = var.annotation
    parts = (
        zip(annotation.fields, value, strict=True)
        if isinstance(annotation, Tuple)
        else ((annotation, value),)
    )
    try:
        for part, inner in parts:
            check_kind("its value", var.name, part, inner)
            bind_dims("its value", shapes_of(var.name, part, inner), sizes)
    except ShapeError as error:
        raise VerifyError(
            f"{var.name} is annotated {annotation}: {error.message}", origin=var.origin
        ) from error
