"""docs/onnx.md names the operators that have importers, no more and no less."""

import re
from pathlib import Path

from edgerelax.frontends.onnx import families, registry

assert families.LOADED
PAGE = Path(__file__).resolve().parents[3] / "docs" / "onnx.md"


def test_the_list_of_operators() -> None:
    text = PAGE.read_text()
    _, standard, rest = re.split(r"Of the standard|By their definition", text, maxsplit=2)
    _, classic, microsoft, _ = re.split(
        r"Of `ai.onnx.ml`|Of `com.microsoft`|## What is refused", rest, maxsplit=3
    )
    refused = set(re.findall(r"`(\w+)`", text.split("## What is refused")[1]))
    for domain, part in (("", standard), ("ai.onnx.ml", classic), ("com.microsoft", microsoft)):
        named = set(re.findall(r"`(\w+)`", part))
        known = {n for d, n in registry.names() if d == domain}
        assert named <= known, sorted(named - known)
        assert known - named <= refused, sorted(known - named - refused)
