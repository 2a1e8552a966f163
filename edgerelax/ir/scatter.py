"""How GPU kernels apply the updates of scatter templates that reduce (see ir/templates.py)."""

from edgerelax.ir.kernel import has_atomic
from edgerelax.ir.loop import Template
from edgerelax.sym import Expr, product, upper_bound

KINDS = ("scatter", "scatter_nd")
IN_ORDER = 1024
"""Up to so many updates of a line are applied in order by one invocation, so that float sums are
the same on every run; more are applied by an invocation each."""
LONGEST_LOOP = 1 << 14
"""Updates that one invocation may apply: llvmpipe leaves loops after 65,535 turns of all loops of
an invocation, of which a nest has more than its innermost."""


def by_atomics(template: Template) -> bool:
    """Whether each update is an invocation's; the output has at least 32 bits."""
    has = has_atomic(template.outputs[0].dtype, template.params["reduction"])
    return has and not _at_most(template, IN_ORDER)


def is_for_gpu(template: Template) -> bool:
    """Whether there are right GPU kernels: 64-bit integers have no other atomic than the sum."""
    dtype, reduction = template.outputs[0].dtype, template.params["reduction"]
    atomic = reduction != "none" and (dtype.bits < 64 or has_atomic(dtype, reduction))
    return atomic or _at_most(template, LONGEST_LOOP)


def _at_most(template: Template, limit: int) -> bool:
    most = upper_bound(_in_line(template))
    return most is not None and most <= limit


def _in_line(template: Template) -> Expr:
    """The number of updates that one place may get."""
    indices = template.inputs[1]
    if template.kind == "scatter":
        along: int = template.params["axis"]
        return indices.dims[along]
    return product(indices.dims[:-1])
