"""Attention to the rows of a memory is one kernel that reads them where they are."""

import numpy as np
import pytest

import edgerelax
from edgerelax.frontends.nn import Input, Tensor, trace
from edgerelax.frontends.speech.whisper import Heard, Unmasked, memory_names
from edgerelax.ir.dtypes import F32, I32
from edgerelax.sym import symbol

HEADS, FRAMES, WIDTH = 3, 40, 8


@pytest.mark.parametrize(("device", "target"), (("cpu", "cpu"), ("wgpu", "webgpu")))
def test_listening(device: str, target: str) -> None:
    batch, length, rows = symbol("batch"), symbol("length"), symbol("rows", 1)
    memory = {name: Input((rows, FRAMES, HEADS, WIDTH), F32) for name in memory_names(0)}

    def listen(q: Tensor, at: Tensor, **memory: Tensor) -> dict[str, Tensor]:
        return {"y": Heard(Unmasked(q), at, memory).listen(0, q)}

    inputs = {"q": Input((batch, HEADS, length, WIDTH), F32), "at": Input((batch,), I32)}
    module = trace(listen, {**inputs, **memory})
    variant = "cpu" if device == "cpu" else "software"
    executable = edgerelax.compile(module, target=target, variants=(variant,), verify=True)
    assert executable.report.passes["fuse_attention"]["done"] == {"attention fused": 1}
    rng = np.random.default_rng(0)
    with executable.session(device) as session:
        for number, count in ((1, 1), (3, 5)):
            q = rng.standard_normal((number, HEADS, count, WIDTH)).astype(np.float32)
            k, v = rng.standard_normal((2, 4, FRAMES, HEADS, WIDTH)).astype(np.float32)
            at = np.array([2, 0, 3], np.int32)[:number]
            given = dict(zip(memory_names(0), (k, v), strict=True))
            found = session.run({"q": q, "at": at, **given})["y"]
            keys, values = (x[at].transpose(0, 2, 1, 3) for x in (k, v))
            weights = np.exp(q @ keys.swapaxes(2, 3) / WIDTH**0.5)
            wanted = weights / weights.sum(-1, keepdims=True) @ values
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
