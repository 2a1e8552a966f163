"""Weights quantised as they are imported: which scheme each gets, and what it costs.

A scheme is `keep` (as the file has it), `f32`, `f16`, or a name like q4, q4s-64, q8a-128: codes of
4 or 8 bits in groups of 32 (else 64 or 128) neighbours of a row. `a` is asymmetric, a group's scale
and offset; `s` is symmetric, a scale alone; without either, q4 is asymmetric and q8 symmetric.
Scales and offsets are f16, in tensors whose numbers f16 would lose f32.

How a group is rounded. Codes are the nearest ones of the scale and the offset, and those the best
ones of the codes, by least squares; the two take turns (as in k-means), from the group's own range
and, of 4 bits, from a range that clips its extremes. Of all that was seen, what leaves the least
squared error stays; scales are rounded before codes are chosen, so that codes make up for it.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from edgerelax.frontends.nn.grouped import Grouped, packed
from edgerelax.frontends.nn.module import Array
from edgerelax.ir.diagnostics import InputError

KEEP, F16, F32 = "keep", "f16", "f32"
ROLES = ("linear", "embedding", "head", "experts")
"""What a choice may name. Experts are as linear layers are unless it says otherwise."""
LEAST_GROUP = 16  # smaller groups would spend as much on scales as on codes
BLOCK = 1 << 13  # groups at a time: what is computed for them stays near
STARTS = {4: (1.0, 0.9), 8: (1.0,)}  # parts of a group's range to begin with, by bits
REFITS = {4: 2, 8: 1}
_GROUPED = re.compile(r"q(?P<bits>[48])(?P<kind>[as]?)(?:-(?P<group>32|64|128))?")


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a tensor is stored. `bits` is 0 for the schemes without groups."""

    name: str
    bits: int = 0
    offset: bool = False
    group: int = 0

    @classmethod
    def of(cls, name: str) -> "Scheme":
        """The scheme of that name. Raises InputError."""
        if name in (KEEP, F16, F32):
            return cls(name)
        found = _GROUPED.fullmatch(name)
        if found is None:
            raise InputError(
                f"no way to quantise is called {name!r}",
                hint="known are keep, f32, f16, q4 and q8; q4a, q8a (a scale and an offset), q4s, "
                "q8s (a scale); groups of 64 or 128 as in q4-64",
            )
        bits, group = int(found["bits"]), int(found["group"] or 32)
        offset = found["kind"] == "a" or (bits == 4 and not found["kind"])
        return cls._grouped(bits, offset, group)

    @classmethod
    def _grouped(cls, bits: int, offset: bool, group: int) -> "Scheme":
        """By the shortest name."""
        kind = "" if offset == (bits == 4) else "a" if offset else "s"
        size = "" if group == 32 else f"-{group}"
        return cls(f"q{bits}{kind}{size}", bits, offset, group)

    def fitted(self, columns: int) -> "Scheme":
        """With groups that divide a row: halved as often as it takes, else `keep`."""
        if not self.bits or columns % self.group == 0:
            return self
        if self.group == LEAST_GROUP:
            return Scheme(KEEP)
        return self._grouped(self.bits, self.offset, self.group // 2).fitted(columns)


@dataclass(frozen=True, slots=True)
class QuantisedTensor:
    """What became of a tensor: how it is stored now, in how many bytes, and what that changed.

    `rms` is the root mean square of the differences over that of the weights, `largest` the largest
    difference over the largest weight.
    """

    name: str
    role: str
    scheme: str
    elements: int
    bytes: int
    rms: float = 0.0
    largest: float = 0.0

    @property
    def bits(self) -> float:
        """Bits per weight, those of scales included."""
        return 8 * self.bytes / max(self.elements, 1)


@dataclass(slots=True)
class Quantiser:
    """A choice of schemes by role, and what it did to the tensors that went through."""

    schemes: Mapping[str, Scheme]
    tensors: list[QuantisedTensor] = field(default_factory=list)

    @classmethod
    def of(cls, choice: str | Mapping[str, str]) -> "Quantiser":
        """`q4` for all matrices, `linear=q4,embedding=q8,head=q8` or such a mapping.

        Raises InputError for roles and schemes that are not known.
        """
        given = _parsed(choice) if isinstance(choice, str) else choice
        unknown = [role for role in given if role not in ROLES]
        if unknown:
            raise InputError(
                f"no tensors are called {', '.join(map(repr, unknown))}",
                hint=f"what can be quantised: {', '.join(ROLES)}",
            )
        return cls({role: Scheme.of(name) for role, name in given.items()})

    def stored(self, name: str, role: str, data: Array | Grouped) -> Array | Grouped:
        """A parameter's data as the choice for its role has it. Raises InputError."""
        given = role if role in self.schemes or role != "experts" else "linear"
        scheme = self.schemes.get(given, Scheme(KEEP)).fitted(data.shape[-1] if data.shape else 0)
        before, after = data, data
        if scheme.name != KEEP:
            before = data.numbers() if isinstance(data, Grouped) else data
            try:
                after = quantise(before, scheme)
            except InputError as error:
                raise InputError(f"{name}: {error.message}") from error
        self.tensors.append(_measured(name, role, scheme, before, after))
        return after


def _parsed(text: str) -> dict[str, str]:
    if "=" not in text:
        return dict.fromkeys(ROLES, text)
    given: dict[str, str] = {}
    for part in text.split(","):
        role, equals, name = part.partition("=")
        if not equals or role.strip() in given:
            raise InputError(
                f"{part!r} of the quantisation {text!r}: " + ("twice" if equals else "no scheme"),
                hint="write q4 for all matrices, or linear=q4,embedding=q8,head=q8",
            )
        given[role.strip()] = name.strip()
    return given


def _measured(
    name: str, role: str, scheme: Scheme, before: Array | Grouped, after: Array | Grouped
) -> QuantisedTensor:
    count = int(np.prod(after.shape))
    stored = QuantisedTensor(name, role, scheme.name, count, _bytes(after))
    if after is before or not count:
        return stored
    was = before.numbers() if isinstance(before, Grouped) else before
    error = after.numbers() if isinstance(after, Grouped) else after.copy()
    error -= was

    def ratio(of: Array, to: Array) -> float:
        return float(of / to) if to else 0.0

    rms, largest = (ratio(f(error), f(was)) for f in (_square_sum, _largest))
    return QuantisedTensor(name, role, scheme.name, count, stored.bytes, rms**0.5, largest)


def _square_sum(data: Array) -> Array:
    return np.asarray(np.einsum("i,i->", data.ravel(), data.ravel(), dtype=np.float64))


def _largest(data: Array) -> Array:
    return np.asarray(np.abs(data).max())


def _bytes(data: Array | Grouped) -> int:
    """Bytes in an artifact, which holds as f16 what f16 can say."""
    if isinstance(data, Grouped):
        return data.nbytes
    with np.errstate(over="ignore"):
        same = np.array_equal(data.astype(np.float16), data)
    return data.size * 2 if same else data.nbytes


def quantise(data: Array, scheme: str | Scheme) -> Grouped | Array:
    """A tensor f32[..., columns] as a scheme has it. Raises InputError.

    That is where numbers are not finite, or beyond f16 for `f16`, and where groups do not divide
    the columns.
    """
    how = Scheme.of(scheme) if isinstance(scheme, str) else scheme
    if not np.isfinite(data).all():
        raise InputError("weights that are infinite or no numbers cannot be quantised")
    match how.name:
        case "keep" | "f32":
            return data.astype(np.float32)
        case "f16":
            return _rounded(data)
    *lead, columns = data.shape
    if columns % how.group:
        raise InputError(f"rows of {columns} weights cannot be cut into groups of {how.group}")
    groups = np.ascontiguousarray(data, np.float32).reshape(-1, how.group)
    dtype, power = _range_of(groups, how)
    starts = range(0, max(len(groups), 1), BLOCK)
    fits = [_fit(np.ldexp(groups[k : k + BLOCK], -power), how, dtype) for k in starts]

    def plane(parts: list[Array]) -> Array:
        whole = np.ldexp(np.concatenate(parts), power)
        return np.asarray(whole, dtype).reshape(*lead, columns // how.group)

    codes = np.concatenate([fit.codes for fit in fits]).reshape(data.shape)
    centre = 0 if how.offset or how.bits == 8 else 8
    raw = (codes + centre).astype(np.int8 if how.bits == 8 and not how.offset else np.uint8)
    scales = (plane([fit.scale for fit in fits]),)
    offsets = (plane([fit.offset for fit in fits]),) if how.offset else ()
    return Grouped(data.shape, packed(raw, how.bits), scales, offsets, centre)


def _rounded(data: Array) -> Array:
    with np.errstate(over="ignore"):
        half = data.astype(np.float16)
    if not np.isfinite(half).all():
        raise InputError(f"weights up to {np.abs(data).max():g} are beyond f16")
    return half.astype(np.float32)


def _range_of(groups: Array, how: Scheme) -> tuple[type[np.generic], int]:
    """The type of scales, and the power of two that weights are divided by, whose squares fit then.

    f16, except where a scale or an offset may be too large, or nearly all scales too small for it.
    """
    largest = float(np.abs(groups).max(initial=0))
    small = 0 < largest / (1 << how.bits - 1) < 2**-12
    if small or largest > 2**14:
        return np.float32, math.frexp(largest)[1]
    return np.float16, 0


@dataclass(frozen=True, slots=True)
class _Fit:
    """Codes [groups, columns] of groups, scales and offsets, squared errors, each [groups, 1]."""

    codes: Array
    scale: Array
    offset: Array
    error: Array


def _fit(groups: Array, how: Scheme, dtype: type[np.generic]) -> _Fit:
    """The best codes that were found."""
    best: _Fit | None = None
    for part in STARTS[how.bits]:
        scale, offset = _start(groups, how, part)
        for _ in range(REFITS[how.bits] + 1):
            fit = _coded(groups, how, scale, offset, dtype)
            best = fit if best is None else _better(best, fit)
            scale, offset = _refit(groups, fit.codes, how)
    assert best is not None
    return best


def _start(groups: Array, how: Scheme, part: float) -> tuple[Array, Array]:
    """Scale and offset of a part of each group's range.

    Symmetric codes have one more below zero than above: the extreme of either sign takes it.
    """
    if how.offset:
        low, high = groups.min(1, keepdims=True), groups.max(1, keepdims=True)
        width = (high - low) * part
        return width / ((1 << how.bits) - 1), (low + high - width) / 2
    at = np.abs(groups).argmax(1)[:, None]
    extreme = np.take_along_axis(groups, at, 1)
    return extreme * part / -(1 << how.bits - 1), np.zeros_like(extreme)


def _coded(
    groups: Array, how: Scheme, scale: Array, offset: Array, dtype: type[np.generic]
) -> _Fit:
    """The nearest codes of a scale and an offset, once these are rounded."""
    scale, offset = (x.astype(dtype).astype(np.float32) for x in (scale, offset))
    low = 0 if how.offset else -(1 << how.bits - 1)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=np.abs(scale) > 2**-120)
    with np.errstate(over="ignore"):
        codes = np.clip(np.rint((groups - offset) * inverse), low, low + (1 << how.bits) - 1)
    rest = codes * scale + offset - groups
    return _Fit(codes, scale, offset, np.einsum("gc,gc->g", rest, rest)[:, None])


def _better(a: _Fit, b: _Fit) -> _Fit:
    """Each group's better one."""
    taken = b.error < a.error
    pairs = zip(
        (a.codes, a.scale, a.offset, a.error), (b.codes, b.scale, b.offset, b.error), strict=True
    )
    return _Fit(*(np.where(taken, y, x) for x, y in pairs))


def _refit(groups: Array, codes: Array, how: Scheme) -> tuple[Array, Array]:
    """The scale and offset that are best for codes: least squares."""
    zero = np.zeros((len(groups), 1), np.float32)
    mean, centre = zero, zero
    if how.offset:
        mean, centre = groups.mean(1, keepdims=True), codes.mean(1, keepdims=True)
    apart = codes - centre
    spread = np.einsum("gc,gc->g", apart, apart)[:, None]
    along = np.einsum("gc,gc->g", apart, groups - mean)[:, None]
    scale = np.divide(along, spread, out=np.zeros_like(along), where=spread > 0)
    return scale, mean - scale * centre
