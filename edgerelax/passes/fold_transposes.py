"""Transposes go where they cost nothing: into matmuls, into each other, or to views.

    1. transpose(transpose(x)) is one transpose; one that moves only dims of size 1 is a reshape,
       one that moves nothing is x; so with reshape(reshape(x)) and a reshape to the same dims
    2. a matmul's operand whose last two dims are swapped is read so instead (`transpose_a`,
       `transpose_b`); a larger permutation whose last dim ends up last but one is split in one
       that keeps rows whole, which copies them, and such a swap
    3. a swap of a product's last two dims is the product of the turned operands in turned order:
       (a b)ᵀ = bᵀ aᵀ, unless one is a constant, which schedules expect on its side
    4. between transposes that cancel, operators that work element by element take the layout of the
       outer ones: transpose(f(transpose(x))) is f(x)

Applied until nothing changes; each step leaves fewer transposes or shorter chains. Constants are
turned when folded. Before: canonical form. What it does not do: add a transpose to cancel others.
"""

from collections.abc import Sequence
from dataclasses import replace

from edgerelax.ir.graph import Binding, Call, Constant, GraphFunc, Module, Value, Var
from edgerelax.ir.names import Names
from edgerelax.ir.outcome import Outcome
from edgerelax.ir.rewrite import all_bindings, rewrite_func
from edgerelax.ir.types import Tensor
from edgerelax.ops import OPS, activation, cast, comparison, elementwise
from edgerelax.passes.affine import equal_dims
from edgerelax.passes.dce import dce
from edgerelax.passes.fold_constants import make_constant
from edgerelax.passes.uses import Uses
from edgerelax.sym import Expr, product, prove_eq

FAMILIES = (elementwise, comparison, activation, cast)
POINTWISE = frozenset(o.name for family in FAMILIES for o in family.OPERATORS)
"""Operators that mean the same in any layout: element by element, without axes or dims."""

Dims = tuple[Expr, ...]
Perm = tuple[int, ...]


def fold_transposes(module: Module) -> Module:
    """Apply the rules in every graph function."""
    outcome = Outcome()
    changes = -1
    while changes != outcome.done.total():
        changes = outcome.done.total()
        funcs = {name: _Rules(func, outcome).applied() for name, func in module.funcs.items()}
        module = dce(replace(module, funcs=funcs))
    for binding in (b for func in module.funcs.values() for b in all_bindings(func.body)):
        if isinstance(binding.value, Call) and binding.value.op.name == "transpose":
            outcome.skip("transposes that nothing beside them takes", binding.var.name)
    return outcome.on(module)


class _Rules:
    """One walk over a function. Counts of uses are those from before it."""

    def __init__(self, func: GraphFunc, outcome: Outcome) -> None:
        self.func, self.outcome = func, outcome
        self.uses = Uses(func.body)
        names = {b.var.name for b in all_bindings(func.body)} | {p.name for p in func.params}
        self.names = Names(names)
        self.calls: dict[Value, Call] = {}  # what computes a value, as far as walked

    def applied(self) -> GraphFunc:
        return rewrite_func(self.func, self._visit)

    def _visit(self, binding: Binding) -> Value | list[Binding]:
        found = self._rule(binding)
        for kept in found if isinstance(found, list) else []:
            if isinstance(kept.value, Call):
                self.calls[kept.var] = kept.value
        return found

    def _rule(self, binding: Binding) -> Value | list[Binding]:
        call, dims = binding.value, dims_of(binding.var)
        if not isinstance(call, Call) or dims is None:
            return [binding]
        if call.op.name == "matmul":
            return self._into_product(binding.var, call)
        if call.op.name == "reshape":
            return self._reshape(binding, call, dims)
        if call.op.name == "transpose":
            return self._transpose(binding, call, dims)
        return [binding]

    def _reshape(self, binding: Binding, call: Call, dims: Dims) -> Value | list[Binding]:
        (source,) = call.args
        assert source is not None
        given = dims_of(source)
        if given is not None and equal_dims(given, dims):
            self.outcome.did("reshapes to the same dims dropped")
            return source
        before = self.calls.get(source)
        if before is None or before.op.name != "reshape":
            return [binding]
        (first,) = before.args
        origin = None if first is None else dims_of(first)
        if origin is None or prove_eq(product(origin), product(dims)) is not True:
            return [binding]
        self.outcome.did("reshapes of reshapes merged")
        return [Binding(binding.var, replace(call, args=(first,)))]

    def _transpose(self, binding: Binding, call: Call, dims: Dims) -> Value | list[Binding]:
        found = self._permutation(binding.var, call)
        if found is None:
            return [binding]
        source, perm = found
        inner = self.permutation_of(source)
        if inner is not None:
            source, perm = inner[0], tuple(inner[1][p] for p in perm)
            self.outcome.did("transposes of transposes merged")
        given = dims_of(source)
        assert given is not None
        if perm == tuple(range(len(perm))):
            self.outcome.did("transposes that move nothing dropped")
            return source
        moved = [p for p in perm if prove_eq(given[p], 1) is not True]
        if moved == sorted(moved):
            self.outcome.did("transposes of dims of 1 made views")
            return [Binding(binding.var, Call(OPS["reshape"], (source,), {"dims": dims}))]
        if inner is not None:
            turned = replace(call, args=(source,), attrs={"perm": perm})
            return [Binding(binding.var, turned)]
        return (
            self._around_product(binding, source, perm)
            or self._cancelled(binding, source, perm)
            or [binding]
        )

    def permutation_of(self, value: Value) -> tuple[Value, Perm] | None:
        """The value that this one is a transpose of, and how."""
        call = self.calls.get(value)
        return None if call is None else self._permutation(value, call)

    def _permutation(self, value: Value, call: Call) -> tuple[Value, Perm] | None:
        rank = None if (dims := dims_of(value)) is None else len(dims)
        if call.op.name != "transpose" or rank is None:
            return None
        (source,) = call.args
        if source is None or dims_of(source) is None:
            return None
        perm = call.attrs["perm"]
        ordered = reversed(range(rank)) if perm is None else (p % rank for p in perm)
        return source, tuple(ordered)

    def _into_product(self, var: Var, call: Call) -> list[Binding]:
        args, attrs = list(call.args), dict(call.attrs)
        extra: list[Binding] = []
        for k, flag in enumerate(("transpose_a", "transpose_b")):
            value = args[k]
            found = None if value is None else self.permutation_of(value)
            if value is None or found is None or len(found[1]) < 2:
                continue
            source, perm = found
            rest = swapped(perm)
            if rest == tuple(range(len(rest))):
                args[k] = source
                self.outcome.did("transposes read by a matmul")
            elif perm[-2] == len(perm) - 1 and self.uses.only(value) is not None:
                args[k] = self._emit_transpose(source, rest, value.name, extra)
                self.outcome.did("transposes split into whole rows and a matmul's reads")
            else:
                continue
            attrs[flag] = not attrs[flag]
        return [*extra, Binding(var, replace(call, args=tuple(args), attrs=attrs))]

    def _emit_transpose(self, source: Value, perm: Perm, name: str, out: list[Binding]) -> Var:
        var = Var(self.names.pick(name), permuted(source.annotation, perm))
        out.append(Binding(var, Call(OPS["transpose"], (source,), {"perm": perm})))
        return var

    def _around_product(self, binding: Binding, source: Value, perm: Perm) -> list[Binding] | None:
        call = self.calls.get(source)
        if call is None or call.op.name != "matmul" or self.uses.only(source) is None:
            return None
        ranks = [None if a is None or (d := dims_of(a)) is None else len(d) for a in call.args]
        constant = any(isinstance(a, Constant) for a in call.args)
        if swapped(perm) != tuple(range(len(perm))) or constant:
            return None
        if any(rank is None or rank < 2 for rank in ranks):
            return None
        self.outcome.did("transposes of a matmul made one of its operands")
        a, b = call.args
        turns = {
            "transpose_a": not call.attrs["transpose_b"],
            "transpose_b": not call.attrs["transpose_a"],
        }
        return [Binding(binding.var, replace(call, args=(b, a), attrs=turns))]

    def _cancelled(self, binding: Binding, source: Value, perm: Perm) -> list[Binding] | None:
        region = _Region(self, perm)
        if region.turn(source) is None or not region.closed(binding):
            return None
        self.outcome.did("transposes cancelled through maps")
        *out, last = region.out
        return [*out, Binding(binding.var, last.value)]


class _Region:
    """Operators that work element by element, from what transposes give to one that undoes them."""

    def __init__(self, rules: _Rules, perm: Perm) -> None:
        self.rules, self.perm = rules, perm
        self.turned: dict[Value, Value] = {}
        self.out: list[Binding] = []

    def closed(self, end: Binding) -> bool:
        """Whether nothing outside uses what is computed inside."""
        inside = {*self.turned, end.var}
        uses = (use for value in self.turned for use in self.rules.uses.of(value))
        return bool(self.out) and all(use is not None and use.var in inside for use in uses)

    def turn(self, value: Value) -> Value | None:
        """The value transposed by `perm`, where that takes no transpose; None where it does."""
        inner = self.rules.permutation_of(value)
        if inner is not None:
            cancels = tuple(inner[1][p] for p in self.perm) == tuple(range(len(self.perm)))
            return inner[0] if cancels else None
        call, dims = self.rules.calls.get(value), dims_of(value)
        if value in self.turned or call is None or dims is None or not isinstance(value, Var):
            return self.turned.get(value)
        if call.op.name not in POINTWISE:
            return None
        args = [a if a is None else self._operand(a, dims) for a in call.args]
        lost = any(b is None and a is not None for a, b in zip(call.args, args, strict=True))
        if lost or all(a is None or isinstance(a, Constant) for a in args):
            return None
        var = Var(
            self.rules.names.pick(value.name), permuted(value.annotation, self.perm), value.origin
        )
        self.out.append(Binding(var, replace(call, args=tuple(args))))
        self.turned[value] = var
        return var

    def _operand(self, value: Value, dims: Dims) -> Value | None:
        given = dims_of(value)
        if isinstance(value, Constant):
            return self._constant(value)
        if given is None or given == ():
            return value if given == () else None
        return self.turn(value) if equal_dims(given, dims) else None

    def _constant(self, constant: Constant) -> Constant:
        data = constant.data
        if data.size == 1:
            return constant
        whole = data.reshape((1,) * (len(self.perm) - data.ndim) + data.shape)
        name = self.rules.names.pick(constant.name)
        return make_constant(name, whole.transpose(self.perm).copy())


def dims_of(value: Value) -> Dims | None:
    """The dims of a tensor, if they are known."""
    return value.annotation.dims if isinstance(value.annotation, Tensor) else None


def swapped(perm: Perm) -> Perm:
    """The permutation with its last two places exchanged."""
    return (*perm[:-2], perm[-1], perm[-2])


def permuted(annotation: object, perm: Sequence[int]) -> Tensor:
    """The annotation of a tensor transposed."""
    assert isinstance(annotation, Tensor) and annotation.dims is not None
    return replace(annotation, dims=tuple(annotation.dims[p] for p in perm))
