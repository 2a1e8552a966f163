"""Each real model, all its dims symbolic, on the native hosts.

Equal to onnxruntime at every size.
"""

import numpy as np
import pytest

from edgerelax.checking import difference
from tests.e2e.models import (
    REAL,
    ROOT,
    SENTENCES,
    TOLERANCE,
    compiled,
    encode,
    file_types,
    head_and_tail,
    run_reference,
    shape_text,
)


@pytest.mark.parametrize("variant", ["cpu-relaxed", "cpu", "gpu", "software"])
@pytest.mark.parametrize("name", REAL)
def test_equals_onnxruntime(name: str, variant: str) -> None:
    with compiled(name).session(variant=variant) as session:
        for inputs in REAL[name].inputs():
            got, wanted = session.run(inputs), run_reference(name, inputs)
            for output, value in wanted.items():
                gap = difference(got[output], value)
                assert gap <= TOLERANCE, f"{name} {output} at {shape_text(inputs)}: {gap:.2e}"


@pytest.mark.parametrize("device", ["cpu", "wgpu"])
@pytest.mark.parametrize("name", REAL)
def test_a_known_shape_costs_nothing(name: str, device: str) -> None:
    """The second call at a shape seen before.

    No shape work, no bind group, no pipeline, no memory.
    """
    inputs = list(REAL[name].inputs())[:2]
    with compiled(name).session(device) as session:
        for given in inputs + inputs:
            session.run(given)
        before = session.stats()
        session.run(inputs[0])
        after = session.stats()
    assert after["list_misses"] == before["list_misses"]
    assert after["list_hits"] > before["list_hits"]
    for counter in ("pipelines", "bind_groups", "buffers", "buffer_bytes", "cpu_slab_bytes"):
        assert after.get(counter) == before.get(counter)


def test_near_sentences_come_out_nearer() -> None:
    with compiled("minilm").session("cpu") as session:
        outputs = session.run(encode(SENTENCES))
    vectors = next(v for v in outputs.values() if v.dtype == np.float32 and v.ndim == 2)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    near, far = float(vectors[0] @ vectors[1]), float(vectors[0] @ vectors[2])
    assert near > 0.4 > far


def test_files_are_told_apart() -> None:
    names = {"scripts/fetch-models": "python", "README.md": "markdown", "scripts/setup": "shell"}
    with compiled("magika").session("cpu") as session:
        codes = [head_and_tail((ROOT / name).read_bytes()) for name in names]
        (scores,) = session.run({"bytes": np.stack(codes)}).values()
    assert [file_types()[k] for k in scores.argmax(axis=1)] == list(names.values())


@pytest.mark.parametrize("device", ["cpu", "wgpu"])
def test_a_line_of_text_is_read(device: str) -> None:
    """Recognition of a line drawn with a real font: the decoded text is what was drawn."""
    from tests.e2e.models import draw, for_recognition

    executable = compiled("ppocr-rec")
    characters = executable.artifact.manifest.source.metadata["character"].splitlines()
    table = ["", *characters, " "]
    text = "symbolic shapes"
    with executable.session(device) as session:
        (scores,) = session.run({"x": for_recognition(draw(text, 300, 48, 32))}).values()
    best = scores[0].argmax(axis=-1)
    kept = [b for k, b in enumerate(best) if b and (k == 0 or best[k - 1] != b)]
    assert "".join(table[k] for k in kept) == text
