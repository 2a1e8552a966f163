"""Audio in the sizes that an artifact was made for."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from edgerelax.artifact.manifest import Manifest, SymbolInfo
from edgerelax.artifact.store import Artifact
from edgerelax.ir.diagnostics import InputError
from edgerelax.speech.listener import Listener
from tests.frontends.speech.tiny import Exported


def limited(manifest: Manifest, size: int | SymbolInfo) -> Manifest:
    """The manifest of an artifact whose audio has such sizes."""
    encode, *others = manifest.functions
    audio, rows = encode.inputs
    shape = ["batch", size if isinstance(size, int) else "samples"]
    encode = replace(encode, inputs=[replace(audio, shape=shape), rows])
    symbols = manifest.symbols | ({} if isinstance(size, int) else {"samples": size})
    return replace(manifest, functions=[encode, *others], symbols=symbols)


@pytest.mark.parametrize(
    ("size", "window", "taken"),
    [
        (900, 900, 900),
        (SymbolInfo(lo=1, hi=16000), 16000, 500),
        (SymbolInfo(lo=600, hi=8000), 8000, 600),
        (SymbolInfo(lo=320, hi=9000, multiple_of=320), 8960, 640),
        (SymbolInfo(lo=1), None, 500),
    ],
)
def test_sizes(
    small_speech: Exported, size: int | SymbolInfo, window: int | None, taken: int
) -> None:
    manifest = limited(Artifact.open(small_speech.artifact).manifest, size)
    runs: list[dict[str, Any]] = []
    session: Any = SimpleNamespace(
        artifact=SimpleNamespace(manifest=manifest),
        allocate=lambda sizes: None,
        run=lambda inputs, function: runs.append(inputs) or {},
    )
    listener = Listener(session, manifest.language)
    assert listener.window == window
    listener.hear(np.ones(500, np.float32))
    heard = runs[0]["audio"]
    assert heard.shape == (1, taken)
    assert heard[0, :500].all() and not heard[0, 500:].any()


def test_a_model_that_does_not_hear(small_speech: Exported) -> None:
    language = Artifact.open(small_speech.artifact).manifest.language
    assert language is not None
    functions = {k: v for k, v in language.functions.items() if k != "encode"}
    with pytest.raises(InputError, match="does not hear"):
        Listener(None, replace(language, functions=functions))  # type: ignore[arg-type]
