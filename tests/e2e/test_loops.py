"""Loops of a symbolic length, or one that data decide, on the hosts."""

from collections.abc import Iterator

import pytest

from edgerelax import api
from edgerelax.hosts.session import Session
from tests.frontends.onnx.loop_models import MODELS, check, normal

VARIANTS = {"cpu": "cpu", "wgpu": "software"}
ON_GPU = ("scan", "carried values that trade places", "elements of all sizes", "nested")
PLACES = [("cpu", name) for name in MODELS] + [("wgpu", name) for name in ON_GPU]


def compiled(name: str, device: str, without: tuple[str, ...] = ()) -> api.Executable:
    proto = MODELS[name]().proto
    return api.compile(proto, variants=(VARIANTS[device],), verify=True, without=without)


@pytest.mark.parametrize(("device", "name"), PLACES)
def test_a_loop(device: str, name: str) -> None:
    case = MODELS[name]()
    with compiled(name, device).session(device) as session:
        for inputs in [*case.runs, *reversed(case.runs)]:  # recorded lists, too
            check(session.run(inputs), case.expected(inputs))


@pytest.fixture(scope="module")
def scanning() -> Iterator[Session]:
    with compiled("scan", "cpu").session("cpu") as session:
        yield session


def test_all_runs_of_a_body_share_their_lists(scanning: Session) -> None:
    def misses(steps: int) -> int:
        before = scanning.stats()["list_misses"]
        scanning.run({"h0": normal(3, 4), "xs": normal(steps, 3, 4)})
        return int(scanning.stats()["list_misses"] - before)

    first = misses(5)
    assert misses(90) <= first
    assert misses(90) == 0


def test_the_rows_of_a_loop_are_written_in_place(scanning: Session) -> None:
    def slabs(steps: int) -> int:
        scanning.run({"h0": normal(3, 4), "xs": normal(steps, 3, 4)})
        return int(scanning.stats()["cpu_slab_bytes"])

    row = normal(3, 4).nbytes
    small, large = slabs(200), slabs(400)
    assert large - small == 200 * row  # the result alone


@pytest.mark.parametrize("left_out", ["capture", "reuse", "in_place", "fuse"])
def test_a_loop_without(left_out: str) -> None:
    case = MODELS["carried values that trade places"]()
    with compiled("carried values that trade places", "cpu", (left_out,)).session("cpu") as session:
        for inputs in case.runs:
            check(session.run(inputs), case.expected(inputs))
