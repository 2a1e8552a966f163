"""Tokens drawn in a browser are those drawn elsewhere, whatever variant draws them."""

from pathlib import Path

import numpy as np
import pytest

import edgerelax
from edgerelax.codegen.wgsl import print_wgsl
from edgerelax.frontends import nn
from edgerelax.frontends.language.sampling import PROMPT, Settings, sample, top_logprobs
from edgerelax.ir.dtypes import F32, I32, U32
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import Module
from edgerelax.ir.kernel import SUBGROUPS, for_features
from edgerelax.ir.loop import LoopFunc
from edgerelax.schedule.select import schedule
from edgerelax.schedule.target import WEBGPU
from edgerelax.sym import symbol
from tests.browser.harness import Browser
from tests.browser.runtime_page import check
from tests.schedule.test_sort import topk
from tests.schedule.test_token_sampling import choosing, sampling

ROWS, V = 4, 2100
COMPILE = """
const adapter = await navigator.gpu.requestAdapter();
const features = [...adapter.features].filter((f) => f === 'subgroups');
const device = await adapter.requestDevice({ requiredFeatures: features });
const found = [];
for (const [feature, code] of argument) {
  if (feature && !features.includes(feature)) continue;
  const info = await device.createShaderModule({ code }).getCompilationInfo();
  found.push(info.messages.filter((m) => m.type === 'error').map((m) => m.message));
}
device.destroy();
return found;
"""


def drawing() -> Module:
    batch = symbol("batch")

    def forward(
        logits: nn.Tensor, counts: nn.Tensor, allowed: nn.Tensor, **settings: nn.Tensor
    ) -> dict[str, nn.Tensor]:
        token, logprob = sample(logits, Settings(**settings), counts=counts, allowed=allowed)
        ids, logprobs = top_logprobs(logits, 5)
        return {"token": token, "logprob": logprob, "ids": ids, "logprobs": logprobs}

    inputs = {"logits": nn.Input((batch, V), F32), **Settings.inputs(batch)}
    inputs["counts"] = nn.Input((batch, V), I32)
    inputs["allowed"] = nn.Input((batch, (V + 31) // 32), U32)
    return nn.trace(forward, inputs)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawing") / "artifact"
    edgerelax.compile(drawing()).save(folder)
    return folder


@pytest.mark.parametrize("variant", ("cpu", "software"))
def test_draws(page: Browser, artifact: Path, variant: str) -> None:
    rng = np.random.default_rng(3)
    numbers = [[0, 1, 0, 1, 0, 0], [1, 0.9, 0, 1.3, 0.5, 0.1], [0.7, 1, 0.02, 1, 0, 0.5]]
    inputs = {
        "logits": (3 * rng.standard_normal((ROWS, V))).astype(np.float32),
        "numbers": np.array([*numbers, [1.5, 0.95, 0, 1, 0, 0]], np.float32),
        "integers": np.array([[0, 1], [0, 2], [0, -3], [50, 4]], np.int32),
        "steps": np.array([0, 8, 1, 2], np.int32),
        "counts": rng.choice([0, 1, 5, PROMPT, PROMPT + 2], (ROWS, V)).astype(np.int32),
        "allowed": rng.integers(0, 2**32, (ROWS, (V + 31) // 32), dtype=np.uint32),
    }
    page.open("drawing", page.publish(artifact, "drawing"), variant=variant)
    check(page.run("drawing", inputs)[0], evaluate(drawing(), inputs))


@pytest.mark.parametrize(
    "func",
    (sampling(V, raw=True), choosing(V), topk(V, 20)),
    ids=("sample_tokens", "greedy_tokens", "few of many"),
)
def test_browsers_take_kernels_for_gpus(page: Browser, func: LoopFunc) -> None:
    """Their compiler of kernels is another, and asks for more."""
    kernels = schedule(func, WEBGPU).versions[-1].kernels
    given = []
    for feature in ("", SUBGROUPS):
        chosen = [for_features(k, frozenset((feature,) if feature else ())) for k in kernels]
        given += [(feature, print_wgsl(k, enable_line=True)) for k in chosen]
    found = page.script(COMPILE, given)
    assert found and not any(found)
