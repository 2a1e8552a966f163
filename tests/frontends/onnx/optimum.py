"""Tiny decoders as optimum exports them: made by transformers, traced by torch."""

import json
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper
from tokenizers import Tokenizer, models

VOCABULARY, CONTEXT, LAYERS = 48, 64, 2
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
}


def decoder(kind: str, attention: str, changes: dict[str, Any]) -> Any:
    """A model of transformers with random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**SIZES, **changes})
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.3)
    return model


def export(model: Any, path: Path, positions: bool) -> onnx.ModelProto:
    """The model with a past, with position_ids or without: optimum's names and dims."""
    import torch
    from transformers.cache_utils import DynamicCache

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens, mask, *rest):
            past = rest[positions:]
            found = self.model(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=rest[0] if positions else None,
                past_key_values=DynamicCache(list(zip(past[::2], past[1::2], strict=True))),
                use_cache=True,
            )
            layers = found.past_key_values.layers
            return found.logits, *(x for layer in layers for x in (layer.keys, layer.values))

    batch, length, past = 2, 3, 5
    tokens = torch.zeros(batch, past, dtype=torch.long)
    given = {
        "input_ids": tokens[:, :length],
        "attention_mask": torch.ones(batch, past + length, dtype=torch.long),
    }
    axes = {
        "input_ids": {0: "batch_size", 1: "sequence_length"},
        "attention_mask": {0: "batch_size", 1: "past_sequence_length + sequence_length"},
    }
    if positions:
        given["position_ids"] = torch.arange(past, past + length).expand(batch, length)
        axes["position_ids"] = axes["input_ids"]
    layers = model(tokens, use_cache=True).past_key_values.layers
    for k, layer in enumerate(layers):
        for name, x in (("key", layer.keys), ("value", layer.values)):
            given[f"past_key_values.{k}.{name}"] = x.detach()
            axes[f"past_key_values.{k}.{name}"] = {0: "batch_size", 2: "past_sequence_length"}
    outputs = ["logits", *(n.replace("past_key_values", "present") for n in given if "." in n)]
    torch.onnx.export(
        Flat().eval(), tuple(given.values()), str(path), input_names=list(given),
        output_names=outputs, dynamic_axes=axes, opset_version=17, dynamo=False,
    )  # fmt: skip
    return onnx.load(path)


def merged(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The graph as an arm of a branch on use_cache_branch; the other arm gives zeros."""
    inner = helper.make_graph(proto.graph.node, "with_past", [], proto.graph.output)
    zero = helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0])
    one = helper.make_tensor("one", TensorProto.INT64, [4], [1, 1, 1, 1])
    nodes = [helper.make_node("Constant", [], ["no_past.shape"], value=one)]
    outputs = []
    for info in proto.graph.output:
        name = f"{info.name}.no_past"
        nodes.append(helper.make_node("ConstantOfShape", ["no_past.shape"], [name], value=zero))
        outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    other = helper.make_graph(nodes, "without_past", [], outputs)
    names = [o.name for o in proto.graph.output]
    for info, node_name in zip(inner.output, names, strict=True):
        info.name = f"{node_name}.arm"
    for name in names:
        inner.node.append(helper.make_node("Identity", [f"{name}.inner"], [f"{name}.arm"]))
    for node in inner.node[: len(proto.graph.node)]:
        for places in (node.input, node.output):
            for k, name in enumerate(places):
                if name in names:
                    places[k] = f"{name}.inner"
    branch = helper.make_node(
        "If", ["use_cache_branch"], names, then_branch=inner, else_branch=other
    )
    flag = helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])
    graph = helper.make_graph(
        [branch], "merged", [*proto.graph.input, flag], proto.graph.output, proto.graph.initializer
    )
    return helper.make_model(graph, opset_imports=proto.opset_import, ir_version=9)


def folder(
    path: Path, proto: onnx.ModelProto, *names: str, kind: str = "llama", **more: Any
) -> Path:
    """config.json, tokenizer.json and ONNX models of these names, as repositories have them."""
    (path / "onnx").mkdir(parents=True)
    for name in names or ("model.onnx",):
        onnx.save(proto, path / "onnx" / name)
    (path / "config.json").write_text(
        json.dumps({**SIZES, "model_type": kind, "eos_token_id": 3, **more})
    )
    words = {f"w{k}": k for k in range(VOCABULARY)}
    Tokenizer(models.WordLevel(words, "w0")).save(str(path / "tokenizer.json"))
    return path
