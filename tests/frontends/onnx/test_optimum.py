"""Decoders of optimum's layout over a cache: as transformers computes them, however texts come."""

import copy
import hashlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import edgerelax
from edgerelax.frontends.onnx import load
from edgerelax.frontends.onnx.decoder_graph import DecoderGraph
from edgerelax.frontends.onnx.folders import load_optimum
from edgerelax.frontends.onnx.language import OnnxDecoder
from edgerelax.frontends.onnx.lengths import Mask, Positions
from edgerelax.frontends.onnx.reading import read_model
from edgerelax.ir.diagnostics import InputError, UnsupportedError
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import CallTIR, Module, module_states, states
from edgerelax.ir.rewrite import all_bindings
from tests.frontends.language.test_cache import Sequences, close
from tests.frontends.onnx.optimum import (
    CONTEXT,
    LAYERS,
    SIZES,
    VOCABULARY,
    decoder,
    export,
    folder,
    merged,
)

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

CASES = {
    "llama": ("llama", "sdpa", {}, True),
    "gpt2": ("gpt2", "sdpa", {}, False),
    "mistral": ("mistral", "eager", {"sliding_window": 9}, True),
    "bloom": ("bloom", "eager", {}, False),
}
"""Grouped queries; positions counted from the past, learned; a window; no positions but ALiBi."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, onnx.ModelProto]:
    model = decoder(*CASES["llama"][:3])
    return model, export(model, tmp_path_factory.mktemp("llama") / "model.onnx", True)


def wanted(model: Any, tokens: list[int]) -> np.ndarray:
    with torch.no_grad():
        found: np.ndarray = model(torch.tensor([tokens])).logits[0].numpy()
    return found


class Interpreter:
    """What a session gives for a language module, its functions played in numpy."""

    def __init__(self, module: Module, slots: int, rows: int) -> None:
        self.module = module
        sizes = {"slots": slots, "rows": rows}
        self.kept = {
            state.name: np.zeros(
                [d.eval(sizes) for d in state.annotation.dims], state.annotation.dtype.numpy
            )
            for state in module_states(module.funcs.values())
        }

    def run(self, inputs: dict[str, np.ndarray], func: str = "main") -> dict[str, np.ndarray]:
        own = [s.name for s in states(self.module.funcs[func])]
        found = evaluate(self.module, {**inputs, **{n: self.kept[n] for n in own}}, func)
        self.kept.update((name, found.pop(name)) for name in own)
        return found


def check(session: Any, model: Any) -> None:
    """Whole texts, and three of different lengths in chunks and tokens, against transformers."""
    texts = [np.random.default_rng(n).integers(0, VOCABULARY, n).tolist() for n in (36, 4, 20)]
    references = [wanted(model, text) for text in texts]
    close(session.run({"tokens": np.array(texts[2:])})["logits"][0], references[2])
    host, at = Sequences(session, [[2, 0, 1], [5], [3, 4]]), [0, 0, 0]
    for sizes in ((20, 1, 5), (1, 1, 1), (15, 2, 14)):
        parts = [t[a : a + n] for t, a, n in zip(texts, at, sizes, strict=True)]
        found = host.step(*parts)
        at = [a + n for a, n in zip(at, sizes, strict=True)]
        for row, reference, end in zip(found, references, at, strict=True):
            close(row, reference[end - 1])


@pytest.mark.parametrize("case", [c for c in CASES if c != "llama"])
def test_exports_over_a_cache(tmp_path: Path, case: str) -> None:
    kind, attention, changes, positions = CASES[case]
    model = decoder(kind, attention, changes)
    proto = export(model, tmp_path / "exported.onnx", positions)
    module = load_optimum(folder(tmp_path / case, proto, kind=kind))
    assert module.attrs["language"]["window"] == changes.get("sliding_window")
    check(Interpreter(module, 128, 3), model)


def test_a_window_of_some_layers_is_none_of_the_model(tmp_path: Path) -> None:
    windows = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
    proto = export(decoder("qwen2", "eager", windows), tmp_path / "exported.onnx", True)
    found = OnnxDecoder(read_model(copy.deepcopy(proto)), CONTEXT)
    masks = {k.window for k in found.lengths.known.values() if isinstance(k, Mask)}
    assert masks == {None, 9}
    module = load_optimum(folder(tmp_path / "qwen2", proto, kind="qwen2"))
    assert module.attrs["language"]["window"] is None


def test_a_merged_decoder_in_f16(tmp_path: Path, llama: tuple[Any, onnx.ModelProto]) -> None:
    """The arm with a past is taken; weights of 16 bits are computed with in f32."""
    model, proto = llama
    model = copy.deepcopy(model)
    for weight in model.parameters():
        weight.data = weight.data.half().float()
    path = folder(tmp_path / "merged", merged(halved(proto)), "decoder_model_merged.onnx")
    executable = edgerelax.compile(path, target="cpu", variants=("cpu",))
    passes = executable.report.passes
    assert passes["fuse_attention"]["done"]["attention fused"] == 2 * LAYERS
    assert passes["cpu-plan_memory"]["done"]["state updated in place"] == 2 * LAYERS + 7
    with executable.session("cpu") as session:
        session.allocate({"slots": 128, "rows": 3})
        check(session, model)


def halved(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Weights and pasts of 16 bits."""
    half = copy.deepcopy(proto)
    for stored in half.graph.initializer:
        if stored.data_type == TensorProto.FLOAT:
            data = numpy_helper.to_array(stored).astype(np.float16)
            stored.CopyFrom(numpy_helper.from_array(data, stored.name))
    for value in half.graph.input:
        if value.name.startswith("past"):
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return half


def test_products_with_packed_weights(tmp_path: Path, llama: tuple[Any, onnx.ModelProto]) -> None:
    """MatMulNBits keeps its weights as they are; their scales are of 16 bits."""
    model, proto = llama
    model, proto = copy.deepcopy(model), copy.deepcopy(proto)
    pack(proto, model)
    path = folder(tmp_path / "packed", proto, "model_q4f16.onnx")
    module = load_optimum(path)
    check(Interpreter(module, 128, 3), model)
    calls = [b.value for f in module.funcs.values() for b in all_bindings(f.body)]
    unpacked = [c for c in calls if isinstance(c, CallTIR)]
    assert len(unpacked) == 2 * (6 * LAYERS + 1)


def pack(proto: onnx.ModelProto, model: Any) -> None:
    """Products with weights of 32 rows as MatMulNBits, the model's weights rounded as they are."""
    stored = {t.name: t for t in proto.graph.initializer}
    parameters = [p for p in model.parameters() if p.dim() == 2]
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    for node in proto.graph.node:
        weight = stored.get(node.input[1]) if node.op_type == "MatMul" else None
        if weight is None or weight.dims[0] != 32:
            continue
        data = numpy_helper.to_array(weight).T
        scales = (np.abs(data).max(1) / 7).astype(np.float16)
        codes = np.clip(np.rint(data / scales[:, None].astype(np.float32)), -8, 7).astype(np.int8)
        rounded = codes * scales[:, None].astype(np.float32)
        for parameter in parameters:
            if parameter.shape == data.shape and np.array_equal(parameter.detach().numpy(), data):
                parameter.data = torch.from_numpy(rounded)
        pairs = (codes + 8).astype(np.uint8).reshape(len(data), 1, 16, 2)
        packed = pairs[..., 0] | pairs[..., 1] << 4
        name = node.input[1]
        made = [numpy_helper.from_array(packed, f"{name}.q")]
        made.append(numpy_helper.from_array(scales, f"{name}.s"))
        proto.graph.initializer.extend(made)
        node.op_type, node.domain = "MatMulNBits", "com.microsoft"
        node.input[1] = f"{name}.q"
        node.input.append(f"{name}.s")
        sizes = {"K": 32, "N": len(data), "bits": 4, "block_size": 32}
        node.attribute.extend(helper.make_attribute(*item) for item in sizes.items())


def test_what_is_recognised(llama: tuple[Any, onnx.ModelProto]) -> None:
    found = OnnxDecoder(read_model(copy.deepcopy(llama[1])), CONTEXT)
    kinds = {type(known) for known in found.lengths.known.values()}
    assert {Mask, Positions} <= kinds
    assert found.split != "logits"  # logits of the last token alone are computed in a step
    assert [(c.groups, c.key_width) for c in found.caches] == [(2, 8)] * LAYERS


def test_which_keys_and_values_are_one_layers(llama: tuple[Any, onnx.ModelProto]) -> None:
    """By numbers in their names, in whatever order they come; else by the operator."""
    proto = copy.deepcopy(llama[1])
    inputs = sorted(proto.graph.input, key=lambda i: (i.name.endswith("value"), i.name))
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    pasts = DecoderGraph(read_model(proto)).pasts
    found = {name: (past.layer, past.name) for name, past in pasts.items()}
    assert found["past_key_values.1.key"] == (1, "keys")
    assert found["past_key_values.0.value"] == (0, "values")
    assert len(set(found.values())) == 2 * LAYERS
    proto = attending("MultiHeadAttention", num_heads=4, unidirectional=1)
    for k, name in enumerate(("before", "earlier")):
        proto.graph.input[k + 1].name = name
        proto.graph.node[4].input[6 + k] = name
    pasts = DecoderGraph(read_model(proto)).pasts
    assert [(n, p.name) for n, p in pasts.items()] == [("before", "keys"), ("earlier", "values")]


def test_which_of_several_files(tmp_path: Path, llama: tuple[Any, onnx.ModelProto]) -> None:
    path = folder(tmp_path / "several", llama[1], "model.onnx", "model_q4.onnx")
    with pytest.raises(InputError, match=r"2 ONNX models: onnx/model.onnx, onnx/model_q4.onnx"):
        load_optimum(path)
    with pytest.raises(InputError, match="no ONNX model 'model_q8'"):
        load_optimum(path, file="model_q8")
    language = load_optimum(path, file="model_q4").attrs["language"]
    assert (language["architecture"], language["context"]) == ("llama", CONTEXT)
    onnx.save(llama[1], path / "model.onnx")
    with pytest.raises(InputError, match=r"'model' is 2 ONNX models: onnx/model.onnx, model.onnx"):
        load_optimum(path, file="model")
    language = load_optimum(path, {"length": (1, 32)}, file="onnx/model.onnx").attrs["language"]
    assert language["context"] == 32
    with pytest.raises(InputError, match=f"up to {CONTEXT + 1}; it ends at {CONTEXT}"):
        load_optimum(path, {"length": (1, CONTEXT + 1)}, file="model_q4")
    with pytest.raises(InputError, match=r"for folders with config\.json and ONNX models"):
        edgerelax.compile(path / "onnx" / "model.onnx", file="model.onnx")


def test_the_source_is_all_files_that_were_read(tmp_path: Path) -> None:
    path = folder(tmp_path / "sources", attending("Attention", **ATTENTION["Attention"]), "a.onnx")
    (path / "onnx" / "other.onnx").write_bytes(b"")
    (path / "model.safetensors").write_bytes(b"")
    proto = onnx.load(path / "onnx" / "a.onnx")
    external = {"all_tensors_to_one_file": True, "location": "a.data", "size_threshold": 0}
    onnx.save(proto, path / "onnx" / "a.onnx", save_as_external_data=True, **external)
    made = edgerelax.compile(path, file="a", target="cpu", variants=("cpu",))
    names = ("config.json", "onnx/a.data", "onnx/a.onnx", "tokenizer.json")
    digests = [hashlib.sha256((path / name).read_bytes()).hexdigest() for name in names]
    listed = "".join(f"{d}  {name}\n" for d, name in zip(digests, names, strict=True))
    assert made.artifact.manifest.source.sha256 == hashlib.sha256(listed.encode()).hexdigest()


ATTENTION = {
    "MultiHeadAttention": {"num_heads": 4, "unidirectional": 1},
    "Attention": {"q_num_heads": 4, "kv_num_heads": 4, "is_causal": 1},
}


def attending(operator: str, **attributes: Any) -> onnx.ModelProto:
    """A layer that attends by one operator with a past beside it, and its head."""
    rng, width = np.random.default_rng(0), 32
    info, made = helper.make_tensor_value_info, helper.make_node
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in (
            ("embedding", (VOCABULARY, width)),
            *((n, (width, width)) for n in "qkv"),
            ("head", (width, VOCABULARY)),
        )
    ]
    microsoft = operator == "MultiHeadAttention"
    pasts = ["past_key_values.0.key", "past_key_values.0.value"]
    gap = ["", "", ""] if microsoft else [""]
    nodes = [
        made("Gather", ["embedding", "input_ids"], ["x"]),
        *(made("MatMul", ["x", n], [f"x{n}"]) for n in "qkv"),
        made(
            operator, ["xq", "xk", "xv", *gap, *pasts], ["y", "present.0.key", "present.0.value"],
            domain="com.microsoft" if microsoft else "", **attributes,
        ),
        made("MatMul", ["y", "head"], ["logits"]),
    ]  # fmt: skip
    inputs = [info("input_ids", TensorProto.INT64, ["batch", "length"])]
    inputs += [info(n, TensorProto.FLOAT, ["batch", 4, "past", width // 4]) for n in pasts]
    outputs = [info("logits", TensorProto.FLOAT, ["batch", "length", VOCABULARY])]
    outputs += [info(f"present.0.{n}", TensorProto.FLOAT, None) for n in ("key", "value")]
    graph = helper.make_graph(nodes, "attending", inputs, outputs, weights)
    domains = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=11)


@pytest.mark.parametrize("operator", ATTENTION)
def test_operators_with_a_past(tmp_path: Path, operator: str) -> None:
    proto = attending(operator, **ATTENTION[operator])
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, 37)
    none = {f"past_key_values.0.{n}": np.zeros((1, 4, 0, 8), np.float32) for n in ("key", "value")}
    reference = evaluate(load(copy.deepcopy(proto)), {"input_ids": tokens[None], **none})
    module = load_optimum(folder(tmp_path / operator, proto))
    host, start = Sequences(Interpreter(module, 64, 1), [[2, 0, 1]]), 0
    for size in (20, 1, 16):
        (found,) = host.step(tokens[start : start + size].tolist())
        start += size
        close(found, reference["logits"][0, start - 1])


class Older:
    """A layer as older exports wrote it: heads split, positions and a mask made of the lengths."""

    def __init__(self, mask: str) -> None:
        self.rng, self.at = np.random.default_rng(0), itertools.count()
        self.weights: list[onnx.TensorProto] = []
        self.nodes: list[onnx.NodeProto] = []
        self.length = self.dim("input_ids", 1)
        self.past = self.dim("past.0.key", 2)
        scores, v = self.scores()
        scores = self.triangle(scores) if mask == "triangle" else self.square(scores)
        y = self.made(
            "Transpose",
            self.made("MatMul", self.made("Softmax", scores, axis=-1), v),
            perm=[0, 2, 1, 3],
        )
        y = self.made("Reshape", y, self.stored([0, 0, 32]))
        self.made("MatMul", y, self.weight(32, VOCABULARY), to="logits")

    def stored(self, data: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(data), f"w{next(self.at)}"))
        return str(self.weights[-1].name)

    def weight(self, *shape: int) -> str:
        return self.stored(self.rng.standard_normal(shape).astype(np.float32))

    def made(self, op: str, *given: str, to: str = "", **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, given, [to or f"n{next(self.at)}"], **attributes))
        return str(self.nodes[-1].output[0])

    def dim(self, name: str, k: int) -> str:
        return self.made("Gather", self.made("Shape", name), self.stored(k), axis=0)

    def column(self, name: str, axis: int = 0) -> str:
        return self.made("Unsqueeze", name, self.stored([axis]))

    def scores(self) -> tuple[str, str]:
        """Queries times keys, and values; positions are learned, counted from the past's length."""
        total = self.made("Add", self.length, self.past)
        steps = self.column(self.made("Range", self.past, total, self.stored(1)))
        x = self.made("Gather", self.weight(VOCABULARY, 32), "input_ids")
        x = self.made("Add", x, self.made("Gather", self.weight(CONTEXT, 32), steps))
        split = self.stored([0, -1, 4, 8])
        parts = [self.made("MatMul", x, self.weight(32, 32)) for _ in range(3)]
        parts = [self.made("Reshape", part, split) for part in parts]
        q, k, v = (self.made("Transpose", part, perm=[0, 2, 1, 3]) for part in parts)
        self.keys = self.made("Concat", "past.0.key", k, to="present.0.key", axis=2)
        v = self.made("Concat", "past.0.value", v, to="present.0.value", axis=-2)
        return self.made("MatMul", q, self.made("Transpose", self.keys, perm=[0, 1, 3, 2])), v

    def triangle(self, scores: str) -> str:
        """Masked by a triangle for all positions, cut where the new tokens are."""
        keys = self.dim(self.keys, 2)
        first = self.made("Sub", keys, self.dim(scores, 2))
        rows, columns = self.column(first), self.column(keys)
        seen = self.stored(np.tril(np.ones((1, 1, CONTEXT, CONTEXT), bool)))
        seen = self.made("Slice", seen, rows, columns, self.stored([2]))
        seen = self.made("Slice", seen, self.stored([0]), columns, self.stored([3]))
        return self.made("Where", seen, scores, self.stored(np.float32(-1e9)))

    def square(self, scores: str) -> str:
        """Masked by a square of new tokens beside zeros for the earlier ones."""
        new = self.made("Range", self.stored(0), self.length, self.stored(1))
        later = self.made("Less", self.column(new, 1), self.column(new))
        hidden, shown = self.stored(np.float32(-3.4e38)), self.stored(np.float32(0))
        square = self.made("Where", later, hidden, shown)
        sizes = self.made("Concat", self.column(self.length), self.column(self.past), axis=0)
        wide = self.made("Concat", self.made("ConstantOfShape", sizes), square, axis=1)
        return self.made("Add", scores, self.made("Unsqueeze", wide, self.stored([0, 1])))

    def model(self) -> onnx.ModelProto:
        info = helper.make_tensor_value_info
        inputs = [info("input_ids", TensorProto.INT64, ["batch", "length"])]
        outputs = [info("logits", TensorProto.FLOAT, ["batch", "length", VOCABULARY])]
        for name in ("key", "value"):
            inputs.append(info(f"past.0.{name}", TensorProto.FLOAT, ["batch", 4, "past", 8]))
            outputs.append(info(f"present.0.{name}", TensorProto.FLOAT, None))
        graph = helper.make_graph(self.nodes, "older", inputs, outputs, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("mask", ["triangle", "square"])
def test_masks_and_positions_of_older_exports(tmp_path: Path, mask: str) -> None:
    proto = Older(mask).model()
    none = {f"past.0.{n}": np.zeros((1, 4, 0, 8), np.float32) for n in ("key", "value")}
    plain = load(copy.deepcopy(proto))
    texts = [np.random.default_rng(n).integers(0, VOCABULARY, n) for n in (36, 4)]
    wanted = [evaluate(plain, {"input_ids": t[None], **none})["logits"][0] for t in texts]
    module = load_optimum(folder(tmp_path / mask, proto))
    host = Sequences(Interpreter(module, 128, 2), [[2, 0, 1], [5]])
    for start, end in (((0, 0), (20, 1)), ((20, 1), (21, 2)), ((21, 2), (36, 4))):
        found = host.step(*(t[a:b].tolist() for t, a, b in zip(texts, start, end, strict=True)))
        for row, logits, last in zip(found, wanted, end, strict=True):
            close(row, logits[last - 1])


def test_what_cannot_be_turned(tmp_path: Path, llama: tuple[Any, onnx.ModelProto]) -> None:
    """Each error says which node or input, and why."""

    def tried(change: Any) -> None:
        proto = copy.deepcopy(llama[1])
        change(proto.graph)
        OnnxDecoder(read_model(proto), CONTEXT)

    def unjoined(graph: onnx.GraphProto) -> None:
        node = next(n for n in graph.node if "present.1.key" in n.output)
        node.input[0], node.input[1] = node.input[1], node.input[0]

    with pytest.raises(UnsupportedError, match=r"input 'past_key_values.1.key' is read by"):
        tried(unjoined)

    def another_output(graph: onnx.GraphProto) -> None:
        graph.node.append(helper.make_node("Neg", ["present.0.key"], ["other"]))
        graph.output.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, None))

    with pytest.raises(UnsupportedError, match="output 'other', made by Neg"):
        tried(another_output)

    with pytest.raises(UnsupportedError, match="embeddings: part of a model that reads more"):
        tried(lambda graph: setattr(graph.input[0], "name", "inputs_embeds"))


def test_attention_that_no_mask_hides_anything_from(tmp_path: Path) -> None:
    proto = attending("MultiHeadAttention", num_heads=4)
    with pytest.raises(UnsupportedError, match="no causal mask"):
        load_optimum(folder(tmp_path / "bare", proto))


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_encoders_make_vectors(tmp_path: Path, kind: str) -> None:
    """The mean of what transformers gives for a text alone, padding beside it or not."""
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SIZES, pad_token_id=1, type_vocab_size=1)
    model = AutoModel.from_config(config, attn_implementation="eager").eval()
    path = folder(tmp_path / kind, onnx.ModelProto(), kind=kind, pad_token_id=1)
    sizes = {0: "batch_size", 1: "sequence_length"}
    tokens = torch.full((2, 5), 7)

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens, mask):
            return self.model(input_ids=tokens, attention_mask=mask).last_hidden_state

    torch.onnx.export(
        Flat().eval(), (tokens, torch.ones_like(tokens)), str(path / "onnx" / "model.onnx"),
        input_names=["input_ids", "attention_mask"], output_names=["last_hidden_state"],
        dynamic_axes={"input_ids": sizes, "attention_mask": sizes, "last_hidden_state": sizes},
        opset_version=17, dynamo=False,
    )  # fmt: skip
    module = load_optimum(path)
    assert module.attrs["language"]["context"] == (CONTEXT if kind == "bert" else CONTEXT - 2)
    texts = [np.random.default_rng(n).integers(5, VOCABULARY, n) for n in (9, 4)]
    padded = np.stack([np.pad(t, (0, 9 - len(t)), constant_values=1) for t in texts])
    given = {"tokens": padded, "lengths": np.array([9, 4])}
    found = evaluate(module, given, "embed")["embeddings"]
    for row, text in zip(found, texts, strict=True):
        with torch.no_grad():
            mean = model(torch.tensor(text[None])).last_hidden_state[0].mean(0).numpy()
        close(row, mean / np.linalg.norm(mean))
    with pytest.raises(InputError, match="no keys and values"):
        load_optimum(path, cache="f16")
