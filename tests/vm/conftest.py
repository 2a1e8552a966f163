"""The native build of the VM, made once per session."""

import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
VM = ROOT / "edgerelax" / "vm"
DRIVER = Path(__file__).parent / "native" / "driver.c"
WARNINGS = [
    *("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow"),
    *("-Wstrict-prototypes", "-Wmissing-prototypes", "-Werror"),
]
WRAPPED = ("malloc", "calloc", "realloc", "aligned_alloc")

Run = Callable[..., list[str]]


def native_sources() -> list[Path]:
    """All that is not of the wasm build alone."""
    return [path for path in sorted(VM.glob("*.c")) if path.name not in ("wasm.c", "math.c")]


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs programs in the sanitized build; gives one line for each."""
    compiler = shutil.which("clang") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("native")
    driver = folder / "driver"
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    wraps = [f"-Wl,--wrap={name}" for name in WRAPPED]
    command = [compiler, "-std=c11", "-O1", "-g", *sanitizers, *wraps, f"-I{VM}"]
    command += [*map(str, native_sources()), str(DRIVER), "-o", str(driver)]
    subprocess.run(command, check=True, timeout=300)

    def run(programs: Sequence[bytes], *, stress: bool = False, budget: int = 20_000) -> list[str]:
        cases = folder / "cases"
        cases.write_bytes(b"".join(struct.pack("<I", len(p)) + p for p in programs))
        arguments = [str(driver), str(budget), str(int(stress)), str(cases)]
        done = subprocess.run(arguments, capture_output=True, timeout=300)
        lines = done.stdout.decode(errors="replace").split("\n")[:-1]
        report = done.stderr.decode(errors="replace")
        assert done.returncode == 0, f"after {len(lines)} programs:\n{report[-6000:]}"
        return lines

    return run
