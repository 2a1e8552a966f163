"""Quantisation at import: what it loses, beside what ggml's rounding loses, and what it refuses."""

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

import edgerelax
from edgerelax.frontends import nn
from edgerelax.frontends.nn.grouped import Grouped
from edgerelax.frontends.nn.quantise import Quantiser, Scheme, quantise
from edgerelax.ir.diagnostics import InputError
from edgerelax.ir.dtypes import F32, I64
from edgerelax.sym import symbol

RNG = np.random.default_rng(0)
GROUPED = [f"q{b}{k}-{g}" for b in (4, 8) for k in "as" for g in (32, 64, 128)]
KINDS = {
    "normal": RNG.standard_normal((24, 256)),
    "long tails": RNG.standard_t(3, (24, 256)),
    "off centre": RNG.standard_normal((24, 256)) + 3,
    "small": RNG.standard_normal((24, 256)) * 1e-6,
    "large": RNG.standard_normal((24, 256)) * 1e30,
    "one outlier": np.where(np.arange(256) % 32 == 5, 100, RNG.standard_normal((24, 256))),
}
KINDS = {name: data.astype(np.float32) for name, data in KINDS.items()}


def numbers(data: np.ndarray, scheme: str) -> np.ndarray:
    found = quantise(data, scheme)
    assert isinstance(found, Grouped)
    return found.numbers()


def errors(found: np.ndarray, data: np.ndarray, group: int) -> np.ndarray:
    """Norms of groups' errors."""
    return np.linalg.norm((found - data).astype(np.float64).reshape(-1, group), axis=1)


def plainly(data: np.ndarray, scheme: Scheme) -> np.ndarray:
    """The range of a group in equal steps, without f16."""
    groups, steps = data.astype(np.float64).reshape(-1, scheme.group), 2**scheme.bits - 1
    low, high = groups.min(1, keepdims=True), groups.max(1, keepdims=True)
    if not scheme.offset:
        high = np.abs(groups).max(1, keepdims=True)
        low, steps = -high, steps - 1
    scale = (high - low) / steps
    return (np.rint((groups - low) / scale) * scale + low).reshape(data.shape)


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("kind", KINDS)
def test_no_worse_than_equal_steps(name: str, kind: str) -> None:
    """But for what the rounding of scales and offsets to f16 costs."""
    data, scheme = KINDS[kind], Scheme.of(name)
    found, plain = (
        errors(x, data, scheme.group) for x in (numbers(data, name), plainly(data, scheme))
    )
    lost = np.abs(data.astype(np.float64)).reshape(-1, scheme.group).max(axis=1) * 2.0**-11
    if scheme.offset:  # else these steps are none that it begins with
        assert (found <= plain * 1.001 + scheme.group**0.5 * lost).all()
    assert np.linalg.norm(found) <= np.linalg.norm(plain) * (1.0 if scheme.bits == 4 else 1.02)


@pytest.mark.parametrize(
    ("name", "kind", "gain"),
    [("q4", Type.Q4_1, 0.95), ("q4s", Type.Q4_0, 0.97), ("q8", Type.Q8_0, 1)],
)
def test_less_is_lost_than_by_ggml(name: str, kind: Type, gain: float) -> None:
    for data in (KINDS["normal"], KINDS["long tails"]):
        theirs = gguf.dequantize(gguf.quantize(data, kind), kind)
        ours = numbers(data, name)
        assert np.linalg.norm(ours - data) < np.linalg.norm(theirs - data) * gain


@pytest.mark.parametrize("name", GROUPED)
def test_groups_of_one_number(name: str) -> None:
    """Exact where f16 has it; and zeros are zero."""
    data = np.repeat(np.array([0, 1, -2, 0.5], np.float32), 128).reshape(2, 256)
    np.testing.assert_allclose(numbers(data, name), data, rtol=2**-11)
    assert not numbers(np.zeros((2, 128), np.float32), name).any()
    assert numbers(np.zeros((0, 128), np.float32), name).shape == (0, 128)


@pytest.mark.parametrize("name", GROUPED)
def test_bits(name: str) -> None:
    scheme, found = Scheme.of(name), quantise(KINDS["normal"], name)
    assert isinstance(found, Grouped)
    assert found.bits == scheme.bits
    assert len(found.offsets) == scheme.offset
    planes = 1 + scheme.offset
    assert 8 * found.nbytes == 24 * 256 * (scheme.bits + planes * 16 / scheme.group)


def test_floats() -> None:
    data = KINDS["normal"]
    np.testing.assert_array_equal(quantise(data, "f32"), data)
    np.testing.assert_array_equal(quantise(data, "f16"), data.astype(np.float16))
    with pytest.raises(InputError, match="are beyond f16"):
        quantise(KINDS["large"], "f16")


def test_what_cannot_be_quantised() -> None:
    data = np.ones((2, 48), np.float32)
    with pytest.raises(InputError, match="rows of 48 weights cannot be cut into groups of 32"):
        quantise(data, "q4")
    data[1, 3] = np.nan
    with pytest.raises(InputError, match="infinite or no numbers"):
        quantise(data, "f16")


@pytest.mark.parametrize("choice", ["q5", "q4-48", "", "linear=q3", {"head": "int8"}])
def test_unknown_schemes(choice: str | dict[str, str]) -> None:
    with pytest.raises(InputError, match="no way to quantise is called"):
        Quantiser.of(choice)


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ("norm=q4", "no tensors are called 'norm'"),
        ("linear=q4,linear=q8", "'linear=q8' of .*: twice"),
        ("linear=q4,q8", "'q8' of .*: no scheme"),
    ],
)
def test_choices_that_say_nothing(choice: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        Quantiser.of(choice)


class Model(nn.Module):
    """A bit of each role."""

    def __init__(self) -> None:
        self.embedding = nn.Embedding(40, 128)
        self.norm = nn.RMSNorm(128)
        self.odd = nn.Linear(128, 50, bias=True)
        self.back = nn.Linear(50, 48)
        self.head = nn.Linear(48, 40, role="head")

    def forward(self, ids: nn.Tensor) -> nn.Tensor:
        return self.head(self.back(self.odd(self.norm(self.embedding(ids)))))


def test_schemes_by_role() -> None:
    model, quantiser = Model(), Quantiser.of("linear=q4-64,embedding=q8, head=q4s")
    given = {
        name: RNG.standard_normal(parameter.shape).astype(np.float32)
        for name, parameter in model.parameters()
    }
    given["norm.weight"] = np.ones(128, np.float32)
    stored = {n: quantiser.stored(n, p.role, given[n]) for n, p in model.parameters()}
    found = {tensor.name: tensor for tensor in quantiser.tensors}
    assert {name: tensor.scheme for name, tensor in found.items()} == {
        "embedding.weight": "q8",
        "norm.weight": "keep",
        "odd.weight": "q4-64",
        "odd.bias": "keep",
        "back.weight": "keep",  # 50 columns have no groups
        "head.weight": "q4s-16",  # 48 columns have none of 32
    }
    assert found["embedding.weight"].bits == 8.5
    assert found["norm.weight"].bits == 16  # which has all its numbers
    assert found["back.weight"].bits == 32
    for name, tensor in found.items():
        data = stored[name]
        error = (data.numbers() if isinstance(data, Grouped) else data) - given[name]
        rms = np.sqrt(np.mean(error**2) / np.mean(given[name] ** 2))
        assert tensor.rms == pytest.approx(rms, rel=1e-4)
        largest = np.abs(error).max() / np.abs(given[name]).max()
        assert tensor.largest == pytest.approx(largest, rel=1e-4)


def test_weights_in_groups_are_quantised_again() -> None:
    data = quantise(KINDS["normal"], "q8")
    quantiser = Quantiser.of({"experts": "q4"})
    found = quantiser.stored("x", "experts", data)
    assert isinstance(found, Grouped) and isinstance(data, Grouped)
    np.testing.assert_array_equal(found.numbers(), numbers(data.numbers(), "q4"))
    assert Quantiser.of("linear=q4").stored("x", "experts", data) is not data
    assert Quantiser.of("head=q4").stored("x", "experts", data) is data


def test_half_precision_around_them() -> None:
    """Activations become f16 on GPUs; codes and the count of kernels stay, CPUs see no change."""
    table, layer = nn.Embedding(40, 64), nn.Linear(64, 64)
    for part in (table, layer):
        shape = part.weight.shape
        part.weight.load(quantise(RNG.standard_normal(shape).astype(np.float32) / 8, "q4"))

    def forward(ids: nn.Tensor) -> dict[str, nn.Tensor]:
        return {"y": table.as_linear(nn.functional.silu(layer(table(ids))))}

    module = nn.trace(forward, {"ids": nn.Input((symbol("n"),), I64)})
    found, launches, ids = {}, [], np.arange(5)
    for half in (False, True):
        executable = edgerelax.compile(module, fp16=half, variants=("software", "cpu"))
        launches.append(executable.report.launches)
        assert "f32" not in {w.dtype for w in executable.artifact.manifest.weights}
        for device in ("wgpu", "cpu"):
            found[half, device] = executable.session(device).run({"ids": ids})["y"]
    assert launches[0] == launches[1]
    exact = found[False, "cpu"]
    np.testing.assert_array_equal(found[True, "cpu"], exact)
    np.testing.assert_allclose(found[False, "wgpu"], exact, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[True, "wgpu"], exact, rtol=2e-2, atol=1e-2)
    assert np.abs(found[True, "wgpu"] - exact).max() > 1e-5


def test_models_that_are_no_language_models() -> None:
    layer = nn.Linear(8, 8)
    layer.load({"weight": np.eye(8, dtype=np.float32)})
    module = nn.trace(lambda x: {"y": layer(x)}, {"x": nn.Input((2, 8), F32)})
    with pytest.raises(InputError, match="only the weights of language models"):
        edgerelax.compile(module, quantise="q4")
