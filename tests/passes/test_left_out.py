"""Whatever is left out of the compiler, programs compute the same (design: ablation by name)."""

import numpy as np
import pytest

import edgerelax
from edgerelax.ir.evaluate import evaluate
from edgerelax.pipeline import OPTIONAL
from tests.passes.programs import PROGRAMS
from tests.passes.test_meaning import inputs_of

PARTS = [(), *((part,) for part in sorted(OPTIONAL)), tuple(sorted(OPTIONAL))]


@pytest.mark.parametrize("without", PARTS, ids=lambda w: "+".join(w) if len(w) < 2 else "all")
def test_without(without: tuple[str, ...]) -> None:
    for name in ("mlp", "softmax_of_sum", "diamond"):
        module = PROGRAMS[name]()
        executable = edgerelax.compile(module, target="cpu", without=without, verify=True)
        session = executable.session("cpu")
        for n, m in ((1, 1), (5, 3), (64, 2), (17, 9)):
            given = inputs_of(module, {"n": n, "m": m})
            wanted = evaluate(module, given)
            for key, value in session.run(given).items():
                np.testing.assert_allclose(value, wanted[key], rtol=2e-5, atol=2e-5)


def test_the_plainest_kernels_are_more_of_them() -> None:
    module = PROGRAMS["softmax_of_sum"]()
    tuned = edgerelax.compile(module, variants=("gpu",))
    plain = edgerelax.compile(module, variants=("gpu",), without=("strategies",))
    assert tuned.report.launches["gpu"] == 1 < plain.report.launches["gpu"]
