"""SmolLM2-135M-Instruct on wgpu begins its text as plain numpy does.

All prompts to the end, where a CPU plays the GPU: scripts/verify-models --language.
"""

from pathlib import Path

import edgerelax
from edgerelax.chat.engine import Sampling
from edgerelax.chat.paged import PagedEngine
from edgerelax.chat.text import Text
from tests.e2e.smollm2 import MODEL, PROMPTS, likeliest

TOKENS = 16


def test_greedy_text_is_the_references(tmp_path: Path) -> None:
    edgerelax.compile(MODEL, target="webgpu", variants=("gpu", "software")).save(tmp_path)
    with edgerelax.load(tmp_path, "wgpu") as session:
        language = session.artifact.manifest.language
        assert language is not None
        ids = Text.of(session.artifact).tokenizer.encode(PROMPTS[0])
        engine = PagedEngine(session, language, tokens=64, texts=1)
        with engine.generate(ids, Sampling(max_tokens=TOKENS, temperature=0.0)) as stream:
            found = [token.id for token in stream]
    assert len(found) == TOKENS
    assert found == likeliest(ids, found)
