"""The generated files are fresh; the table is well formed; the shipped VM is the table's."""

from pathlib import Path

import pytest

from edgerelax.hosts.vm import Vm
from edgerelax.vm import isa


@pytest.mark.parametrize("path", isa.generated(), ids=lambda path: path.name)
def test_generated_files_are_fresh(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == isa.generated()[path]


def test_check_notices_a_stale_file(tmp_path: Path, monkeypatch, capsys) -> None:
    stale = tmp_path / "opcodes.h"
    stale.write_text("old")
    monkeypatch.setattr(isa, "generated", lambda: {stale: "new"})
    assert isa.main(["--check"]) == 1
    assert "stale" in capsys.readouterr().out
    assert isa.main(["--write"]) == 0
    assert isa.main(["--check"]) == 0
    assert isa.main([]) == 2


def test_table() -> None:
    assert len(isa.OPCODES) < 256
    assert len(isa.COMMANDS) < 256
    assert len(set(isa.OPERANDS.values())) == len(isa.OPERANDS)
    assert all(op.effect for op in isa.OPCODES.values())


def test_the_shipped_vm_has_this_version_and_no_imports() -> None:
    vm = Vm()
    assert vm.call("er_version") == isa.VERSION


def test_the_shipped_vm_is_small() -> None:
    import gzip
    from importlib import resources

    data = (resources.files("edgerelax.vm") / "vm.wasm").read_bytes()
    assert len(gzip.compress(data)) <= 40 << 10
