"""GGUF files that are cut off, changed or of another kind: each its own clear error."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerelax.frontends.gguf import load
from edgerelax.frontends.gguf.reading import File
from edgerelax.ir.diagnostics import EdgeRelaxError, InputError, UnsupportedError
from tests.frontends.language.test_gguf import VOCABULARY, WIDTH, write


def with_tokens(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens = ["t", "1", "2", *(f"t{k}" for k in range(VOCABULARY))]
    writer.add_token_list(tokens[:VOCABULARY])
    writer.add_token_types([1] * VOCABULARY)
    writer.add_array("tokenizer.ggml.merges", ["t 1", "t 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages }}")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("whole") / "model.gguf", layers=1, change=with_tokens)


@pytest.fixture(scope="module")
def header(whole: Path) -> int:
    """Bytes before the tensors' data."""
    return int(gguf.GGUFReader(str(whole)).data_offset)


def test_the_file_is_whole(whole: Path) -> None:
    assert load(whole).attrs["language"]["vocabulary"] == VOCABULARY


@given(part=st.floats(0, 1, exclude_max=True), inside=st.booleans())
@settings(max_examples=100, deadline=None)
def test_cut_off(whole: Path, header: int, part: float, inside: bool) -> None:
    """Anywhere, in the header as well as in the data, but for what pads the last tensor."""
    data, path = whole.read_bytes(), whole.with_name("cut.gguf")
    path.write_bytes(data[: int(part * (header if inside else len(data) - 32))])
    with pytest.raises(InputError, match=r"cut\.gguf is cut off"):
        File(path)


@given(
    places=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1)
)
@settings(max_examples=60, deadline=None)
def test_changed_bytes(whole: Path, header: int, places: list[tuple[float, int]]) -> None:
    """They may not matter, be values as good as others, or give an error of ours."""
    data, path = bytearray(whole.read_bytes()), whole.with_name("changed.gguf")
    for part, byte in places:
        data[int(part * header)] = byte
    path.write_bytes(data)
    try:
        load(path)
    except EdgeRelaxError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (b"GGUF\x01\0\0\0", "GGUF version 1; versions 2 and 3 are known"),
        (b"GGUF\x04\0\0\0", "GGUF version 4; versions 2 and 3 are known"),
        (b"GGUF\0\0\0\x03", "made for big-endian machines"),
        (b"GGML\x03\0\0\0", "no GGUF file: it starts with b'GGML'"),
        (b"GGUF", "cut off: it has no header"),
        (b"", "cut off: it has no header"),
    ],
)
def test_headers(tmp_path: Path, head: bytes, told: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(head + bytes(64 if len(head) == 8 else 0))
    with pytest.raises(InputError, match=told):
        load(path)


def in_list_of_tensors(whole: Path, name: str, change: Callable[[Any], None]) -> Path:
    """The file with a change to a tensor's entry: name, dims, type and offset, writable views."""
    path = whole.with_name("entry.gguf")
    path.write_bytes(whole.read_bytes())
    reader = gguf.GGUFReader(str(path), "r+")
    (tensor,) = [t for t in reader.tensors if t.name == name]
    change(tensor.field.parts)
    reader.data.flush()
    return path


@pytest.mark.parametrize("number", [4, 5, 36, 99, 2**31])
def test_an_unknown_type(whole: Path, number: int) -> None:
    """Types that were withdrawn, and some that never were."""

    def change(parts: Any) -> None:
        parts[4][0] = number

    path = in_list_of_tensors(whole, "blk.0.ffn_up.weight", change)
    told = rf"tensor blk\.0\.ffn_up\.weight is of type number {number}, which is not known"
    with pytest.raises(UnsupportedError, match=told):
        load(path)


def test_a_type_that_no_weights_have(whole: Path) -> None:
    def change(parts: Any) -> None:
        parts[4][0] = gguf.GGMLQuantizationType.I8

    path = in_list_of_tensors(whole, "token_embd.weight", change)
    with pytest.raises(UnsupportedError, match=r"tensor token_embd\.weight: .* I8 "):
        load(path)


@pytest.mark.parametrize(
    ("dims", "told"),
    [
        ([63, VOCABULARY], r"dims \[63, 50\]; blocks of its type are of 32"),
        ([WIDTH, 2**40], "is cut off: tensor token_embd.weight ends at byte"),
        ([2**62, 2**62], "is cut off: tensor token_embd.weight ends at byte"),
        ([32, VOCABULARY], r"makes embedding\.weight \[50, 32\]; .* make it \[50, 64\]"),
        ([WIDTH, 20], r"makes embedding\.weight \[20, 64\]; .* make it \[50, 64\]"),
    ],
)
def test_dims_that_cannot_be(whole: Path, dims: list[int], told: str) -> None:
    def change(parts: Any) -> None:
        parts[3][:] = dims

    with pytest.raises(InputError, match=told):
        load(in_list_of_tensors(whole, "token_embd.weight", change))


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("block_count", 7, "states 7 layers and has tensors of 1"),
        ("block_count", 2**40, "block_count is 1099511627776"),
        ("block_count", "many", "is 'many'"),
        ("embedding_length", 2**31 - 4, "536870911 features of a head turn"),
        ("attention.head_count", 3, "3 heads"),
        ("rope.freq_base", 0, "by powers of 0"),
        ("rope.dimension_count", 2**31 - 1, "2147483647 features of a head turn"),
        ("rope.dimension_count", 7, "7 features of a head turn, but they turn in pairs"),
        ("context_length", 1.5, "is 1.5"),
    ],
)
def test_sizes_that_cannot_be(tmp_path: Path, key: str, value: Any, told: str) -> None:
    kinds = {int: "uint64", float: "float32", str: "string"}

    def change(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0].pop(f"llama.{key}", None)
        getattr(writer, f"add_{kinds[type(value)]}")(f"llama.{key}", value)

    with pytest.raises(EdgeRelaxError, match=told):
        load(write(tmp_path / "model.gguf", layers=1, change=change))


def test_an_unknown_architecture_says_what_to_do(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", layers=1, architecture="mamba")
    with pytest.raises(UnsupportedError) as caught:
        load(path)
    text = str(caught.value)
    assert "model.gguf is a model of architecture mamba" in text
    assert "known are llama, " in text and "ARCHITECTURES" in text
