"""All operators by name. One file per family; each ends in a tuple `OPERATORS`."""

from collections.abc import Iterable

from edgerelax.ir.op import Operator
from edgerelax.ops import (
    activation,
    arg,
    attention,
    blocks,
    cast,
    channel_norm,
    comparison,
    conv,
    conv_transpose,
    creation,
    cumulative,
    deformable,
    einsum,
    elementwise,
    indexing,
    joining,
    matmul,
    normalisation,
    pooling,
    quantize,
    recurrent,
    reduction,
    resize,
    sampling,
    scattering,
    shaping,
    slicing,
    softmax,
    sorting,
    suppression,
    token_sampling,
    unique,
)


def _by_name(families: Iterable[tuple[Operator, ...]]) -> dict[str, Operator]:
    found: dict[str, Operator] = {}
    for operator in (o for family in families for o in family):
        if operator.name in found:
            raise ValueError(f"operator {operator.name} is defined twice")
        found[operator.name] = operator
    return found


OPS: dict[str, Operator] = _by_name(
    (
        elementwise.OPERATORS,
        comparison.OPERATORS,
        activation.OPERATORS,
        cast.OPERATORS,
        reduction.OPERATORS,
        arg.OPERATORS,
        cumulative.OPERATORS,
        softmax.OPERATORS,
        normalisation.OPERATORS,
        channel_norm.OPERATORS,
        matmul.OPERATORS,
        attention.OPERATORS,
        einsum.OPERATORS,
        quantize.OPERATORS,
        recurrent.OPERATORS,
        conv.OPERATORS,
        conv_transpose.OPERATORS,
        pooling.OPERATORS,
        creation.OPERATORS,
        indexing.OPERATORS,
        joining.OPERATORS,
        shaping.OPERATORS,
        slicing.OPERATORS,
        blocks.OPERATORS,
        resize.OPERATORS,
        sampling.OPERATORS,
        deformable.OPERATORS,
        scattering.OPERATORS,
        sorting.OPERATORS,
        suppression.OPERATORS,
        token_sampling.OPERATORS,
        unique.OPERATORS,
    )
)
