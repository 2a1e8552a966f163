"""The section on language models of the bench's page."""

from collections.abc import Iterator, Mapping
from typing import Any

from scripts.benchmark.markdown import size, table
from scripts.benchmark.tables import milliseconds, ratio

Data = Mapping[str, Any]
OURS = "edgerelax"
HEAD = ("library", "prefill tokens/s", "ours / theirs, time", "decode tokens/s",
        "ours / theirs, time", "first token ms", "load ms", "memory", "launches a token",
        "main thread ms a step", "µs a launch", "tokens as in f32")  # fmt: skip


def language_section(language: Data) -> Iterator[str]:
    """Nothing where no language model was measured."""
    if not language:
        return
    yield "## Language models"
    yield (
        f"{language['model']}, greedily, keys and values in f32. Ours has the weights of the GGUF "
        "file as it quantised them; theirs are the same, dequantised to f32, and quantised anew to "
        f"int4 in blocks by onnxruntime-genai's builder. transformers.js {language['transformers']}"
        " and onnxruntime run the builder's graph, with fused attention; for the tokens of a "
        "prompt it makes all their logits, ours those of the last. llama.cpp reads the GGUF file "
        "itself, and makes the logits of the last token too. All take the same prompts in "
        "turn, each prompt computed whole; figures are medians over prompts. Time until the first "
        "token is that of the prompt and one token; loading is timed once. The main thread is that "
        "of the page, by its CPU time for a prompt and its tokens over their number, the prompt "
        "being a step like the others, and over all launches; on WebAssembly the kernels run "
        "there too, so that what a launch costs is not told apart. "
        "Natively memory is by how much the process grew."
    )
    for host, found in language["hosts"].items():
        prompt, generated = found["lengths"]
        yield f"### {found['title']}"
        yield f"{prompt} tokens of a prompt, {generated} generated, {found['rounds']} prompts."
        rows = []
        for name, data in found["contenders"].items():
            rows.append((name, *_row(data, host == "webgpu")))
        yield table(HEAD, rows)


def _row(data: Data, on_gpu: bool) -> list[str]:
    if data["failure"] is not None:
        return ["failed: " + data["failure"].replace("|", "/")[:80], *["-"] * (len(HEAD) - 2)]
    memory = data.get("resident_growth_bytes")
    if "wasm_bytes" in data:
        memory = data["wasm_bytes"] + data["gpu_peak_bytes"]
    launches, agreed = data["launches_per_token"], data["agreed"]
    worked = data.get("thread_us_per_launch")
    return [
        milliseconds(data["prefill_per_second"]),
        ratio(data["first_ratio"]),
        milliseconds(data["decode_per_second"]),
        ratio(data["token_ratio"]),
        milliseconds(data["first_median_ms"]),
        milliseconds(data["load_ms"]),
        size(memory),
        "?" if not launches else f"{launches:.0f}",
        milliseconds(data.get("thread_ms_per_step")),
        "-" if not on_gpu else "?" if worked is None else f"{worked:.1f}",
        "?" if agreed is None else f"{agreed} of {len(data['tokens'][0])}",
    ]
