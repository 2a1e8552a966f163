"""Importers of products, convolutions and pools."""

from collections.abc import Sequence
from math import prod

import numpy as np

from edgerelax.frontends.onnx.broadcasting import aligned, broadcast_call, same_dims, settled
from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.registry import Result, importer
from edgerelax.ir.graph import Value
from edgerelax.ops.windows import same_pads, transposed_pads, transposed_size
from edgerelax.sym import Expr, as_expr, product

Dims = tuple[Expr, ...]


@importer("MatMul")
def _matmul(node: Node) -> Result:
    return matmul(node, node.value(0), node.value(1))


def matmul(
    node: Node, a: Value, b: Value, transpose_a: bool = False, transpose_b: bool = False
) -> Value:
    """numpy's matmul; that sizes fit is checked at run time where unproven."""
    turns = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    (a, b), sizes = fitted(node, a, b, **turns)
    return settled(node, node.emit("matmul", a, b, **turns), sizes)


def fitted(
    node: Node, a: Value, b: Value, transpose_a: bool = False, transpose_b: bool = False
) -> tuple[tuple[Value, ...], dict[int, Expr]]:
    """Operands of a matrix product that fit each other, and open sizes of the result."""
    if node.rank(a) == 0 or node.rank(b) == 0:
        raise node.bad(f"{a.annotation} by {b.annotation}: no matrix product of scalars")
    inner_a = -2 if transpose_a and node.rank(a) > 1 else -1
    inner_b = -1 if transpose_b or node.rank(b) == 1 else -2
    return aligned(node, same_dims(node, (a, b), ((inner_a,), (inner_b,))), skip=2)


@importer("Gemm")
def _gemm(node: Node) -> Result:
    a, b, c = node.value(0), node.value(1), node.input(2)
    alpha, beta = node.attr("alpha"), node.attr("beta")
    result = matmul(node, a, b, bool(node.attr("transA")), bool(node.attr("transB")))
    if alpha != 1:
        result = node.emit("mul", result, node.scalar(alpha, node.dtype(result)))
    if c is None or beta == 0:
        return result
    if beta != 1:
        c = node.emit("mul", c, node.scalar(beta, node.dtype(c)))
    return broadcast_call(node, "add", result, c)


# Windows


def _strides_and_dilations(node: Node, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    found = []
    for name in ("strides", "dilations"):
        given = tuple(node.attr(name, ())) or (1,) * rank
        if len(given) != rank or any(g < 1 for g in given):
            raise node.bad(f"{name} {list(given)} for {rank} spatial dims")
        found.append(given)
    return found[0], found[1]


def _pads(node: Node, sizes: Dims, kernel: Dims) -> Dims:
    """Pads, befores then afters, with auto_pad resolved."""
    rank = len(sizes)
    match node.attr("auto_pad", "NOTSET"):
        case "NOTSET":
            pads = tuple(node.attr("pads", ())) or (0,) * (2 * rank)
            if len(pads) != 2 * rank:
                raise node.bad(f"{len(pads)} pads for {rank} spatial dims")
            return tuple(as_expr(p) for p in pads)
        case "VALID":
            return (as_expr(0),) * (2 * rank)
        case "SAME_UPPER" | "SAME_LOWER" as mode:
            steps = _strides_and_dilations(node, rank)
            return same_pads(sizes, kernel, *steps, upper=mode == "SAME_UPPER")
        case other:
            raise node.bad(f"auto_pad {other!r}")


def _window_attrs(node: Node, sizes: Dims, kernel: Dims) -> dict[str, object]:
    strides, dilations = _strides_and_dilations(node, len(sizes))
    return {"strides": strides, "dilations": dilations, "pads": _pads(node, sizes, kernel)}


def _spatial(node: Node, x: Value) -> Dims:
    dims = node.dims(x)
    if len(dims) < 3:
        raise node.bad(f"{x.annotation} has no spatial dims after batch and channels")
    return dims[2:]


def conv_operands(node: Node, x: Value, w: Value, group: int) -> tuple[Value, Value]:
    """x and w whose channels agree."""
    if group < 1:
        raise node.bad(f"{group} groups")
    if node.rank(x) != node.rank(w):
        raise node.bad(f"x is {x.annotation}, w is {w.annotation}: their ranks differ")
    kernel = node.attr("kernel_shape", None)
    if kernel is not None:
        w = node.with_dims(w, (*node.dims(w)[:2], *kernel))
    channels = node.dims(w)[1] * group
    if channels.as_int() is None and group == 1:
        return node.with_dim(x, 1, node.dims(x)[1]), node.with_dim(w, 1, node.dims(x)[1])
    return node.with_dim(x, 1, channels), w


@importer("Conv")
def _conv(node: Node) -> Result:
    return conv(node, node.value(0), node.value(1), node.input(2))


def conv(node: Node, x: Value, w: Value, bias: Value | None) -> Value:
    """A convolution with the node's attributes."""
    group = node.attr("group", 1)
    x, w = conv_operands(node, x, w, group)
    if bias is not None:
        bias = node.with_dims(bias, node.dims(w)[:1])
    attrs = _window_attrs(node, _spatial(node, x), node.dims(w)[2:])
    return node.emit("conv", x, w, bias, group=group, **attrs)


def channels_first(node: Node, x: Value) -> Value:
    """[batch, …, channels] as [batch, channels, …]."""
    rank = node.rank(x)
    return node.transpose(x, (0, rank - 1, *range(1, rank - 1)))


def channels_last(node: Node, x: Value) -> Value:
    """The way back."""
    return node.transpose(x, (0, *range(2, node.rank(x)), 1))


@importer("ConvInteger")
def _conv_integer(node: Node) -> Result:
    zeros = (_scalar_or_vector(node, 2), _scalar_or_vector(node, 3))
    return conv_integer(node, node.value(0), node.value(1), *zeros)


def conv_integer(
    node: Node, x: Value, w: Value, x_zero: Value | None, w_zero: Value | None
) -> Value:
    """The exact convolution of 8-bit operands less their zero points, as i32."""
    group = node.attr("group", 1)
    x, w = conv_operands(node, x, w, group)
    attrs = _window_attrs(node, _spatial(node, x), node.dims(w)[2:])
    return node.emit("conv_integer", x, w, x_zero, w_zero, group=group, **attrs)


def _scalar_or_vector(node: Node, k: int) -> Value | None:
    """A zero point, one of one element as a scalar."""
    value = node.input(k)
    if value is None or node.dims(value) != (as_expr(1),):
        return value
    return node.reshape(value, ())


@importer("ConvTranspose")
def _conv_transpose(node: Node) -> Result:
    x, w, bias = node.value(0), node.value(1), node.input(2)
    group, sizes, rank = node.attr("group"), _spatial(node, x), node.rank(x) - 2
    if node.rank(w) != node.rank(x):
        raise node.bad(f"x is {x.annotation}, w is {w.annotation}: their ranks differ")
    x, w = same_dims(node, (x, w), ((1,), (0,)))
    if bias is not None:
        bias = node.with_dims(bias, (node.dims(w)[1] * group,))
    kernel = node.dims(w)[2:]
    strides, dilations = _strides_and_dilations(node, rank)
    extra = tuple(node.attr("output_padding", ())) or (0,) * rank
    targets = _transposed_targets(node, sizes, strides)
    if targets is None:
        pads = _pads(node, sizes, kernel)
    else:
        upper = node.attr("auto_pad") == "SAME_UPPER"
        pads = transposed_pads(sizes, kernel, strides, dilations, extra, targets, upper)
    return node.emit(
        "conv_transpose", x, w, bias,
        strides=strides, dilations=dilations, pads=pads, output_padding=extra, group=group,
    )  # fmt: skip


def _transposed_targets(node: Node, sizes: Dims, strides: Sequence[int]) -> Dims | None:
    """The output sizes that are asked for, if any."""
    if node.has_attr("output_shape"):
        return tuple(as_expr(s) for s in node.attr("output_shape"))
    if node.attr("auto_pad").startswith("SAME"):
        return tuple(size * stride for size, stride in zip(sizes, strides, strict=True))
    return None


def max_pool(node: Node, x: Value) -> Value:
    """The greatest of x in windows by the attributes of MaxPool."""
    kernel, attrs = _pool_attrs(node, x)
    return node.emit("max_pool", x, kernel=kernel, **attrs)


@importer("DeformConv")
def _deform_conv(node: Node) -> Result:
    """What moved taps see, times the weights: a product for each group of channels."""
    offset, bias, mask = node.value(2), node.input(3), node.input(4)
    group, own = node.attr("group", 1), node.attr("offset_group", 1)
    x, w = conv_operands(node, node.value(0), node.value(1), group)
    kernel = tuple(d.as_int() or 0 for d in node.dims(w)[2:])
    if len(kernel) != 2 or 0 in kernel:
        raise node.unsupported(f"weights {w.annotation}: a kernel of two known dims is wanted")
    steps = _strides_and_dilations(node, 2)
    batch, channels, *size = node.dims(x)
    pads = node.attr("pads", (0,) * 4)
    place = tuple(
        (size[k] + pads[k] + pads[k + 2] - (kernel[k] - 1) * steps[1][k] - 1) // steps[0][k] + 1
        for k in (0, 1)
    )
    taps = kernel[0] * kernel[1]
    offset = node.with_dims(offset, (batch, 2 * own * taps, *place))
    mask = None if mask is None else node.with_dims(mask, (batch, own * taps, *place))
    columns = node.emit(
        "deform_columns", x, offset, mask, kernel=kernel, strides=steps[0], dilations=steps[1],
        pads=pads[:2], groups=own,
    )  # fmt: skip
    rows = node.dims(w)[0]
    inner, count = channels // group * taps, place[0] * place[1]
    wide = node.reshape(columns, (batch, group, inner, count))
    product = node.emit("matmul", node.reshape(w, (1, group, rows // group, inner)), wide)
    result = node.reshape(product, (batch, rows, *place))
    return result if bias is None else node.emit("add", result, node.reshape(bias, (rows, 1, 1)))


@importer("MaxPool")
def _max_pool(node: Node) -> Result:
    x = node.value(0)
    if not node.wants(1):
        return max_pool(node, x)
    kernel, attrs = _pool_attrs(node, x)
    order = bool(node.attr("storage_order", 0))
    return node.emit_all("max_pool", x, kernel=kernel, **attrs, indices=True, column_major=order)


@importer("AveragePool")
def _average_pool(node: Node) -> Result:
    return average_pool(node, node.value(0))


def average_pool(node: Node, x: Value) -> Value:
    """A pool of x by the attributes of AveragePool."""
    kernel, attrs = _pool_attrs(node, x)
    count = bool(node.attr("count_include_pad", 0))
    return node.emit("average_pool", x, kernel=kernel, **attrs, count_include_pad=count)


@importer("LpPool")
def _lp_pool(node: Node) -> Result:
    x = node.value(0)
    kernel, attrs = _pool_attrs(node, x)
    return node.emit("lp_pool", x, kernel=kernel, **attrs, p=node.attr("p"))


def _pool_attrs(node: Node, x: Value) -> tuple[tuple[int, ...], dict[str, object]]:
    sizes, kernel = _spatial(node, x), tuple(node.attr("kernel_shape"))
    if len(kernel) != len(sizes) or any(k < 1 for k in kernel):
        raise node.bad(f"kernel {list(kernel)} for {len(sizes)} spatial dims")
    attrs = _window_attrs(node, sizes, tuple(as_expr(k) for k in kernel))
    return kernel, {**attrs, "ceil_mode": bool(node.attr("ceil_mode", 0))}


@importer("GlobalAveragePool")
def _global_average_pool(node: Node) -> Result:
    return _over_space(node, "reduce_mean")


@importer("GlobalMaxPool")
def _global_max_pool(node: Node) -> Result:
    return _over_space(node, "reduce_max")


def _over_space(node: Node, op: str) -> Value:
    x = node.value(0)
    return node.emit(op, x, axes=tuple(range(2, 2 + len(_spatial(node, x)))), keepdims=True)


@importer("GlobalLpPool")
def _global_lp_pool(node: Node) -> Result:
    p = node.attr("p")
    if p in (1, 2):
        return _over_space(node, f"reduce_l{p}")
    raise node.unsupported(f"p = {p}", hint="1 and 2 are supported")


@importer("MaxUnpool")
def _max_unpool(node: Node) -> Result:
    """Scattered to where the maxima were; what a wanted output has beyond that is 0."""
    x, indices, wanted = node.value(0), node.value(1), node.ints(2, lo=0, what="the output shape")
    sizes, kernel = _spatial(node, x), tuple(node.attr("kernel_shape"))
    rank = len(sizes)
    strides, _ = _strides_and_dilations(node, rank)
    pads = _pads(node, sizes, tuple(as_expr(k) for k in kernel))
    dims = (
        *node.dims(x)[:2],
        *(
            transposed_size(sizes[k], kernel[k], strides[k], 1, pads[k], pads[rank + k], 0)
            for k in range(rank)
        ),
    )
    flat = node.emit("full", dims=(product(dims),), value=0, dtype=node.dtype(x))
    where, what = (
        node.reshape(v, (node.count(x),)) for v in (node.with_dims(indices, node.dims(x)), x)
    )
    spread = node.emit("scatter_elements", flat, where, what, axis=0, reduction="none")
    result = node.reshape(spread, dims)
    if wanted is None:
        return result
    more = tuple(w - d for w, d in zip(wanted, dims, strict=True))
    pads = (*[as_expr(0)] * len(dims), *more)
    return node.with_dims(node.emit("pad", result, None, pads=pads), wanted)


@importer("Col2Im")
def _col2im(node: Node) -> Result:
    """A transposed convolution that puts each row of a column at its own tap."""
    x = node.value(0)
    image, block = node.numbers(1, "the image shape"), node.numbers(2, "the block shape")
    if image is None or block is None or len(image) != len(block):
        raise node.bad(f"an image of {image} in blocks of {block}")
    rank, taps = len(block), prod(block)
    strides, dilations = _strides_and_dilations(node, rank)
    pads = tuple(node.attr("pads", ())) or (0,) * (2 * rank)
    padded = [image[k] + pads[k] + pads[rank + k] for k in range(rank)]
    reach = [(block[k] - 1) * dilations[k] + 1 for k in range(rank)]
    counts = [(padded[k] - reach[k]) // strides[k] + 1 for k in range(rank)]
    rest = tuple((padded[k] - reach[k]) % strides[k] for k in range(rank))
    batch, rows, _ = node.dims(x)
    channels = rows // taps
    columns = node.reshape(x, (batch * channels, taps, *counts))
    kernel = np.eye(taps, dtype=node.dtype(x).numpy).reshape(taps, 1, *block)
    found = node.emit(
        "conv_transpose", columns, node.array(kernel), None, strides=strides,
        dilations=dilations, pads=tuple(as_expr(p) for p in pads), output_padding=rest,
    )  # fmt: skip
    return node.reshape(found, (batch, channels, *image))
