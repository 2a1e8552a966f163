"""Every architecture, from the folder that transformers saves, against transformers' logits."""

from pathlib import Path

import numpy as np
import pytest

from edgerelax.frontends.hf.load import decoder_of
from edgerelax.frontends.language.functions import language_module
from edgerelax.ir.evaluate import evaluate
from tests.frontends.language.cases import CASES, VOCABULARY, Case, reference


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logits_equal_those_of_transformers(case: Case, tmp_path: Path) -> None:
    wanted = reference(case, tmp_path)
    model = decoder_of(tmp_path, case.longest)
    module = language_module(model, model.config)
    rng = np.random.default_rng(0)
    for batch, length in case.sizes:
        tokens = rng.integers(0, VOCABULARY, (batch, length))
        found = evaluate(module, {"tokens": tokens})["logits"]
        np.testing.assert_allclose(found, wanted(tokens), rtol=2e-4, atol=2e-4)
