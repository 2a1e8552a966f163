"""What scripts/verify-models --language does: SmolLM2 on every host against plain numpy.

The cases are the prompts of tests/e2e/smollm2.py, after each of which 64 tokens are written
greedily, and the passage whose perplexity is measured. What is found is added to
docs/verified-language.json case by case; what is there is not run again.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from edgerelax import api
from edgerelax.artifact.store import Artifact
from edgerelax.chat.engine import Sampling
from edgerelax.chat.paged import PagedEngine
from edgerelax.chat.text import Text
from scripts.benchmark.markdown import table
from tests.browser.harness import ROOT, chromium
from tests.browser.language_page import CACHE_TOKENS, writer
from tests.e2e.smollm2 import MODEL, PASSAGE, PROMPTS, TOKENS, Array, likeliest, perplexity
from tests.e2e.smollm2 import reference as reference_logits

RECORD = ROOT / "docs" / "verified-language.json"
NAME = "smollm2"
PERPLEXITY = "perplexity"
CASES = (*PROMPTS, PERPLEXITY)
TOLERANCE = 0.005
VARIANTS = ("software", "cpu-relaxed", "cpu")
INTRODUCTION = f"""## A language model

`scripts/verify-models --language` has SmolLM2-135M-Instruct write {TOKENS} tokens greedily after
five prompts, and compares each with the likeliest token by a plain numpy forward pass of the same
weights over all before it. The last row is the perplexity of a short passage, relative to that of
numpy; up to 5e-3 is equal. An empty field was not run.
"""
Record = dict[str, dict[str, Any]]
"""By case and host: how many `tokens` are `equal` to the reference's; or the `difference`."""
console = Console(highlight=False)


@dataclass(frozen=True, slots=True)
class Host:
    """The model on one: what it writes after a prompt, its logits [length, vocabulary]."""

    write: Callable[[Sequence[int]], list[int]]
    logits: Callable[[Sequence[int]], Array]


def verify(hosts: Sequence[str], names: Mapping[str, str], save: Callable[[], None]) -> int:
    """Run what is not on record yet; gives how many cases on record differ."""
    record = on_record()
    pending = {h: [c for c in CASES if h not in record.get(c, {})] for h in hosts}
    if any(pending.values()):
        folder = ROOT / "dist" / "verify" / NAME
        shutil.rmtree(folder, ignore_errors=True)
        api.compile(MODEL, variants=VARIANTS).save(folder)
        for host, cases in pending.items():
            for case, found in _run(folder, host, cases):
                console.print(f"{case} on {names[host]}: {cell(found)}")
                record = on_record()
                record.setdefault(case, {})[host] = found
                text = json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False)
                RECORD.write_text(text + "\n")
                save()
        shutil.rmtree(folder)
    return sum(differs(f) for case in record.values() for h, f in case.items() if h in hosts)


def on_record() -> Record:
    """What was found before."""
    found: Record = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
    return found


def _run(folder: Path, host: str, cases: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    if not cases:
        return
    tokenizer = Text.of(Artifact.open(folder)).tokenizer
    with opened(folder, host) as model:
        for case in cases:
            if case == PERPLEXITY:
                ids = tokenizer.encode(PASSAGE)
                own, wanted = model.logits(ids), reference_logits(ids)
                ratio = perplexity(own, ids) / perplexity(wanted, ids)
                yield case, {"difference": float(abs(ratio - 1)), "tokens": len(ids)}
            else:
                ids = tokenizer.encode(case)
                text = model.write(ids)
                pairs = zip(text, likeliest(ids, text), strict=True)
                equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
                yield case, {"tokens": len(text), "equal": equal}


@contextmanager
def opened(folder: Path, host: str) -> Iterator[Host]:
    """The artifact on a host, for texts and for whole sequences."""
    with ExitStack() as stack:
        if host in ("cpu", "wgpu"):
            session = stack.enter_context(api.load(folder, host))
            language = session.artifact.manifest.language
            assert language is not None
            engine = PagedEngine(session, language, CACHE_TOKENS, texts=1)

            def written(prompt: Sequence[int]) -> list[int]:
                sampling = Sampling(max_tokens=TOKENS, temperature=0.0)
                with engine.generate(prompt, sampling) as stream:
                    return [token.id for token in stream]

            yield Host(written, lambda ids: session.run({"tokens": np.array([ids])})["logits"][0])
            return
        site = folder.with_name("site")
        site.mkdir(exist_ok=True)
        browser = stack.enter_context(chromium(site))
        url = browser.publish(folder, NAME)

        def write(prompt: Sequence[int]) -> list[int]:
            if not writers:
                writers.append(stack.enter_context(writer(browser, url, host)))
            return writers[0].write(prompt, TOKENS)

        def logits(ids: Sequence[int]) -> Array:
            browser.open(NAME, url, backend=host)
            return browser.run(NAME, {"tokens": np.array([ids])})[0]["logits"][0]

        writers: list[Any] = []
        yield Host(write, logits)


def differs(found: Mapping[str, Any]) -> bool:
    """Whether it is not what the reference says."""
    if "difference" in found:
        return bool(found["difference"] > TOLERANCE)
    return bool(found["equal"] < TOKENS)


def cell(found: Mapping[str, Any] | None) -> str:
    """What the page tells of a case on a host."""
    if found is None:
        return ""
    if "difference" in found:
        return f"{found['difference']:.1e}"
    equal, tokens = found["equal"], found["tokens"]
    return "equal" if equal == TOKENS else f"{equal} of {tokens} equal"


def section(record: Record, names: Mapping[str, str]) -> str:
    """The part of docs/verified.md."""
    rows = [
        (f"“{case}”" if case in PROMPTS else case, *(cell(record[case].get(h)) for h in names))
        for case in CASES
        if case in record
    ]
    return f"{INTRODUCTION}\n{table(('after', *names.values()), rows)}\n"
