"""Sessions side by side and after failures, memory over many calls (web.md C 1-4, 7)."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest

import edgerelax.api as api
from edgerelax.hosts.session import Session
from edgerelax.hosts.wgpu import DeviceError, WgpuDevice
from edgerelax.ir.diagnostics import InputError
from edgerelax.sym import symbol
from tests.faults.hosts import HOSTS, N, calling
from tests.passes.programs import mlp, reshaped, softmax_of_sum

BOTH = pytest.mark.parametrize("host", HOSTS)


@cache
def model(name: str) -> api.Executable:
    return api.compile({"mlp": mlp, "softmax": softmax_of_sum, "reshaped": reshaped}[name]())


def rows(n: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(n).standard_normal((n, 16)).astype(np.float32)}


@BOTH
def test_two_sessions_at_once(host: str) -> None:
    """Each thread has its own session of another model; both give what they give alone."""
    with model("mlp").session(host) as a, model("reshaped").session(host) as b:
        x = {"x": np.ones((7, 6), np.float32)}
        alone_a, alone_b = a.run(rows(5))["y"], b.run(x)["s"]
        with ThreadPoolExecutor(2) as pool:
            many_a = [pool.submit(a.run, rows(5)) for _ in range(20)]
            many_b = [pool.submit(b.run, x) for _ in range(20)]
        for done in many_a:
            np.testing.assert_array_equal(done.result()["y"], alone_a)
        for done in many_b:
            np.testing.assert_array_equal(done.result()["s"], alone_b)


@BOTH
def test_one_session_from_many_threads(host: str) -> None:
    """Calls are queued; each gets the answer to its own question."""
    with model("mlp").session(host) as session:
        sizes = [1, 2, 3, 5, 8, 13, 21]
        alone = {n: session.run(rows(n))["y"] for n in sizes}
        with ThreadPoolExecutor(8) as pool:
            asked = [(n, pool.submit(session.run, rows(n))) for n in sizes * 6]
        for n, done in asked:
            np.testing.assert_array_equal(done.result()["y"], alone[n])


@BOTH
def test_sessions_opened_at_once(host: str) -> None:
    barrier = threading.Barrier(4)

    def open_and_run(n: int) -> np.ndarray:
        barrier.wait()
        with model("mlp").session(host) as session:
            return session.run(rows(n))["y"]

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(open_and_run, [3] * 4))
    for other in done[1:]:
        np.testing.assert_array_equal(other, done[0])


BAD = {
    "name": ({"z": np.ones((3, 16), np.float32)}, "unknown input 'z', missing 'x'"),
    "nothing": ({}, "missing 'x'"),
    "dtype": ({"x": np.ones((3, 16))}, "dtype float64, expected float32"),
    "rank": ({"x": np.ones((3, 16, 1), np.float32)}, "rank 3"),
    "fixed dim": ({"x": np.ones((3, 15), np.float32)}, "15 is not 16"),
    "too large": ({"x": np.ones((65, 16), np.float32)}, "at most 64"),
    "too small": ({"x": np.ones((0, 16), np.float32)}, "at least 1"),
}


@BOTH
@pytest.mark.parametrize("what", BAD)
def test_a_bad_input_poisons_nothing(host: str, what: str) -> None:
    inputs, words = BAD[what]
    with model("mlp").session(host) as session, model("mlp").session(host) as other:
        good = session.run(rows(4))["y"]
        for _ in range(2):
            with pytest.raises(InputError, match=words):
                session.run(inputs)
        np.testing.assert_array_equal(session.run(rows(4))["y"], good)
        np.testing.assert_array_equal(other.run(rows(4))["y"], good)


def test_an_input_that_has_no_room_leaves_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    with model("mlp").session("wgpu") as session:
        good = session.run(rows(4))["y"]
        with monkeypatch.context() as full, pytest.raises(DeviceError, match="no memory"):
            full.setattr(WgpuDevice, "_make_buffer", refused)
            session.run(rows(64))
        np.testing.assert_array_equal(session.run(rows(4))["y"], good)


def refused(*_: object) -> None:
    raise DeviceError("no memory is left")


@BOTH
def test_dims_that_contradict_name_both(host: str) -> None:
    with model("softmax").session(host) as session:
        with pytest.raises(InputError, match=r"input 'bias', dimension 0 \(m\).*(4.*5|5.*4)"):
            session.run({"x": np.ones((2, 5), np.float32), "bias": np.ones(4, np.float32)})
        session.run({"x": np.ones((2, 5), np.float32), "bias": np.ones(5, np.float32)})


@BOTH
def test_closed_sessions_refuse(host: str) -> None:
    session = model("mlp").session(host)
    session.close()
    session.close()
    with pytest.raises(InputError, match="closed"):
        session.run(rows(1))


def _held(session: Session) -> dict[str, int]:
    """What a session holds: bytes, buffers, lists; not how often it ran."""
    return {k: v for k, v in session.stats().items() if "bytes" in k or k == "buffers"}


@BOTH
@pytest.mark.parametrize("name", ["mlp", "reshaped", "softmax"])
def test_memory_does_not_grow(host: str, name: str) -> None:
    """Alternating shapes, many times over: after a first round of all sizes nothing is added."""
    columns = {"mlp": 16, "reshaped": 6, "softmax": 9}[name]

    def ask(n: int) -> None:
        inputs = {"x": np.ones((n, columns), np.float32)}
        if name == "softmax":
            inputs["bias"] = np.ones(columns, np.float32)
        session.run(inputs)

    with model(name).session(host) as session:
        for n in [*range(1, 65), *range(1, 65)]:
            ask(n)
        before = _held(session)
        for k in range(300):
            ask(1 + k * 37 % 64)
        assert _held(session) == before


@BOTH
def test_unbounded_sizes_reach_a_steady_state(host: str) -> None:
    """Slabs of sizes that nothing bounds grow to the largest size asked for, and no more."""
    executable = api.compile(calling("softmax", ((N, symbol("m")), np.float32), axis=-1))
    with executable.session(host) as session:
        for n in [*range(64, 0, -1), *range(1, 65)]:
            session.run({"x0": np.ones((n, 33), np.float32)})
        before = _held(session)
        for k in range(200):
            session.run({"x0": np.ones((1 + k * 37 % 64, 33), np.float32)})
        assert _held(session) == before


@BOTH
def test_sessions_give_their_memory_back(host: str) -> None:
    """Opening and closing again and again: the device's buffers go with the session."""
    for _ in range(20):
        with model("mlp").session(host) as session:
            session.run(rows(9))
        assert session.stats().get("buffers", 0) == 0
    gc.collect()
