"""A native engine: a process that loads a language model and generates greedily; JSON lines.

Run as `python -m scripts.benchmark.language_worker`; scripts/benchmark/language.py talks to it.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from edgerelax import api
from edgerelax.chat.engine import Sampling
from edgerelax.chat.paged import PagedEngine
from scripts.benchmark.worker import answer, resident_peak

CACHE_TOKENS = 512
Generate = Callable[[Sequence[int], int], Iterator[int]]
Request = Mapping[str, Any]


class Worker:
    """Answers requests; the model is loaded by the first."""

    def __init__(self) -> None:
        self.generate: Generate | None = None
        self.stats: Callable[[], Mapping[str, int]] = dict
        self.before = 0

    def open(self, request: Request) -> dict[str, Any]:
        """Load the model; importing the libraries is not counted."""
        self.before = resident_peak(afresh=True)
        begun = time.perf_counter()
        if request["library"] == "edgerelax":
            session = api.load(request["model"], request["device"], threads=1)
            language = session.artifact.manifest.language
            assert language is not None
            engine = PagedEngine(session, language, CACHE_TOKENS, texts=1)
            self.generate, self.stats = lambda *given: _ours(engine, *given), session.stats
        else:
            self.generate = RIVALS[request["library"]](request["model"])
        return {"milliseconds": (time.perf_counter() - begun) * 1e3}

    def tokens(self, request: Request) -> list[dict[str, Any]]:
        """Of each token its id, when it was there, and what was launched until then."""
        assert self.generate is not None
        launched = self.stats().get("dispatches")
        begun = time.perf_counter()
        found = []
        for token in self.generate(request["prompt"], request["limit"]):
            entry = {"id": token, "milliseconds": (time.perf_counter() - begun) * 1e3}
            if launched is not None:
                entry["launches"] = self.stats()["dispatches"] - launched
            found.append(entry)
        return found

    def facts(self, request: Request) -> dict[str, Any]:
        """How far the process grew since loading began, at its peak."""
        return {"resident_growth_bytes": resident_peak() - self.before}


def _ours(engine: PagedEngine, prompt: Sequence[int], limit: int) -> Iterator[int]:
    with engine.generate(prompt, Sampling(max_tokens=limit, temperature=0.0)) as stream:
        for token in stream:
            yield token.id
    if engine.load.reused:
        raise RuntimeError(f"{engine.load.reused} tokens of the prompt were in the cache")


def _onnxruntime(model: str) -> Generate:
    """The CPU provider on one thread; keys and values stay values of the runtime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    value = onnxruntime.OrtValue.ortvalue_from_numpy
    inputs = {spec.name: spec for spec in session.get_inputs()}
    width = json.loads((Path(model).parents[1] / "config.json").read_text())["head_dim"]
    pasts = [name for name in inputs if name.startswith("past_key_values")]
    names = ["logits", *(name.replace("past_key_values", "present") for name in pasts)]

    def generate(prompt: Sequence[int], limit: int) -> Iterator[int]:
        cache = {}
        for name in pasts:
            heads = inputs[name].shape[1]
            cache[name] = value(np.empty((1, heads, 0, width), np.float32))
        tokens, length = list(prompt), 0
        for _ in range(limit):
            length += len(tokens)
            feeds = {
                "input_ids": np.array([tokens], np.int64),
                "attention_mask": np.ones((1, length), np.int64),
                "position_ids": np.arange(length - len(tokens), length, dtype=np.int64)[None],
            }
            given = {name: value(array) for name, array in feeds.items() if name in inputs}
            logits, *present = session.run_with_ort_values(names, given | cache)
            cache = dict(zip(pasts, present, strict=True))
            tokens = [int(logits.numpy()[0, -1].argmax())]
            yield tokens[0]

    return generate


def _llama_cpp(model: str) -> Generate:
    """llama.cpp on one thread, of the GGUF file itself. ImportError where it was not built."""
    from llama_cpp import Llama

    engine = Llama(model, n_ctx=CACHE_TOKENS, n_threads=1, n_threads_batch=1, verbose=False)

    def generate(prompt: Sequence[int], limit: int) -> Iterator[int]:
        engine.reset()  # else it would take the prompt from its cache
        yield from islice(engine.generate(list(prompt), temp=0.0), limit)

    return generate


RIVALS: dict[str, Callable[[str], Generate]] = {
    "onnxruntime": _onnxruntime,
    "llama.cpp": _llama_cpp,
}


if __name__ == "__main__":
    answer(Worker())
