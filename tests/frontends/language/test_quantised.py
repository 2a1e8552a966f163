"""Language models whose weights are quantised at import: what runs, and what is told of it."""

import json
import re
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

import edgerelax
from edgerelax.frontends.nn.grouped import Grouped
from edgerelax.frontends.nn.quantise import quantise
from tests.cli.command import Command
from tests.frontends.language.reference import logits, read
from tests.frontends.language.test_folder import write as write_folder
from tests.frontends.language.test_gguf import HIDDEN, VOCABULARY, WIDTH, write

CHOICE = {"linear": "q4", "embedding": "q8", "head": "q4s-64"}


def scheme_of(name: str) -> str | None:
    match name:
        case "token_embd.weight":
            return CHOICE["embedding"]
        case "output.weight":
            return CHOICE["head"]
    return None if "norm" in name else CHOICE["linear"]


def test_logits_of_the_weights_that_are_stored(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", Type.Q8_0, tied=False)
    executable = edgerelax.compile(path, variants=("cpu",), quantise=CHOICE)
    weights, sizes = read(gguf.GGUFReader(str(path)))
    for name, data in weights.items():
        scheme = scheme_of(name)
        stored = data if scheme is None else quantise(data, scheme)
        weights[name] = stored.numbers() if isinstance(stored, Grouped) else stored
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (2, 9))
    found = executable.session("cpu").run({"tokens": tokens})["logits"]
    np.testing.assert_allclose(found, logits(weights, sizes, tokens), rtol=1e-4, atol=2e-4)

    told = {tensor.name: tensor for tensor in executable.report.quantised}
    assert len(told) == len(weights)
    assert told["embedding.weight"].scheme == "q8"
    assert told["head.weight"].scheme == "q4s-64"
    assert told["layers.0.mlp.up.weight"].bits == 5
    assert told["layers.1.attention.q.weight"].rms == pytest.approx(0.07, rel=0.3)
    assert told["norm.weight"].rms == 0
    held = executable.artifact.manifest.weights
    assert sum(w.bytes for w in held) < sum(8 * t.elements for t in told.values()) / 8


def test_a_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, hidden_size=32, intermediate_size=32)
    report = edgerelax.compile(folder, variants=("cpu",), quantise="q8").report
    schemes = {tensor.name: tensor.scheme for tensor in report.quantised}
    assert schemes["embedding.weight"] == schemes["layers.0.attention.q.weight"] == "q8"
    assert schemes["layers.1.mlp_norm.weight"] == "keep"


def test_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table, the worst tensors first; all of them for programs."""
    monkeypatch.chdir(tmp_path)
    cli = Command(tmp_path, capsys)
    write(cli.folder / "model.gguf", Type.Q8_0, layers=1)
    options = "export", "model.gguf", "-o", "new", "--target", "cpu", "--quantise", "linear=q4"
    done = cli(*options, "--json")
    assert done.code == 0
    told = json.loads(done.out)["quantised"]
    errors = [tensor["rms"] for tensor in told]
    assert errors == sorted(errors, reverse=True)
    assert {t["scheme"] for t in told if t["rms"]} == {"q4"}
    (table,) = [t for t in told if t["role"] == "embedding"]
    assert (table["scheme"], table["bits"], table["rms"]) == ("keep", 8.5, 0)
    assert sum(t["elements"] for t in told) == (
        VOCABULARY * WIDTH + 3 * WIDTH * (WIDTH + HIDDEN) + 3 * WIDTH
    )
    done = cli(*options)
    lines = done.err.splitlines()
    head = next(k for k, line in enumerate(lines) if line.split()[:1] == ["tensor"])
    assert lines[head + 1].split()[:3] == [told[0]["name"], "q4", "5.00"]
    assert re.search(r"\d\.\d\d bits per weight", lines[head - 1])
    assert lines[-1].strip() == "4 tensors are as the file has them"
    assert "no way to quantise is called 'q3'" in cli.refused(*options[:-1], "q3")
