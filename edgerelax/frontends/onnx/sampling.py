"""Importers of operators that resample images: Resize, Upsample, GridSample, RoiAlign."""

from collections.abc import Sequence

from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.registry import Result, importer
from edgerelax.ir.graph import Value
from edgerelax.ops.interpolation import Ratios, ratios_of_scales, ratios_of_sizes
from edgerelax.sym import Expr

MODES = {"nearest": "nearest", "linear": "linear", "cubic": "cubic", "bilinear": "linear"}
COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_crop_and_resize", "tf_half_pixel_for_nn",
)  # fmt: skip
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
POLICIES = ("stretch", "not_larger", "not_smaller")


@importer("Upsample", since=7)
def _upsample_attribute(node: Node) -> Result:
    return _asymmetric(node, node.attr("scales"))


@importer("Upsample", since=9)
@importer("Resize", since=10)
def _upsample(node: Node) -> Result:
    scales = _scales(node, 1)
    if scales is None:
        raise node.bad("no scales")
    return _asymmetric(node, scales)


def _asymmetric(node: Node, scales: Sequence[float]) -> Result:
    x = node.value(0)
    axes = _resized(node, x, tuple(range(node.rank(x))), len(scales))
    mode = _choice(node, "mode", tuple(MODES))
    ratios = ratios_of_scales(node.dims(x), scales)
    return _resize_by(
        node, x, axes, ratios, mode=MODES[mode], coordinates="asymmetric", nearest="floor"
    )


@importer("Resize", since=11)
def _resize(node: Node) -> Result:
    x = node.value(0)
    scales = _scales(node, 2)
    axes = tuple(node.axis(x, a) for a in node.attr("axes", ()) or range(node.rank(x)))
    dims = [node.dims(x)[a] for a in axes]
    if scales is not None:
        ratios = ratios_of_scales(dims, scales)
    else:
        sizes = node.ints(3, lo=0, what="the sizes") or ()
        axes = _resized(node, x, axes, len(sizes))
        policy = _choice(node, "keep_aspect_ratio_policy", POLICIES, "stretch")
        ratios = ratios_of_sizes(dims, sizes, policy)
    axes = _resized(node, x, axes, len(ratios.sizes))
    coordinates = _choice(node, "coordinate_transformation_mode", COORDINATES)
    return _resize_by(
        node,
        x,
        axes,
        ratios,
        mode=MODES[_choice(node, "mode", tuple(MODES))],
        coordinates=coordinates,
        nearest=_choice(node, "nearest_mode", ROUNDINGS),
        cubic_a=node.attr("cubic_coeff_a"),
        antialias=bool(node.attr("antialias", 0)),
        exclude_outside=bool(node.attr("exclude_outside")),
        extrapolation=node.attr("extrapolation_value"),
        roi=_region(node) if coordinates == "tf_crop_and_resize" else None,
    )


def _choice(node: Node, name: str, allowed: Sequence[str], *fallback: str) -> str:
    found = node.attr(name, *fallback)
    if found not in allowed:
        raise node.unsupported(f"{name} {found!r}", f"supported are {', '.join(allowed)}")
    return str(found)


def _scales(node: Node, k: int) -> tuple[float, ...] | None:
    """Operand k as constant scales; None if it is absent or empty."""
    value = node.input(k)
    if value is None:
        return None
    array = node.constant(value)
    if array is None:
        raise node.unsupported(
            f"scales that are not constant ({value.annotation})",
            hint="export the model with sizes, or with fixed scales",
        )
    if not all(s > 0 for s in array.reshape(-1)):
        raise node.bad(f"scales {array.reshape(-1).tolist()}")
    return tuple(float(s) for s in array.reshape(-1)) or None


def _resized(node: Node, x: Value, axes: tuple[int, ...], count: int) -> tuple[int, ...]:
    if count != len(axes):
        raise node.bad(f"{count} scales or sizes for {len(axes)} axes of {x.annotation}")
    return axes


def _region(node: Node) -> tuple[float, ...] | None:
    array = node.constant(node.input(1))
    if array is None:
        raise node.unsupported("a region of interest that is not constant")
    return tuple(float(r) for r in array.reshape(-1))


def _resize_by(
    node: Node, x: Value, axes: tuple[int, ...], ratios: Ratios, **attrs: object
) -> Value:
    """Only the axes that change."""
    changed = [k for k, a in enumerate(axes) if not _is_same(node.dims(x)[a], ratios, k)]
    roi = attrs.get("roi")
    if isinstance(roi, tuple):
        changed = list(range(len(axes)))
    elif not changed:
        return x
    return node.emit(
        "resize",
        x,
        axes=tuple(axes[k] for k in changed),
        sizes=tuple(ratios.sizes[k] for k in changed),
        numerators=tuple(ratios.numerators[k] for k in changed),
        denominators=tuple(ratios.denominators[k] for k in changed),
        **attrs,
    )


def _is_same(dim: Expr, ratios: Ratios, k: int) -> bool:
    return ratios.sizes[k] == dim and ratios.numerators[k] == ratios.denominators[k]


@importer("GridSample")
@importer("GridSample", domain="com.microsoft")
def _grid_sample(node: Node) -> Result:
    x, grid = node.value(0), node.value(1)
    grid = node.with_dim(grid, 0, node.dims(x)[0])
    mode = node.attr("mode", "bilinear").removeprefix("bi")
    return node.emit(
        "grid_sample",
        x,
        grid,
        mode=mode,
        padding=node.attr("padding_mode", "zeros"),
        align_corners=bool(node.attr("align_corners", 0)),
    )


@importer("RoiAlign")
def _roi_align(node: Node) -> Result:
    x, rois, batch = node.value(0), node.value(1), node.value(2)
    batch = node.with_dims(batch, node.dims(rois)[:1])
    transform = node.attr("coordinate_transformation_mode", "output_half_pixel")
    return node.emit(
        "roi_align",
        x,
        rois,
        batch,
        height=node.attr("output_height"),
        width=node.attr("output_width"),
        samples=node.attr("sampling_ratio"),
        scale=node.attr("spatial_scale"),
        half_pixel=transform == "half_pixel",
        mode=node.attr("mode"),
    )
