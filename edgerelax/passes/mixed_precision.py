"""Mixed precision: weights and the activations between operators become f16, sums stay f32.

    1. contractions take their operands in f16 and give f16; their kernels sum in f32
    2. what moves elements follows its operands
    3. elementwise operators compute in f32, norms and softmax too; their results are stored as f16
       if every operand was, or is bounded as theirs is. A result that only the next such operator
       reads keeps its f32 value: one kernel computes both
    4. all else (reductions, exp, powers, quotients of values, squares) takes and gives f32, and so
       do contractions all of whose readers take a square or a logarithm: spectra

A value is cast to f16 once. It is cast back where it is read, so that no f32 copy of it is stored;
casts that meet are never made. Inputs and results of functions and of arms keep their types.

Before: attention is one operator, factors are in weights. What it does not do: scale. A weight
beyond f16's range keeps its operator in f32; an activation beyond it becomes infinite.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edgerelax.ir.dtypes import F16, F32, I8, DType
from edgerelax.ir.graph import (
    Binding,
    Block,
    Call,
    Constant,
    Expression,
    GetItem,
    GraphFunc,
    IfElse,
    Module,
    Repeat,
    Value,
    Var,
    bodies,
    direct_operands,
    with_bodies,
)
from edgerelax.ir.names import Names
from edgerelax.ir.outcome import Outcome
from edgerelax.ir.rewrite import all_bindings, substitute_operands
from edgerelax.ir.types import Annotation, Tensor, Tuple
from edgerelax.ops import OPS
from edgerelax.passes.uses import Uses

STORED = (F16, I8)
LARGEST = float(np.finfo(np.float16).max)
TABLE = 1024  # elements from which a constant is worth storing as f16 for what only moves it
DEPTH = 8  # products that a matmul must sum: with fewer there is nothing to gain

CONTRACTIONS = frozenset(("matmul", "conv", "conv_transpose", "einsum", "attention"))
MOVES = frozenset(
    (
        "concat", "depth_to_space", "expand", "gather", "gather_elements", "gather_nd", "identity",
        "max_pool", "reshape", "slice", "space_to_depth", "split", "tile", "transpose",
    )
)  # fmt: skip
MAPS = frozenset(
    (
        "abs", "add", "batch_norm", "clip", "div", "elu", "erf", "gelu", "hard_sigmoid",
        "hard_swish", "leaky_relu", "max", "min", "mish", "mul", "neg", "prelu", "relu", "selu",
        "sigmoid", "softsign", "sub", "swish", "tanh", "where",
    )
)  # fmt: skip
PASSED = MOVES | frozenset(("clip", "max", "min"))
BOUNDED = frozenset(("group_norm", "instance_norm", "layer_norm", "rms_norm", "softmax"))


def mixed_precision(module: Module) -> Module:
    """Narrow the values of every graph function."""
    outcome = Outcome()
    funcs = {name: _Narrowing(f, outcome).narrowed() for name, f in module.funcs.items()}
    return outcome.on(replace(module, funcs=funcs))


@dataclass(slots=True)
class _Scope:
    """What is known while the bindings of a block are written."""

    half: dict[Value, Value] = field(default_factory=dict)  # the f16 form of a value
    stored: set[Value] = field(default_factory=set)  # values that exist in f16 only
    narrow: set[Value] = field(default_factory=set)  # f32 values that may be rounded
    out: list[Binding] = field(default_factory=list)

    def inner(self) -> "_Scope":
        return _Scope(dict(self.half), set(self.stored), set(self.narrow))

    def is_narrow(self, value: Value) -> bool:
        return value in self.half or value in self.narrow


class _Narrowing:
    """One function."""

    def __init__(self, func: GraphFunc, outcome: Outcome) -> None:
        self.func, self.outcome = func, outcome
        self.uses = Uses(func.body)
        bound = {b.var.name for b in all_bindings(func.body)}
        self.names = Names(bound | {p.name for p in func.params})
        self.constants: dict[Constant, Constant] = {}

    def narrowed(self) -> GraphFunc:
        return replace(self.func, body=self.block(self.func.body, _Scope()))

    def block(self, block: Block, scope: _Scope) -> Block:
        for binding in block.bindings:
            self.bind(binding, scope)
        results = tuple(self.full(v, scope) for v in block.results)
        return Block(tuple(scope.out), results)

    def bind(self, binding: Binding, scope: _Scope) -> None:
        match binding.value:
            case IfElse() | Repeat() as nest:
                inner = [self.block(body, scope.inner()) for body in bodies(nest)]
                self.keep(Binding(binding.var, with_bodies(nest, inner)), scope)
            case GetItem(value, index) if value in scope.half:
                self.write_half(binding.var, GetItem(scope.half[value], index), scope)
            case Call() as call if self.call(binding.var, call, scope):
                pass
            case _:
                self.keep(binding, scope)

    def keep(self, binding: Binding, scope: _Scope) -> None:
        """As it was, on f32."""
        full = {v: self.full(v, scope) for v in direct_operands(binding.value) if v in scope.stored}
        scope.out.append(Binding(binding.var, substitute_operands(binding.value, full)))

    def call(self, var: Var, call: Call, scope: _Scope) -> bool:
        """Write an operator that is narrowed, or whose result is; False for any other."""
        name = call.op.name
        if name in CONTRACTIONS:
            return self.contraction(var, call, scope)
        if name in MOVES:
            return self.move(var, call, scope)
        if name in MAPS and self.may_round(call, scope):
            return self.map(var, call, scope)
        if name in BOUNDED and _dtype(var) == F32:
            return self.map(var, call, scope)
        return False

    # Roles

    def contraction(self, var: Var, call: Call, scope: _Scope) -> bool:
        given = factors(var, call)
        if given is None:
            return False
        if self.is_level(var):
            self.outcome.skip("a product whose square or logarithm is taken", var.name)
            return False
        if not all(fits(a) for a in given if isinstance(a, Constant)):
            self.outcome.skip("a weight beyond the range of f16", var.name)
            return False
        count = _factor_count(call)
        halves = [self.to_half(a, scope) if a in given else a for a in call.args[:count]]
        others = [None if a is None else self.full(a, scope) for a in call.args[count:]]
        self.write_half(var, replace(call, args=(*halves, *others)), scope)
        self.outcome.did(call.op.name)
        return True

    def move(self, var: Var, call: Call, scope: _Scope) -> bool:
        floats = _floats(call)
        constants = [a for a in floats if isinstance(a, Constant)]
        values = [a for a in floats if not isinstance(a, Constant)]
        if not (values or is_table(call)) or not all(v in scope.half for v in values):
            return False
        if not all(map(fits, constants)) or not self.is_taken_apart(var):
            return False
        halves = {a: self.to_half(a, scope) for a in floats}
        self.write_half(var, substitute_operands(call, halves), scope)
        return True

    def map(self, var: Var, call: Call, scope: _Scope) -> bool:
        """Compute in f32. The result is rounded here if that is how it is stored."""
        floats = _floats(call)
        rounded = self.is_stored(var)
        if rounded and call.op.name in MAPS and all(a in scope.half for a in floats):
            halves = {a: scope.half[a] for a in floats}  # the operator rounds by itself
            self.write_half(var, substitute_operands(call, halves), scope)
            return True
        self.keep(Binding(var, call), scope)
        if rounded:
            self.to_half(var, scope)
            scope.stored.add(var)
        else:
            scope.narrow.add(var)
        return True

    # Questions

    def may_round(self, call: Call, scope: _Scope) -> bool:
        """Whether a map's result is of the size of operands that are narrow."""
        floats = _floats(call)
        values = [a for a in floats if not isinstance(a, Constant)]
        if is_square(call):
            return False
        if call.op.name == "div" and call.args[1] in values:
            return False
        constants = (a for a in floats if isinstance(a, Constant))
        return bool(values) and all(map(scope.is_narrow, values)) and all(map(fits, constants))

    def is_level(self, value: Value) -> bool:
        """Whether all that reads a value takes its square or logarithm, as spectra are read.

        There numbers far below the largest count as much, and f16 has no digits for them.
        """
        users = self.uses.of(value)
        return bool(users) and all(user is not None and self.takes_level(user) for user in users)

    def takes_level(self, user: Binding) -> bool:
        """Whether a reader is one that does, or only moves or bounds the value for such."""
        call = user.value
        if isinstance(call, GetItem) or (isinstance(call, Call) and call.op.name in PASSED):
            return self.is_level(user.var)
        return isinstance(call, Call) and (call.op.name == "log" or is_square(call))

    def is_stored(self, var: Var) -> bool:
        """Whether a result is read by what computes in f16, or by several."""
        users = self.uses.of(var)
        if all(user is None for user in users):
            return False
        if len(users) > 1:
            return True
        (user,) = users
        call = None if user is None else user.value
        return isinstance(call, Call) and call.op.name in CONTRACTIONS | MOVES

    def is_taken_apart(self, var: Var) -> bool:
        """Whether a tuple, if it is one, is used by field only."""
        if not isinstance(var.annotation, Tuple):
            return True
        return all(u is not None and isinstance(u.value, GetItem) for u in self.uses.of(var))

    # Values

    def write_half(self, var: Var, value: Expression, scope: _Scope) -> None:
        """Bind a value's f16 form, the only one that there is."""
        half = Var(self.names.pick(f"{var.name}_f16"), _halved(var.annotation), var.origin)
        scope.out.append(Binding(half, value))
        scope.half[var] = half
        scope.stored.add(var)

    def to_half(self, value: Value, scope: _Scope) -> Value:
        """A value as f16; cast once."""
        if isinstance(value, Constant):
            if value not in self.constants:
                data = value.data.astype(np.float16)
                name = self.names.pick(f"{value.name}_f16")
                self.constants[value] = Constant(name, data, _halved(value.annotation))
            return self.constants[value]
        if value not in scope.half:
            scope.half[value] = self.cast(value, F16, scope)
        return scope.half[value]

    def full(self, value: Value, scope: _Scope) -> Value:
        """A value as f32; cast for each reader, in whose kernel the cast disappears."""
        if value not in scope.stored:
            return value
        return self.cast(scope.half[value], F32, scope)

    def cast(self, value: Value, dtype: DType, scope: _Scope) -> Var:
        assert isinstance(value, Var) and isinstance(value.annotation, Tensor)
        name = self.names.pick(f"{value.name}_{dtype}")
        var = Var(name, replace(value.annotation, dtype=dtype), value.origin)
        cast = Call(OPS["cast"], (value,), {"dtype": dtype, "saturate": True})
        scope.out.append(Binding(var, cast))
        self.outcome.did(f"casts to {dtype}")
        return var


def _halved(annotation: Annotation) -> Annotation:
    if isinstance(annotation, Tuple):
        return replace(annotation, fields=tuple(map(_halved, annotation.fields)))
    assert isinstance(annotation, Tensor)
    return replace(annotation, dtype=F16)


def is_square(call: Call) -> bool:
    """Whether it multiplies a value by itself."""
    return call.op.name == "mul" and call.args[0] is call.args[1]


def _dtype(value: Value) -> DType | None:
    return value.annotation.dtype if isinstance(value.annotation, Tensor) else None


def _floats(call: Call) -> Sequence[Value]:
    return [a for a in call.args if a is not None and _dtype(a) == F32]


def _factor_count(call: Call) -> int:
    """How many of its operands may be f16: masks and biases of attention may not."""
    return 3 if call.op.name == "attention" else len(call.args)


def factors(var: Var, call: Call) -> list[Value] | None:
    """The operands that a contraction takes in f16; None if it is not to be narrowed.

    Keys and values that are stored as something smaller stay so.
    """
    given = [a for a in call.args[: _factor_count(call)] if a is not None]
    if call.op.name == "attention":
        given = given[:1] + [a for a in given[1:] if _dtype(a) not in STORED]
    if call.op.name not in CONTRACTIONS or any(_dtype(a) != F32 for a in (*given, var)):
        return None
    return None if _is_shallow(call) else given


def is_table(call: Call) -> bool:
    """Whether it picks from a constant that is large enough to be stored as f16."""
    constants = (a for a in _floats(call) if isinstance(a, Constant))
    return call.op.name.startswith("gather") and any(c.data.size > TABLE for c in constants)


def fits(constant: Value) -> bool:
    """Whether f16 has all finite numbers of a constant, rounded."""
    assert isinstance(constant, Constant)
    data = constant.data[np.isfinite(constant.data)]
    return data.size == 0 or bool(np.abs(data).max() <= LARGEST)


def _is_shallow(call: Call) -> bool:
    """Whether a matmul is known to sum few products: angles of positions, say."""
    a = call.args[0]
    if call.op.name != "matmul" or a is None or not isinstance(a.annotation, Tensor):
        return False
    dims = a.annotation.dims
    if not dims:
        return False
    across = call.attrs.get("transpose_a") and len(dims) > 1
    depth = dims[-2 if across else -1].as_int()
    return depth is not None and depth < DEPTH
