"""The VM under the address and undefined-behaviour sanitizers, with damaged programs."""

import random
import shutil
import struct
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.vm.conftest import VM, WARNINGS, Run, native_sources
from tests.vm.samples import everything, keyed

GOOD = everything().encode()
KEYED = [keyed(device, late=True) for device in ("gpu", "cpu")]


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_compiles_without_warnings(compiler: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    for source in (*native_sources(), VM / "math.c"):
        command = [compiler, *WARNINGS, "-O1", "-fsyntax-only", str(source)]
        subprocess.run(command, check=True, timeout=300)


def _lines_are_worded(lines: list[str]) -> None:
    for line in lines:
        assert line.startswith(("opened", "refused 1: ", "refused 6: ")), line


def test_the_good_program(native: Run) -> None:
    (line,) = native([GOOD])
    assert line.count("0:ok") == 3, line  # the empty input is refused
    assert "0:x: dimension 0: 1 is more than 0" in line


def test_every_byte_flipped(native: Run) -> None:
    damaged = [
        good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :]
        for good in (GOOD, *KEYED)
        for at in range(len(good))
        for flip in (0x01, 0x80, 0xFF)
    ]
    lines = native(damaged)
    assert len(lines) == len(damaged)
    _lines_are_worded(lines)
    refused = sum(line.startswith("refused") for line in lines)
    assert 0.3 * len(lines) < refused < len(lines)


def test_every_truncation(native: Run) -> None:
    cut = [GOOD[:n] for n in range(len(GOOD))]
    relabelled = [
        data[:8] + struct.pack("<I", len(data)) + data[12:] for data in cut if len(data) >= 12
    ]
    longer = [GOOD + bytes(n) for n in (1, 4, 64)]
    lines = native(cut + relabelled + longer)
    assert all(line.startswith("refused 1: ") for line in lines)


def test_words_exchanged(native: Run) -> None:
    """Damage that a first look lets pass: the program's own words, and borderline ones."""
    rng = random.Random(7)
    edges = [0, 1, 2, 3, 4, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 0x10000, 256]
    programs = []
    for k in range(6000):
        good = (GOOD, *KEYED)[k % 3]
        words = list(struct.unpack(f"<{len(good) // 4}I", good))
        damaged = list(words)
        for _ in range(rng.choice((1, 1, 2, 3))):
            damaged[rng.randrange(3, len(words))] = rng.choice((*edges, rng.choice(words)))
        programs.append(struct.pack(f"<{len(words)}I", *damaged))
    lines = native(programs)
    assert len(lines) == len(programs)
    _lines_are_worded(lines)
    assert sum(line.startswith("opened") for line in lines) > 300


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.binary(max_size=400), min_size=1, max_size=30), st.booleans())
def test_random_bytes(native: Run, texts: list[bytes], with_head: bool) -> None:
    if with_head:
        texts = [GOOD[:8] + struct.pack("<I", len(t) + 12) + t for t in texts]
    _lines_are_worded(native(texts))


def test_each_allocation_failing(native: Run) -> None:
    lines = native([GOOD], stress=True)
    assert lines[0].startswith("refused 6: no memory")
    assert any("opened" in line and "no memory" in line for line in lines)
    assert lines[-1].count("0:ok") == 3
    assert len(lines) > 20


@pytest.mark.parametrize("good", KEYED, ids=("gpu", "cpu"))
def test_each_allocation_failing_in_regions(native: Run, good: bytes) -> None:
    lines = native([good], stress=True)
    assert any("opened" in line and "no memory" in line for line in lines)
    assert lines[-1].count("0:ok") == 4
