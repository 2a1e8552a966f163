"""Slice, pad, resize and sampling against the ONNX reference, on many settings."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from edgerelax.ir.dtypes import from_numpy
from edgerelax.ir.loop_interp import run_loop
from edgerelax.ir.op import CallSite, normal
from edgerelax.ir.types import Tensor, as_tensor, tensor
from edgerelax.ops import OPS
from edgerelax.ops.interpolation import (
    Ratios,
    ratios_of_scales,
    ratios_of_sizes,
    simplest_fraction,
)
from edgerelax.ops.slicing import center_crop_pads
from edgerelax.sym import Expr, Symbol, as_expr

Array = np.ndarray[Any, Any]
FEW = settings(max_examples=60, deadline=None)


def onnx_reference(op: str, *inputs: Array | None, **attrs: Any) -> Array:
    names = [f"x{k}" if x is not None else "" for k, x in enumerate(inputs)]
    node = onnx.helper.make_node(op, names, ["y"], **attrs)
    feeds = {n: x for n, x in zip(names, inputs, strict=True) if x is not None}
    (result,) = ReferenceEvaluator(node).run(None, feeds)
    return np.asarray(result)


def check(
    name: str, args: tuple[Array | None, ...], attrs: dict[str, Any], expected: Array
) -> None:
    """The reference, and the lowering for these sizes and for sizes that are symbols."""
    op = OPS[name]
    whole = {**op.attrs, **attrs}
    plain = {k: evaluated(v, {}) for k, v in whole.items()}
    close(op.reference(*args, **plain), expected)
    for symbolic in (False, True):
        env: dict[Symbol, int] = {}
        annotations = []
        for k, array in enumerate(args):
            if array is None:
                annotations.append(None)
                continue
            dims: list[Expr] = [as_expr(n) for n in array.shape]
            if symbolic:
                for j, size in enumerate(array.shape):
                    symbol = Symbol(f"n{k}_{j}")
                    env[symbol], dims[j] = size, symbol.expr
            annotations.append(Tensor(tuple(dims), from_numpy(array.dtype)))
        site = CallSite(op, tuple(annotations), whole, (None,) * len(args))
        site = replace(site, result=op.infer(site))
        assert site.result is not None and op.lower is not None
        found = as_tensor(site.result)
        assert found is not None and found.dims is not None
        assert tuple(d.eval(env) for d in found.dims) == expected.shape
        func = op.lower(site)
        arrays = [a for a in args if a is not None]
        (output,) = run_loop(func, arrays, {s.name: v for s, v in env.items()})
        close(output, expected)


def evaluated(value: Any, env: dict[Symbol, int]) -> Any:
    if isinstance(value, Expr):
        return value.eval(env)
    return tuple(evaluated(v, env) for v in value) if isinstance(value, tuple) else value


def close(got: Array, expected: Array) -> None:
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


# slice

BOUNDS = st.one_of(
    st.integers(-9, 9), st.sampled_from([2**31 - 1, -(2**31), 2**63 - 1, -(2**63) + 1])
)


@FEW
@given(st.data())
def test_slice(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
    axes = data.draw(st.permutations(range(len(shape))))
    axes = axes[: data.draw(st.integers(1, len(axes)))]
    steps = [data.draw(st.sampled_from([1, 1, 2, 3, -1, -2, 7, -7])) for _ in axes]
    starts, ends = ([data.draw(BOUNDS) for _ in axes] for _ in range(2))
    for axis, start, step in zip(axes, starts, steps, strict=True):
        # Before the first element and backwards: ONNX clamps to the first, its reference does not.
        assume(step > 0 or start >= -shape[axis])
    x = normal(*shape)
    given = [np.array(v, np.int64) for v in (starts, ends, axes, steps)]
    expected = onnx_reference("Slice", x, *given)
    attrs = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
    check("slice", (x,), {k: tuple(v) for k, v in attrs.items()}, expected)


@pytest.mark.parametrize("step", [2, 1, -1, -3])
@pytest.mark.parametrize("size", [0, 1, 2, 7])
def test_slice_by_symbols(step: int, size: int) -> None:
    """Start, end and step that only the host knows, of any sign."""
    op, x = OPS["slice"], normal(size)
    start, end, by = Symbol("start", -20), Symbol("end", -20), Symbol("by", -5)
    attrs = {"starts": (start.expr,), "ends": (end.expr,), "axes": (0,), "steps": (by.expr,)}
    site = CallSite(op, (Tensor((as_expr(size),), from_numpy(x.dtype)),), attrs, (None,))
    site = replace(site, result=op.infer(site))
    assert op.lower is not None
    func = op.lower(site)
    for a in range(-size, size + 2):
        for b in range(-size - 2, size + 2):
            result = as_tensor(site.result) if site.result is not None else None
            assert result is not None and result.dims is not None
            env = {start: a, end: b, by: step}
            expected = x[slice(a, b, step)]
            assert result.dims[0].eval(env) == len(expected)
            names = {s.name: v for s, v in env.items()}
            np.testing.assert_array_equal(run_loop(func, [x], names)[0], expected)


def test_slice_backwards_from_before_the_start() -> None:
    """ONNX clamps the start of a backward slice to 0."""
    x = normal(4)
    attrs = {"starts": (-9,), "ends": (-(2**31),), "axes": (0,), "steps": (-1,)}
    check("slice", (x,), attrs, x[:1])


# pad


@FEW
@given(st.data())
def test_pad(data: st.DataObject) -> None:
    mode = data.draw(st.sampled_from(["constant", "edge", "reflect", "wrap"]))
    least = 0 if mode == "constant" else 1
    shape = data.draw(st.lists(st.integers(least, 4), min_size=1, max_size=3))
    axes = data.draw(st.permutations(range(len(shape))))
    axes = axes[: data.draw(st.integers(1, len(axes)))]
    pads = [data.draw(st.integers(0, 9)) for _ in range(2 * len(axes))]
    x = normal(*shape)
    value = np.array(2.5, np.float32) if mode == "constant" and data.draw(st.booleans()) else None
    given = (np.array(pads, np.int64), value, np.array(axes, np.int64))
    expected = onnx_reference("Pad", x, *given, mode=mode)
    attrs = {"pads": tuple(pads), "axes": tuple(axes), "mode": mode}
    check("pad", (x, value), attrs, expected)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize(("before", "after"), [(-1, 3), (2, -2), (-2, -1), (-3, 5), (0, -4)])
def test_crop(mode: str, before: int, after: int) -> None:
    """Negative pads crop first; what is left is padded."""
    x = np.arange(5, dtype=np.float32)
    left = x[max(0, -before) : 5 - max(0, -after)]
    expected = np.pad(left, (max(0, before), max(0, after)), mode=mode)  # type: ignore[call-overload]
    check("pad", (x, None), {"pads": (before, after), "mode": mode}, expected)


@FEW
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=3))
def test_center_crop_pad(sizes: list[tuple[int, int]]) -> None:
    dims, target = zip(*sizes, strict=True)
    x = normal(*dims)
    expected = onnx_reference("CenterCropPad", x, np.array(target, np.int64))
    check("pad", (x, None), {"pads": center_crop_pads(dims, target)}, expected)


# resize

MODES = st.sampled_from(["nearest", "linear", "cubic"])
COORDINATES = st.sampled_from(
    ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]
)
ROUNDINGS = st.sampled_from(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])


def resize_attrs(data: st.DataObject) -> tuple[dict[str, Any], dict[str, Any]]:
    """Attributes of ours, and of ONNX."""
    mode = data.draw(MODES)
    smooth = mode != "nearest"
    ours = {
        "mode": mode,
        "coordinates": data.draw(COORDINATES),
        "nearest": data.draw(ROUNDINGS),
        "antialias": smooth and data.draw(st.booleans()),
        "exclude_outside": smooth and data.draw(st.booleans()),
    }
    theirs = {
        "mode": mode,
        "coordinate_transformation_mode": ours["coordinates"],
        "nearest_mode": ours["nearest"],
        "antialias": int(ours["antialias"]),
        "exclude_outside": int(ours["exclude_outside"]),
    }
    return ours, theirs


def by(ratios: Ratios) -> dict[str, Any]:
    return {
        "sizes": ratios.sizes,
        "numerators": ratios.numerators,
        "denominators": ratios.denominators,
    }


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_resize_to_sizes(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 2))
    shape = [data.draw(st.integers(1, 6)) for _ in range(rank)]
    sizes = [data.draw(st.integers(1, 9)) for _ in range(rank)]
    policy = data.draw(st.sampled_from(["stretch", "stretch", "not_larger", "not_smaller"]))
    ours, theirs = resize_attrs(data)
    x = normal(*shape)
    ratios = ratios_of_sizes(shape, sizes, policy)
    assume(all(s.as_int() for s in ratios.sizes))
    axes = tuple(range(rank))
    expected = onnx_reference(
        "Resize", x, None, None, np.array(sizes, np.int64),
        axes=axes, keep_aspect_ratio_policy=policy, **theirs,
    )  # fmt: skip
    assume(not is_tied(ours, ratios, shape) and not is_single(ours, ratios))
    check("resize", (x,), {"axes": axes, **by(ratios), **ours}, expected)


@pytest.mark.parametrize("antialias", [False, True])
def test_resize_beyond_all_taps(antialias: bool) -> None:
    """A coordinate so far outside that no pixel counts gives 0, not 0 / 0."""
    x, sizes, policy = normal(2, 3), [1, 1], "not_smaller"
    ratios = ratios_of_sizes([2, 3], sizes, policy)
    ours = {"mode": "linear", "coordinates": "align_corners", "nearest": "floor"}
    ours |= {"antialias": antialias, "exclude_outside": True}
    expected = onnx_reference(
        "Resize", x, None, None, np.array(sizes, np.int64), axes=(0, 1), mode="linear",
        keep_aspect_ratio_policy=policy, coordinate_transformation_mode="align_corners",
        antialias=int(antialias), exclude_outside=1,
    )  # fmt: skip
    assert expected[0, 1] == 0
    check("resize", (x,), {"axes": (0, 1), **by(ratios), **ours}, expected)


def is_tied(ours: dict[str, Any], ratios: Ratios, shape: list[int]) -> bool:
    """Whether the reference's floats may fall on the other side of a tie than fractions do."""
    return ours["mode"] == "nearest" and any(
        (s.as_int() or 0) % d and d % (s.as_int() or 1)
        for s, d in zip(ratios.sizes, shape, strict=True)
    )


def is_single(ours: dict[str, Any], ratios: Ratios) -> bool:
    """Whether ONNX's text has coordinate 0 for a result of one element, and its reference -0.5."""
    return ours["coordinates"] == "pytorch_half_pixel" and any(
        s.as_int() == 1 for s in ratios.sizes
    )


@FEW
@given(st.data())
def test_resize_by_scales(data: st.DataObject) -> None:
    shape = [data.draw(st.integers(1, 6))]
    scale = data.draw(st.sampled_from([0.5, 0.75, 1.5, 2.0, 3.0, 2.6, 0.6]))
    ours, theirs = resize_attrs(data)
    x = normal(*shape)
    ratios = ratios_of_scales(shape, [float(np.float32(scale))])
    assume(ratios.sizes[0].as_int())
    assume(ours["mode"] != "nearest" or scale in (0.5, 1.5, 2.0, 3.0))
    expected = onnx_reference("Resize", x, None, np.array([scale], np.float32), **theirs)
    assume(expected.shape == (ratios.sizes[0].as_int(),) and not is_single(ours, ratios))
    check("resize", (x,), {**by(ratios), **ours}, expected)


@FEW
@given(st.data())
def test_crop_and_resize(data: st.DataObject) -> None:
    shape = [data.draw(st.integers(2, 6)) for _ in range(2)]
    sizes = [data.draw(st.integers(2, 7)) for _ in range(2)]
    edges = [data.draw(st.sampled_from([-0.3, 0.0, 0.1, 0.4])) for _ in range(2)]
    edges += [data.draw(st.sampled_from([0.6, 0.85, 1.0, 1.2])) for _ in range(2)]
    x = normal(*shape)
    roi = np.array(edges, np.float32)
    expected = onnx_reference(
        "Resize", x, roi, None, np.array(sizes, np.int64), mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=7.0,
    )  # fmt: skip
    attrs = {
        "mode": "linear",
        "coordinates": "tf_crop_and_resize",
        "roi": tuple(float(r) for r in roi),
        "extrapolation": 7.0,
    }
    op, ratios = OPS["resize"], ratios_of_sizes(shape, sizes)
    got = op.reference(x, **{**op.attrs, **attrs, **evaluated_all(by(ratios))})
    inside = (got != 7) & (expected != 7)  # floats and fractions may differ on the very border
    assume(inside.all() or (np.where(got == 7, 1, 0) == np.where(expected == 7, 1, 0)).all())
    check("resize", (x,), {**attrs, **by(ratios)}, expected)


def evaluated_all(attrs: dict[str, Any]) -> dict[str, Any]:
    return {k: evaluated(v, {}) for k, v in attrs.items()}


@given(st.integers(1, 60), st.integers(1, 60))
def test_simplest_fraction(numerator: int, denominator: int) -> None:
    found = simplest_fraction(float(np.float32(numerator / denominator)))
    assert found == pytest.approx(numerator / denominator)
    assert found.denominator <= denominator


# grid_sample


@FEW
@given(st.data())
def test_grid_sample(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 2))
    shape = [data.draw(st.integers(2, 5)) for _ in range(rank)]
    out = [data.draw(st.integers(1, 4)) for _ in range(rank)]
    mode = data.draw(st.sampled_from(["nearest", "linear", "cubic"]))
    padding = data.draw(st.sampled_from(["zeros", "border", "reflection"]))
    align = data.draw(st.booleans())
    x = normal(1, 2, *shape)
    grid = (normal(1, *out, rank, seed=data.draw(st.integers(0, 99))) * 0.8).astype(np.float32)
    expected = onnx_reference(
        "GridSample", x, grid, mode=mode, padding_mode=padding, align_corners=int(align)
    )
    op = OPS["grid_sample"]
    attrs = {"mode": mode, "padding": padding, "align_corners": align}
    close(op.reference(x, grid, **attrs), expected)
    close(lowered("grid_sample", (x, grid), attrs), expected)


@pytest.mark.parametrize("half_pixel", [True, False])
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("samples", [1, 2, 3])
def test_roi_align(half_pixel: bool, mode: str, samples: int) -> None:
    x = normal(2, 2, 6, 7)
    rois = np.array([[0, 0, 5, 5], [2, 1, 12, 9], [-4, -3, 3, 3], [1, 1, 1.2, 1.1]], np.float32)
    batch = np.array([0, 1, 1, 0])
    theirs = {
        "output_height": 3, "output_width": 2, "sampling_ratio": samples, "spatial_scale": 0.75,
        "mode": mode,
        "coordinate_transformation_mode": "half_pixel" if half_pixel else "output_half_pixel",
    }  # fmt: skip
    expected = onnx_reference("RoiAlign", x, rois, batch, **theirs)
    attrs = {"height": 3, "width": 2, "samples": samples, "scale": 0.75, "mode": mode}
    attrs["half_pixel"] = half_pixel
    close(OPS["roi_align"].reference(x, rois, batch, **attrs), expected)
    close(lowered("roi_align", (x, rois, batch), attrs), expected)


def lowered(name: str, args: tuple[Array, ...], attrs: dict[str, Any]) -> Array:
    op = OPS[name]
    annotations = tuple(tensor(a.shape, from_numpy(a.dtype)) for a in args)
    site = CallSite(op, annotations, {**op.attrs, **attrs}, (None,) * len(args))
    assert op.lower is not None
    return run_loop(op.lower(replace(site, result=op.infer(site))), args)[0]
