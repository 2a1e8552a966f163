"""Kernels that apply many functions or casts to the same operands, and values at the edges."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from edgerelax.ir.dtypes import BOOL, I32, DType
from edgerelax.ir.kernel import (
    KERNEL_FUNCTIONS,
    LOCAL,
    WORKGROUP,
    If,
    KCast,
    Kernel,
    KernelBuffer,
    KExpr,
    KLoad,
    KScalar,
    KStmt,
    KStore,
    KVec,
    Let,
    i32,
    kop,
    var,
)
from edgerelax.ir.kernel_interp import apply, compute_type, convert
from edgerelax.ir.scalar import PREDICATES, Buffer
from edgerelax.sym import as_expr

Device = Literal["gpu", "cpu"]
WORKGROUP_SIZE = 64

ARITHMETIC = ["add", "sub", "mul", "div", "mod", "fmod", "min", "max", "neg", "abs", "sign"]
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]
FLOAT_ONLY = [
    "floor", "ceil", "round", "trunc", "sqrt", "exp", "log", "log1p", "expm1", "sin", "cos",
    "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf",
    "sigmoid", "pow", "isnan", "isinf",
]  # fmt: skip
BITS = ["bit_and", "bit_or", "bit_xor", "bit_not", "shl", "shr", "pow"]
LOGIC = ["and", "or", "xor", "not", "eq", "ne"]


def functions_of(dtype: DType) -> list[str]:
    if dtype.kind == "bool":
        return LOGIC
    extra = FLOAT_ONLY if dtype.is_float else BITS
    pairs = ["dot_pairs", "dot_quads", "widen_pairs"] if dtype == I32 else []
    return [*ARITHMETIC, *COMPARISONS, *extra, *pairs]


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel, its inputs, and what its outputs must be."""

    kernel: Kernel
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    scalars: dict[str, int]
    grid: int
    rows: dict[str, tuple[str, int]]  # what is computed → output buffer and row

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return self.inputs | {k: np.zeros_like(v) for k, v in self.outputs.items()}


def edge_values(dtype: DType) -> np.ndarray:
    """Values at which functions go wrong, as numpy holds them."""
    if dtype.kind == "bool":
        return np.array([False, True])
    if dtype.is_float:
        values = [
            0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3.0, -3.0, 10.0, 100.0, -100.0,
            1e30, -1e30, np.inf, -np.inf, np.nan, 88.5, -87.0, 0.1, 1e-5, -1e-5, 7e4, 0.999,
        ]  # fmt: skip
        with np.errstate(all="ignore"):
            return np.array(values).astype(dtype.numpy)
    low, high = dtype.int_range
    values = {0, 1, 2, 3, 7, 13, high, high - 1, high // 2, low, low + 1, low // 2}
    if dtype.kind == "int":
        values |= {-1, -2, -7}
    if dtype.bits == 64:
        values |= {1 << 32, (1 << 32) - 1, (1 << 32) + 1, 1 << 31, 10**12}
    if dtype.kind == "int" and dtype.bits == 64:
        values |= {-(1 << 32), -(10**12)}
    return np.array(sorted(values), dtype=np.uint64 if dtype.name == "u64" else np.int64).astype(
        dtype.numpy
    )


def operand_pairs(dtype: DType, random: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of edge values, then random ones; a multiple of 4."""
    edges = edge_values(dtype)
    rng = np.random.default_rng(7)
    if dtype.is_float:
        more = (rng.standard_normal((2, random)) * 3).astype(dtype.numpy)
    elif dtype.kind == "bool":
        more = rng.integers(0, 2, (2, random)).astype(bool)
    else:
        low, high = dtype.int_range
        wide = np.uint64 if dtype.name == "u64" else np.int64
        more = rng.integers(low, high, (2, random), dtype=wide, endpoint=True)
        more[1, ::2] = rng.integers(1, 7, (random + 1) // 2)  # small divisors and exponents
        more = more.astype(dtype.numpy)
    a = np.concatenate([np.repeat(edges, len(edges)), more[0]])
    b = np.concatenate([np.tile(edges, len(edges)), more[1]])
    size = len(a) // 4 * 4
    return a[:size], b[:size]


def buffer(name: str, dtype: DType, size: int) -> KernelBuffer:
    return KernelBuffer(Buffer(name, dtype, (as_expr(size),)), "read_write")


def quads(device: Device, count: int, body: Sequence[KStmt]) -> tuple[tuple[KStmt, ...], int]:
    """A body that runs for each i = 0, 4, 8… below 4 * count, and its grid."""
    if device == "cpu":
        return (Let("i", kop("mul", WORKGROUP, i32(4))), *body), count
    quad = kop("add", kop("mul", WORKGROUP, i32(WORKGROUP_SIZE)), LOCAL)
    inside = If(kop("lt", var("i"), KScalar(I32, 1, "n")), tuple(body))
    grid = -(-count // WORKGROUP_SIZE)
    return (Let("i", kop("mul", quad, i32(4))), inside), grid


def function_case(functions: Sequence[str], dtype: DType, lanes: int, device: Device) -> Case:
    """Each function on all operand pairs; `lanes` at once."""
    a, b = operand_pairs(dtype)
    size = len(a)
    expected: dict[str, list[np.ndarray]] = {"out": [], "flags": []}
    rows: dict[str, tuple[str, int]] = {}
    stmts: list[KStmt] = []
    if "shl" in functions:
        b = np.where(b < 0, ~b, b)  # numpy leaves negative counts undefined
    held = [x.astype(compute_type(dtype)) for x in (a, b)]

    def operand(name: str, lane: int) -> KExpr:
        if lanes == 4:
            return var(name, dtype, 4)
        return var(f"{name}{lane}", dtype)

    for name in "ab":
        if lanes == 4:
            stmts.append(Let(name, KLoad(dtype, 4, name, var("i"))))
        else:
            at = [kop("add", var("i"), i32(k)) for k in range(4)]
            stmts += [Let(f"{name}{k}", KLoad(dtype, 1, name, at[k])) for k in range(4)]
    for fn in functions:
        result = BOOL if fn in PREDICATES else dtype
        where = "flags" if fn in PREDICATES and dtype != BOOL else "out"
        row = len(expected[where])
        rows[fn] = (where, row)
        arity = KERNEL_FUNCTIONS[fn].arity
        with np.errstate(all="ignore"):
            expected[where].append(apply(fn, dtype, held[:arity]))
        at = kop("add", var("i"), i32(row * size))
        count = 1 if lanes == 4 else 4
        values = [kop(fn, *(operand(n, k) for n in "ab"[:arity])) for k in range(count)]
        stmts += store_four(where, at, result, values)
    body, grid = quads(device, size // 4, stmts)
    types = {"out": dtype, "flags": BOOL}
    with np.errstate(all="ignore"):
        outputs = {k: np.concatenate(v).astype(types[k].numpy) for k, v in expected.items() if v}
    buffers = [buffer("a", dtype, size), buffer("b", dtype, size)]
    buffers += [buffer(k, types[k], len(v)) for k, v in outputs.items()]
    name = f"{dtype}_x{lanes}"
    kernel = Kernel(
        name, device, tuple(buffers), (("n", as_expr(size)),), as_expr(grid), WORKGROUP_SIZE, body
    )
    return Case(kernel, {"a": a, "b": b}, outputs, {"n": size}, grid, rows)


def store_four(target: str, at: KExpr, dtype: DType, values: list[KExpr]) -> list[KStmt]:
    """Four values (or one vector) in one store, or in four where a vector of them cannot be."""
    if len(values) == 1:
        return [KStore(target, at, values[0])]
    if dtype.bits < 32:
        return [KStore(target, at, KVec(dtype, 4, tuple(values)))]
    return [KStore(target, kop("add", at, i32(k)), v) for k, v in enumerate(values)]


def cast_case(source: DType, targets: Sequence[DType], lanes: int, device: Device) -> Case:
    """The values of a type cast to others."""
    a = cast_operands(source)
    held = a.astype(compute_type(source))
    stmts: list[KStmt] = []
    if lanes == 4:
        stmts.append(Let("a", KLoad(source, 4, "a", var("i"))))
        operands: list[KExpr] = [var("a", source, 4)]
    else:
        at = [kop("add", var("i"), i32(k)) for k in range(4)]
        stmts += [Let(f"a{k}", KLoad(source, 1, "a", at[k])) for k in range(4)]
        operands = [var(f"a{k}", source) for k in range(4)]
    outputs: dict[str, np.ndarray] = {}
    rows: dict[str, tuple[str, int]] = {}
    for target in targets:
        name = f"to_{target}"
        rows[str(target)] = (name, 0)
        with np.errstate(all="ignore"):
            outputs[name] = convert(held, source, target).astype(target.numpy)
        stmts += store_four(name, var("i"), target, [KCast(target, lanes, v) for v in operands])
    body, grid = quads(device, len(a) // 4, stmts)
    buffers = [buffer("a", source, len(a))]
    buffers += [buffer(f"to_{t}", t, len(a)) for t in targets]
    kernel = Kernel(
        f"cast_{source}_x{lanes}", device, tuple(buffers), (("n", as_expr(len(a))),),
        as_expr(grid), WORKGROUP_SIZE, body,
    )  # fmt: skip
    return Case(kernel, {"a": a}, outputs, {"n": len(a)}, grid, rows)


def cast_operands(dtype: DType) -> np.ndarray:
    if dtype.is_float:
        rng = np.random.default_rng(3)
        limits = [126.9, 127.5, 128.0, 255.0, 256.0, 300.0, 32767.0, 32768.0, 65535.0, 65536.0]
        limits += [65504.0, 65519.0, 65520.0, 448.0, 464.0, 465.0, 480.0, 240.0, 248.0, 57344.0]
        limits += [61439.0, 61440.0, 2.0**31, 2.0**31 - 128, 2.0**32, 2.0**63, 2.0**64, 3e9, 1e19]
        limits += [16777217.0, 0.0009765625, 2.0**-9, 2.0**-10, 2.0**-17, 3 * 2.0**-10, 6.1e-5]
        limits += [5.9604645e-08, 2.0**-25, 3 * 2.0**-25, 1.0009765625, 1.00048828125, 1.0029296875]
        limits += list(rng.standard_normal(200)) + list(rng.standard_normal(100) * 1000)
        limits += [float(x) for x in 2.0 ** rng.uniform(-20, 20, 100)]
        with np.errstate(all="ignore"):
            values = np.array([*limits, *(-x for x in limits)]).astype(dtype.numpy)
        return fill(np.concatenate([edge_values(dtype), values]))
    a, _ = operand_pairs(dtype, 400)
    return fill(np.unique(a))


def fill(values: np.ndarray) -> np.ndarray:
    return np.concatenate([values, np.repeat(values[:1], -len(values) % 4)])


def all_codes(dtype: DType) -> np.ndarray:
    """Every value of a type of 16 bits or less."""
    return np.arange(1 << dtype.bits, dtype=f"u{dtype.bytes}").view(dtype.numpy)
