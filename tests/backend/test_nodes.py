"""ONNX's node tests through the whole compiler onto the native hosts.

Each case runs with its sizes as given and with every input dim a symbol; one artifact holds both
hosts' programs. Software GPUs compile slowly, so three kinds of cases run on the CPU host only
unless ALL_NODE_TESTS is set: bodies of functions (`_expanded`), whose operators have cases of their
own, attention with its sizes as given, and linear attention as a loop. Which cases are refused, and
why, stands in `node_cases.py`; that they are refused is tested where the importer is.
"""

import os
from collections.abc import Callable

import pytest

import edgerelax.api as api
from tests.backend.hosts import HOSTS, open_on
from tests.frontends.onnx.node_cases import (
    NodeCase,
    check_outputs,
    node_cases,
    refusal,
    symbolic_cases,
)

PLAIN = [case for case in node_cases() if refusal(case) is None]
SYMBOLIC = [case for case in symbolic_cases() if refusal(case) is None]


EVERYWHERE = "ALL_NODE_TESTS" in os.environ

SLOW = ("resize_downsample_sizes_cubic_symbolic", "resize_upsample_sizes_cubic_symbolic")
"""What lavapipe compiles for minutes."""


def is_symbolic(case: NodeCase) -> bool:
    return case.name.endswith("_symbolic")


def on_gpu(case: NodeCase) -> bool:
    """Whether the case runs on the wgpu host too."""
    slow = "_expanded" in case.name or ("Attention" in case.ops and not is_symbolic(case))
    slow |= "LinearAttention" in case.ops and is_symbolic(case)
    return EVERYWHERE or not (slow or case.name in SLOW)


@pytest.mark.parametrize("case", [*PLAIN, *SYMBOLIC], ids=str)
def test_node(case: NodeCase, record_property: Callable[[str, object], None]) -> None:
    hosts, variants = (HOSTS, ("gpu", "cpu")) if on_gpu(case) else (("cpu",), ("cpu",))
    artifact = api.compile(case.model, dims=case.dims, variants=variants).artifact
    for host in hosts:
        with open_on(host, artifact) as session:
            check_outputs(case, session.run(case.inputs))
        record_property("node_test", f"{host} {'symbolic' if is_symbolic(case) else 'plain'}")


def test_enough_cases_run() -> None:
    """Each of them passes, or its own test fails."""
    assert len(PLAIN) >= 1775
    assert len(SYMBOLIC) >= 1755
    assert sum(map(on_gpu, PLAIN)) >= 1214
    assert sum(map(on_gpu, SYMBOLIC)) >= 1278
