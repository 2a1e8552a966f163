"""How a cache stores rows of keys or values: as they are, rounded to f16, or as codes of 8 bits.

A code is a number from -127 to 127, by a scale for each row and group: the largest value over 127.
Attention reads codes and scales as they are stored (passes/fuse_attention.py).
"""

from collections.abc import Mapping, MutableMapping
from typing import Literal, get_args

from edgerelax.frontends.nn import Input, Tensor
from edgerelax.frontends.nn.tensor import apply
from edgerelax.ir.diagnostics import InputError
from edgerelax.ir.dtypes import F16, F32, I8
from edgerelax.sym import ExprLike

Kind = Literal["f32", "f16", "int8"]
KINDS: tuple[Kind, ...] = get_args(Kind)

MOST = 127.0
LEAST = 1e-30
"""What the largest value of a row counts as if it is less."""


def no_cache(model: str) -> InputError:
    """What is said of a model that has no cache, where one is to be stored in some way."""
    return InputError(
        f"{model} keeps no keys and values between calls: there is no cache to store",
        hint="leave cache out: it is for models that write text, from GGUF files or folders with "
        "config.json; nn modules say it to language_module",
    )


def kind_of(name: str) -> Kind:
    """The kind of that name. Raises InputError for another one."""
    for kind in KINDS:
        if kind == name:
            return kind
    raise InputError(f"no cache is stored as {name!r}", hint=f"known are {', '.join(KINDS)}")


def stored(name: str, slots: ExprLike, groups: int, width: int, kind: Kind) -> dict[str, Input]:
    """The states that rows f32[groups, width] are stored in, by name."""
    dtype = {"f32": F32, "f16": F16, "int8": I8}[kind]
    found = {name: Input((slots, groups, width), dtype)}
    if kind == "int8":
        found[_scales(name)] = Input((slots, groups), F32)
    return found


def put(states: MutableMapping[str, Tensor], name: str, slots: Tensor, rows: Tensor) -> None:
    """Store rows f32[count, groups, width] in slots i32[count]; those outside go nowhere."""
    at = slots.reshape(*slots.dims, 1)
    state = states[name]
    if state.dtype == I8:
        largest = apply("reduce_max", apply("abs", rows), axes=(-1,), keepdims=True)
        largest = apply("max", largest, LEAST)
        codes = apply("round", rows * apply("div", MOST, largest))
        count, groups, _ = rows.dims
        scales = (largest / MOST).reshape(count, groups)
        states[_scales(name)] = apply("scatter_nd", states[_scales(name)], at, scales)
        rows = codes
    states[name] = apply("scatter_nd", state, at, rows.cast(state.dtype))


def get(states: Mapping[str, Tensor], name: str, slots: Tensor) -> Tensor:
    """The rows in slots [...]: f32[..., groups, width]."""
    rows = apply("gather", states[name], slots, axis=0).cast(F32)
    if states[name].dtype != I8:
        return rows
    scales = apply("gather", states[_scales(name)], slots, axis=0)
    return rows * scales.reshape(*scales.dims, 1)


def _scales(name: str) -> str:
    return f"{name}.scales"
