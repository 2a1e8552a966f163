"""Random programs: what both hosts compute is what numpy says the program means."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import edgerelax.api as api
from edgerelax.ir.evaluate import evaluate
from tests.faults.hosts import HOSTS
from tests.passes.programs import random_program

SIZES = st.lists(st.integers(1, 64), min_size=2, max_size=3).map(lambda s: [1, *s, s[0]])


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=16), SIZES, st.booleans())
def test_hosts_agree_with_numpy(choices: list[int], sizes: list[int], fused: bool) -> None:
    module = random_program(choices)
    executable = api.compile(module, verify=True, without=() if fused else ("fuse", "cse"))
    rng = np.random.default_rng(0)
    many = [
        {name: rng.standard_normal((n, 4)).astype(np.float32) for name in ("x", "y")} for n in sizes
    ]
    wanted = [evaluate(module, inputs) for inputs in many]
    for host in HOSTS:
        with executable.session(host) as session:
            for inputs, expected in zip(many, wanted, strict=True):
                got = session.run(inputs)
                for name, value in expected.items():
                    np.testing.assert_allclose(
                        got[name], value, rtol=1e-3, atol=1e-3, err_msg=f"{host} {name}"
                    )
