"""GGUF files with the Llama architecture: small random ones against plain numpy, and bad ones."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

import edgerelax
from edgerelax.ir.diagnostics import InputError, UnsupportedError
from tests.frontends.language.reference import logits, read

LAYERS, WIDTH, HEADS, GROUPS, HIDDEN, VOCABULARY = 2, 64, 4, 2, 96, 50
SHAPES = {
    "attn_norm": (WIDTH,),
    "attn_q": (WIDTH, WIDTH),
    "attn_k": (WIDTH // HEADS * GROUPS, WIDTH),
    "attn_v": (WIDTH // HEADS * GROUPS, WIDTH),
    "attn_output": (WIDTH, WIDTH),
    "ffn_norm": (WIDTH,),
    "ffn_gate": (HIDDEN, WIDTH),
    "ffn_up": (HIDDEN, WIDTH),
    "ffn_down": (WIDTH, HIDDEN),
}
Change = Callable[[gguf.GGUFWriter], None]


def nothing(writer: gguf.GGUFWriter) -> None:
    """No change."""


def write(
    path: Path,
    kind: Type = Type.Q8_0,
    *,
    tied: bool = True,
    layers: int = LAYERS,
    architecture: str = "llama",
    without: str = "",
    change: Change = nothing,
) -> Path:
    """A model of random weights."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_block_count(layers)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500.0)
    writer.add_vocab_size(VOCABULARY)
    change(writer)

    def add(name: str, shape: tuple[int, ...]) -> None:
        if name == without:
            return
        if len(shape) == 1:
            writer.add_tensor(name, rng.uniform(0.5, 1.5, shape).astype(np.float32))
            return
        values = rng.standard_normal(shape).astype(np.float32) / np.float32(shape[1] ** 0.5)
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)

    add("token_embd.weight", (VOCABULARY, WIDTH))
    for k in range(layers):
        for name, shape in SHAPES.items():
            add(f"blk.{k}.{name}.weight", shape)
    add("output_norm.weight", (WIDTH,))
    if not tied:
        add("output.weight", (VOCABULARY, WIDTH))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("kind", "tied", "device"),
    [
        (Type.F32, True, "cpu"),
        (Type.Q8_0, False, "cpu"),
        (Type.Q4_1, True, "cpu"),
        (Type.Q4_1, True, "wgpu"),
    ],
)
def test_logits_equal_plain_numpy(tmp_path: Path, kind: Type, tied: bool, device: str) -> None:
    path = write(tmp_path / "model.gguf", kind, tied=tied)
    variant = "cpu" if device == "cpu" else "software"
    executable = edgerelax.compile(path, variants=(variant,), verify=True)
    session = executable.session(device)
    weights, sizes = read(gguf.GGUFReader(str(path)))
    rng = np.random.default_rng(1)
    for batch, length in ((1, 1), (3, 7), (1, 0), (2, 33)):
        tokens = rng.integers(0, VOCABULARY, (batch, length))
        found = session.run({"tokens": tokens})["logits"]
        wanted = logits(weights, sizes, tokens) if length else np.zeros((1, 0, VOCABULARY))
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-4)


def test_layers_share_their_kernels(tmp_path: Path) -> None:
    kernels, launches = [], []
    for layers in (2, 4):
        path = write(tmp_path / "model.gguf", Type.Q4_1, layers=layers)
        executable = edgerelax.compile(path, target="cpu", variants=("cpu",))
        (program,) = executable.artifact.manifest.programs
        kernels.append(len(program.cpu_kernels))
        launches.append(executable.report.launches["cpu"])
    assert kernels[0] == kernels[1]
    functions = 2  # of whole sequences, and over the cache
    assert launches[1] - launches[0] <= 2 * functions * 12


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF\x09\x00\x00\x00" + bytes(100))
    with pytest.raises(InputError, match="GGUF version 9; versions 2 and 3"):
        edgerelax.compile(path)
    with pytest.raises(InputError, match=r"none\.gguf: no such file"):
        edgerelax.compile(tmp_path / "none.gguf")
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(InputError, match="no GGUF file"):
        edgerelax.compile(path)


def test_sizes_that_contradict_the_tensors(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", change=lambda w: w.add_key_length(32))
    with pytest.raises(
        InputError, match=r"blk\.0\.attn_q\.weight makes .* \[64, 64\]; .* \[128, 64\]"
    ):
        edgerelax.compile(path)


def test_a_missing_tensor(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", without="blk.1.ffn_up.weight")
    with pytest.raises(InputError, match=r"1 tensors are missing: blk\.1\.ffn_up\.weight"):
        edgerelax.compile(path)


def test_a_tensor_that_nothing_uses(tmp_path: Path) -> None:
    """Such as a bias, in a file whose architecture has none: the model is another one."""

    def more(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("blk.0.attn_sinks.weight", np.zeros(HEADS, np.float32))

    path = write(tmp_path / "model.gguf", change=more)
    with pytest.raises(UnsupportedError, match=r"no part of this.*blk\.0\.attn_sinks\.weight"):
        edgerelax.compile(path)


def test_unknown_scaling_of_positions(tmp_path: Path) -> None:
    def scaled(writer: gguf.GGUFWriter) -> None:
        writer.add_string("llama.rope.scaling.type", "spiral")

    path = write(tmp_path / "model.gguf", change=scaled)
    with pytest.raises(UnsupportedError, match="rotary scaling 'spiral' is not known"):
        edgerelax.compile(path)
