"""Language models whose weights are quantised at import: what runs, and what is told of it."""

import json
import re
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

import edgerelax
from edgerelax.cli.export import SHOWN, quantisation_table
from edgerelax.frontends.gguf import load
from edgerelax.frontends.nn.grouped import Grouped
from edgerelax.frontends.nn.quantise import QuantisedTensor, Quantiser, quantise
from edgerelax.ir.evaluate import evaluate
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
    path = write(tmp_path / "model.gguf", Type.Q8_0, tied=False, layers=1)
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
    assert told["layers.0.attention.q.weight"].rms == pytest.approx(0.07, rel=0.3)
    assert told["norm.weight"].rms == 0
    held = executable.artifact.manifest.weights
    assert sum(w.bytes for w in held) < sum(8 * t.elements for t in told.values()) / 8


def test_a_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, hidden_size=32, intermediate_size=32, num_hidden_layers=1)
    report = edgerelax.compile(folder, variants=("cpu",), quantise="q8").report
    schemes = {tensor.name: tensor.scheme for tensor in report.quantised}
    assert schemes["embedding.weight"] == schemes["layers.0.attention.q.weight"] == "q8"
    assert schemes["layers.0.mlp_norm.weight"] == "keep"


EXPERTS, INNER = 3, 32
MIXTURE = {
    "token_embd": (VOCABULARY, WIDTH),
    "output_norm": (WIDTH,),
    "blk.0.attn_norm": (WIDTH,),
    "blk.0.attn_q": (WIDTH, WIDTH),
    "blk.0.attn_k": (WIDTH, WIDTH),
    "blk.0.attn_v": (WIDTH, WIDTH),
    "blk.0.attn_output": (WIDTH, WIDTH),
    "blk.0.attn_q_norm": (WIDTH // 2,),
    "blk.0.attn_k_norm": (WIDTH // 2,),
    "blk.0.ffn_norm": (WIDTH,),
    "blk.0.ffn_gate_inp": (EXPERTS, WIDTH),
    "blk.0.ffn_gate_exps": (EXPERTS, INNER, WIDTH),
    "blk.0.ffn_up_exps": (EXPERTS, INNER, WIDTH),
    "blk.0.ffn_down_exps": (EXPERTS, WIDTH, INNER),
}


def write_mixture(path: Path, packed: bool) -> Path:
    """A layer of experts in three axes: as Q8_0, or the same numbers as f32."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(str(path), "qwen3moe")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(2)
    writer.add_expert_feed_forward_length(INNER)
    for name, shape in MIXTURE.items():
        data = rng.standard_normal(shape).astype(np.float32) / np.float32(shape[-1] ** 0.5)
        if len(shape) == 3:
            data = gguf.quantize(data, Type.Q8_0)
            kind = Type.Q8_0 if packed else Type.F32
            data = data if packed else gguf.dequantize(data, Type.Q8_0)
            writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_experts(tmp_path: Path) -> None:
    """They stay in groups, or get those of linear layers; the router stays as it is."""
    packed, plain = (write_mixture(tmp_path / f"{k}.gguf", k) for k in (True, False))
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (2, 5))
    found, wanted = (evaluate(load(path), {"tokens": tokens})["logits"] for path in (packed, plain))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    quantiser = Quantiser.of("linear=q4")
    close = evaluate(load(packed, quantiser=quantiser), {"tokens": tokens})["logits"]
    assert 0 < np.abs(close - wanted).max() < np.abs(wanted).max() / 2
    schemes = {tensor.name: tensor.scheme for tensor in quantiser.tensors}
    assert schemes["layers.0.experts.down.weight"] == "q4"
    assert schemes["layers.0.experts.router.weight"] == "keep"


def test_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table, the worst tensors first; all of them for programs."""
    monkeypatch.chdir(tmp_path)
    cli = Command(tmp_path, capsys)
    write(cli.folder / "model.gguf", Type.Q8_0, layers=1)
    options = "export", "model.gguf", "-o", "new", "--variant", "cpu", "--quantise", "linear=q4"
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
    tensors = [QuantisedTensor(**{k: v for k, v in t.items() if k != "bits"}) for t in told]
    lines = quantisation_table(tensors[::-1] * 3).splitlines()
    assert re.search(r"\d\.\d\d bits per weight", lines[0])
    assert lines[2].split()[:3] == [told[0]["name"], "q4", "5.00"]
    assert len(lines) == 2 + SHOWN + 2
    assert lines[-2].strip() == "… and 9 more, all with --json"
    assert lines[-1].strip() == "12 tensors are as the file has them"
    assert "no way to quantise is called 'q3'" in cli.refused(*options[:-1], "q3")
