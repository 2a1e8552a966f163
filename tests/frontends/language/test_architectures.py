"""Every architecture, from the folder that transformers saves, against transformers' logits.

The same weights as a GGUF file must give the same, where GGUF can say what the config says.
"""

from pathlib import Path

import numpy as np
import pytest

from edgerelax.frontends.gguf.load import decoder_of as decoder_of_gguf
from edgerelax.frontends.gguf.reading import File
from edgerelax.frontends.hf.load import decoder_of
from edgerelax.frontends.language.context import Whole
from edgerelax.frontends.language.decoder import GeneralDecoder
from edgerelax.frontends.nn import Input, trace
from edgerelax.ir.dtypes import I64
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import Module
from edgerelax.sym import symbol
from tests.frontends.language import gguf_files
from tests.frontends.language.cases import CASES, VOCABULARY, Case, reference

NOT_IN_GGUF = (
    "llama-dynamic",
    "llama-dynamic-short",
    "qwen2-window-yarn",
    "qwen3-moe-half",
    "gemma2-scaled",
    "gpt2-by-layer",
)


def whole(model: GeneralDecoder) -> Module:
    sizes = symbol("batch"), symbol("length")
    return trace(
        lambda tokens: {"logits": model.logits(model.hidden(tokens, Whole(tokens)))},
        {"tokens": Input(sizes, I64)},
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logits_equal_those_of_transformers(case: Case, tmp_path: Path) -> None:
    wanted = reference(case, tmp_path)
    modules = [whole(decoder_of(tmp_path, case.longest))]
    if case.name not in NOT_IN_GGUF:
        file = File(gguf_files.write(tmp_path, tmp_path / "model.gguf"))
        modules.append(whole(decoder_of_gguf(file, case.longest)))
    rng = np.random.default_rng(0)
    for batch, length in case.sizes:
        tokens = rng.integers(0, VOCABULARY, (batch, length))
        logits = wanted(tokens)
        for module in modules:
            found = evaluate(module, {"tokens": tokens})["logits"]
            np.testing.assert_allclose(found, logits, rtol=2e-4, atol=2e-4)
