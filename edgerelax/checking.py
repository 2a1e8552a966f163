"""Comparing a compiled model with a reference, and finding the first operator that differs.

Differences are relative to the output's scale: max |got - wanted| / max |wanted|.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerelax.api import Session, compile
from edgerelax.artifact.manifest import Manifest, TensorInfo
from edgerelax.frontends.dims import DimSpec
from edgerelax.frontends.onnx import load
from edgerelax.ir.diagnostics import InputError
from edgerelax.ir.dtypes import DTYPES
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import Block, GraphFunc, Module, Var
from edgerelax.ir.types import Tensor
from edgerelax.passes.canonicalize import canonicalize
from edgerelax.sym import parse, symbol

Array = npt.NDArray[Any]
Sizes = dict[str, int]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One output at one combination of sizes."""

    sizes: Sizes
    output: str
    shape: tuple[int, ...]
    difference: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def difference(got: Array, wanted: Array) -> float:
    """max |got - wanted| / max |wanted|; infinite for other shapes, dtypes, NaNs or infinities."""
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return float("inf")
    if not wanted.size:
        return 0.0
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    odd = ~np.isfinite(b)
    if not np.array_equal(a[odd], b[odd], equal_nan=True) or not np.isfinite(a[~odd]).all():
        return float("inf")
    gap = float(np.abs(a[~odd] - b[~odd]).max(initial=0.0))
    return gap / max(float(np.abs(b[~odd]).max(initial=0.0)), 1e-30) if gap else 0.0


def sample_sizes(manifest: Manifest, count: int, seed: int = 0) -> Iterator[Sizes]:
    """Sizes within the bounds: the least first, then random ones, odd where they may be."""
    rng = np.random.default_rng(seed)
    for k in range(count if manifest.symbols else 1):
        sizes: Sizes = {}
        for name, info in manifest.symbols.items():
            step = info.multiple_of
            least = -(-max(info.lo, 1) // step)
            most = least + 40
            if info.hi is not None:
                least, most = min(least, info.hi // step), min(most, info.hi // step)
            pick = least if k == 0 else int(rng.integers(least, most + 1))
            sizes[name] = pick * step
        yield sizes


def random_inputs(manifest: Manifest, sizes: Sizes, seed: int = 0) -> dict[str, Array]:
    """Inputs of those sizes: normal floats, small non-negative integers."""
    rng = np.random.default_rng(seed)
    return {spec.name: _random(spec, sizes, rng) for spec in manifest.functions[0].inputs}


def _random(spec: TensorInfo, sizes: Sizes, rng: np.random.Generator) -> Array:
    if spec.shape is None:
        raise InputError(f"input '{spec.name}' has no known rank; it cannot be made up")
    shape = tuple(_size(d, sizes) for d in spec.shape)
    dtype = DTYPES[spec.dtype]
    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.numpy)
    return rng.integers(0, 2, shape).astype(dtype.numpy)


def _size(dim: int | str, sizes: Sizes) -> int:
    if isinstance(dim, int):
        return dim
    return parse(dim, lambda name: symbol(name)).eval(sizes)


def compare(
    model: Path, session: Session, reference: str, sizes: Sizes, seed: int = 0
) -> list[Comparison]:
    """Every output at those sizes against the reference."""
    manifest = session.artifact.manifest
    inputs = random_inputs(manifest, sizes, seed)
    got = session.run(inputs)
    wanted = run_reference(model, manifest, reference, inputs)
    return [
        Comparison(sizes, name, wanted[name].shape, difference(got[name], wanted[name]))
        for name in got
    ]


def run_reference(
    model: Path, manifest: Manifest, reference: str, inputs: Mapping[str, Array]
) -> dict[str, Array]:
    """Outputs by name from onnxruntime, or from numpy."""
    if reference == "numpy":
        return evaluate(load(model, dims=bounds_of(manifest)), inputs)
    if reference != "onnxruntime":
        raise InputError(f"unknown reference {reference!r}; known: onnxruntime, numpy")
    try:
        import onnxruntime
    except ImportError as error:
        raise InputError(
            "onnxruntime is not installed",
            hint="pip install 'edgerelax[verify]', or --reference numpy",
        ) from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    providers = ["CPUExecutionProvider"]
    try:
        session = onnxruntime.InferenceSession(str(model), options, providers=providers)
        names = [o.name for o in session.get_outputs()]
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))
    except Exception as error:  # its exceptions have no base of their own
        raise InputError(
            f"onnxruntime cannot run {model.name}",
            node=str(error),
            hint="compare with numpy instead: --reference numpy",
        ) from error


def bounds_of(manifest: Manifest) -> dict[str, DimSpec]:
    """The dims as they were exported."""
    return {n: (s.lo, s.hi, s.multiple_of) for n, s in manifest.symbols.items()}


def first_difference(
    model: Path, manifest: Manifest, variant: str, sizes: Sizes, tolerance: float, seed: int = 0
) -> str:
    """Compile every intermediate value as an output, unfused, and compare in program order."""
    module = canonicalize(load(model, dims=bounds_of(manifest)))
    observable = _expose(module)
    inputs = random_inputs(manifest, sizes, seed)
    values: dict[str, Array] = {}

    def observe(var: Var, value: Array) -> None:
        values.setdefault(var.name, value)

    evaluate(module, inputs, observe=observe)
    compiled = compile(observable, variants=(variant,), without=("fuse",))
    with compiled.session(variant=variant) as session:
        got = session.run(inputs)
    for name in observable.funcs["main"].result_names:
        gap = difference(got[name], values[name])
        if not gap <= tolerance:
            var = next(v for v in observable.funcs["main"].body.results if v.name == name)
            origin = var.origin if isinstance(var, Var) else name
            return (
                f"the first value that differs is {name} ({gap:.2e}), from {origin or 'the module'}"
            )
    return "no single operator differs: the difference comes from fusing or accumulates"


def _expose(module: Module) -> Module:
    """The same function with every tensor of its top level as a result."""
    func = module.funcs["main"]
    vars_ = [
        b.var
        for b in func.body.bindings
        if isinstance(b.var.annotation, Tensor) and b.var.annotation.dims is not None
    ]
    exposed = GraphFunc(
        "main",
        func.params,
        Block(func.body.bindings, tuple(vars_)),
        tuple(v.name for v in vars_),
        func.attrs,
    )
    return replace(module, funcs={"main": exposed})
