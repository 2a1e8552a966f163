"""Folders as onnxruntime-genai lays them out: past and present become states of a cache."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models

import edgerelax
from edgerelax.frontends.onnx import load
from edgerelax.frontends.onnx.folders import load_genai
from edgerelax.ir.diagnostics import FormatError, InputError, UnsupportedError
from edgerelax.ir.evaluate import evaluate
from tests.frontends.language.test_cache import Sequences

HEADS, GROUPS, WIDTH, HIDDEN, VOCABULARY, CONTEXT, BLOCK = 4, 2, 16, 64, 40, 96, 32
RNG = np.random.default_rng(0)


class Graph:
    """Nodes and weights of a small decoder of two layers."""

    def __init__(
        self, *, mask_elsewhere: bool = False, windows: bool = False, tied: bool = False
    ) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.microsoft = {"domain": "com.microsoft"}
        self.windows = {k: {"local_window_size": 20 - k} for k in range(0 if windows else 1, 2)}
        self.lengths()
        x = (
            self.rows()
            if tied
            else self.add("Gather", self.weight("embedding", VOCABULARY, HIDDEN), "input_ids")
        )
        for layer in range(2):
            x = self.layer(x, layer)
        if mask_elsewhere:
            mask = self.add("Cast", "attention_mask", to=TensorProto.FLOAT)
            x = self.add("Add", x, self.add("ReduceSum", mask, keepdims=0))
        x = self.add(
            "SimplifiedLayerNormalization", x, self.weight("norm", HIDDEN), axis=-1, epsilon=1e-5
        )
        if tied:
            self.product(x, "head", VOCABULARY, output="logits")
        else:
            self.add("MatMul", x, self.weight("head", HIDDEN, VOCABULARY), output="logits")

    def add(self, op: str, *inputs: str, output: str = "", outputs: int = 1, **attrs) -> str:
        names = [output or f"{op}_{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, **attrs))
        return names[0]

    def weight(self, name: str, *shape: int) -> str:
        return self.stored(name, RNG.standard_normal(shape).astype(np.float32) * 0.3)

    def stored(self, name: str, data: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(data, name))
        return name

    def lengths(self) -> None:
        axes, last = self.stored("axes", np.array([1])), self.stored("last", np.array(1))
        one = self.stored("one", np.array([1]))
        total = self.add("ReduceSum", "attention_mask", axes, keepdims=0)
        self.ends = self.add("Cast", self.add("Sub", total, one), to=TensorProto.INT32)
        dims = self.add("Shape", "attention_mask")
        self.total = self.add("Cast", self.add("Gather", dims, last), to=TensorProto.INT32)

    def rows(self) -> str:
        """The embedding, whose codes, scales and zero points the head has."""
        dims = self.stored("dims", np.array([VOCABULARY, HIDDEN // 2]))
        flat = self.add("Reshape", "head.q", dims)
        given = [flat, "input_ids", "head.s", "head.z"]
        axes = {"gather_axis": 0, "quantize_axis": 1}
        return self.add("GatherBlockQuantized", *given, block_size=BLOCK, **axes, **self.microsoft)

    def product(self, x: str, name: str, rows: int, output: str = "") -> str:
        """By MatMulNBits, of 4 bits with zero points, or of 8 without."""
        bits, blocks = (4, HIDDEN // BLOCK) if "up" not in name else (8, HIDDEN // BLOCK)
        codes = RNG.integers(0, 256, (rows, blocks, BLOCK * bits // 8), dtype=np.uint8)
        scales = RNG.uniform(0.01, 0.03, rows * blocks).astype(np.float32)
        given = [x, self.stored(f"{name}.q", codes), self.stored(f"{name}.s", scales)]
        if bits == 4:
            zeros = RNG.integers(0, 256, rows * -(-blocks // 2), dtype=np.uint8)
            given.append(self.stored(f"{name}.z", zeros))
        sizes = {"K": HIDDEN, "N": rows, "bits": bits, "block_size": BLOCK}
        return self.add("MatMulNBits", *given, output=output, **sizes, **self.microsoft)

    def layer(self, x: str, k: int) -> str:
        y = self.add(
            "SimplifiedLayerNormalization", x, self.weight(f"{k}.n", HIDDEN), axis=-1, epsilon=1e-5
        )
        q = self.product(y, f"{k}.q", HEADS * WIDTH)
        keys, values = (self.product(y, f"{k}.{n}", GROUPS * WIDTH) for n in "kv")
        angles = np.arange(CONTEXT)[:, None] * (0.5 ** np.arange(WIDTH // 2))
        caches = [
            self.stored(f"{k}.{n}", f(angles).astype(np.float32))
            for n, f in (("cos", np.cos), ("sin", np.sin))
        ]
        past = [f"past_key_values.{k}.{n}" for n in ("key", "value")]
        attended = f"attended.{k}"
        self.nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [q, keys, values, *past, self.ends, self.total, *caches],
                [attended, f"present.{k}.key", f"present.{k}.value"],
                num_heads=HEADS,
                kv_num_heads=GROUPS,
                do_rotary=1,
                **self.windows.get(k, {}),
                **self.microsoft,
            )
        )
        x = self.add("Add", x, self.product(attended, f"{k}.o", HIDDEN))
        return self.add("Add", x, self.product(x, f"{k}.up", HIDDEN))

    def model(self) -> onnx.ModelProto:
        info, pasts = helper.make_tensor_value_info, []
        for k in range(2):
            for n in ("key", "value"):
                shape = ["batch", GROUPS, "past", WIDTH]
                pasts.append(info(f"past_key_values.{k}.{n}", TensorProto.FLOAT, shape))
        inputs = [
            info("input_ids", TensorProto.INT64, ["batch", "length"]),
            info("attention_mask", TensorProto.INT64, ["batch", "total"]),
            *pasts,
        ]
        outputs = [info("logits", TensorProto.FLOAT, ["batch", "length", VOCABULARY])]
        graph = helper.make_graph(self.nodes, "decoder", inputs, outputs, self.weights)
        domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=domains, ir_version=9)


def folder(path: Path, graph: Graph) -> Path:
    onnx.save(graph.model(), path / "model.onnx")
    decoder = {"filename": "model.onnx"}
    said = {"type": "llama", "context_length": CONTEXT, "vocab_size": VOCABULARY}
    config = {"model": {**said, "eos_token_id": [3], "bos_token_id": 1, "decoder": decoder}}
    (path / "genai_config.json").write_text(json.dumps(config))
    words = {f"w{k}": k for k in range(VOCABULARY)}
    Tokenizer(models.WordLevel(words, "w0")).save(str(path / "tokenizer.json"))
    return path


@pytest.mark.parametrize("windows", [False, True])
def test_windows_of_all_layers(tmp_path: Path, windows: bool) -> None:
    """The widest is the model's, if no layer sees all."""
    module = load_genai(folder(tmp_path, Graph(windows=windows)))
    assert module.attrs["language"]["window"] == (20 if windows else None)


def test_past_and_present_become_a_cache(tmp_path: Path) -> None:
    """Chunks and tokens over the cache give what the graph gives for the whole sequence."""
    path = folder(tmp_path, Graph(tied=True))
    tokens = RNG.integers(0, VOCABULARY, 37).tolist()
    plain = load(path / "model.onnx")
    none = {
        f"past_key_values.{k}.{n}": np.zeros((1, GROUPS, 0, WIDTH), np.float32)
        for k in range(2)
        for n in ("key", "value")
    }
    mask = np.ones((1, len(tokens)), np.int64)
    given = {"input_ids": np.array([tokens]), "attention_mask": mask, **none}
    wanted = evaluate(plain, given)["logits"][0]
    executable = edgerelax.compile(path, target="cpu", variants=("cpu",))
    language = executable.artifact.manifest.language
    assert language is not None and language.eos == [3] and language.context == CONTEXT
    names = [w.name for w in executable.artifact.manifest.weights]
    assert not any(w.bytes == HIDDEN * HIDDEN * 4 for w in executable.artifact.manifest.weights), (
        names
    )
    tables = [w for w in executable.artifact.manifest.weights if VOCABULARY in w.shape]
    assert sum(w.bytes for w in tables) < VOCABULARY * HIDDEN, tables
    with executable.session("cpu") as session:
        whole = session.run({"tokens": np.array([tokens])})["logits"][0]
        np.testing.assert_allclose(whole, wanted, rtol=1e-3, atol=1e-3)
        session.allocate({"slots": 64, "rows": 1})
        host, start = Sequences(session, [[2, 0, 1]]), 0
        for size in (20, 1, 15, 1):
            found = host.step(tokens[start : start + size])
            start += size
            np.testing.assert_allclose(found[0], wanted[start - 1], rtol=1e-3, atol=1e-3)


def test_how_keys_and_values_are_stored(tmp_path: Path) -> None:
    step = load_genai(folder(tmp_path, Graph()), cache="int8").funcs["step"]
    stored = {p.name: str(p.annotation.dtype) for p in step.params}
    assert (stored["keys.0"], stored["values.1"], stored["keys.1.scales"]) == ("i8", "i8", "f32")


def test_a_mask_that_serves_more_than_attention(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedError, match=r"Add.* reads 'ReduceSum.*depends on the past or its length"
    ):
        load_genai(folder(tmp_path, Graph(mask_elsewhere=True)))


def test_a_graph_without_a_past(tmp_path: Path) -> None:
    graph = Graph()
    for node in graph.nodes:
        if node.op_type == "GroupQueryAttention":
            del node.input[3:]
    with pytest.raises(UnsupportedError, match=r"input 'past_key_values.0.key' is read by nothing"):
        load_genai(folder(tmp_path, graph))


@pytest.mark.parametrize(
    "change,error,words",
    [
        ({"context_length": None}, InputError, "context_length"),
        ({"decoder": {"filename": "../model.onnx"}}, InputError, "leaves the folder"),
        ({"decoder": {"filename": "other.onnx"}}, (InputError, FormatError), "other.onnx"),
        ({"decoder": None}, InputError, "nothing of a model and its decoder"),
    ],
)
def test_what_a_config_may_say_wrongly(tmp_path: Path, change, error, words: str) -> None:
    path = folder(tmp_path, Graph())
    config = json.loads((path / "genai_config.json").read_text())
    config["model"] = {k: v for k, v in (config["model"] | change).items() if v is not None}
    (path / "genai_config.json").write_text(json.dumps(config))
    with pytest.raises(error, match=words):
        load_genai(path)
