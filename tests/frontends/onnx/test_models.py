"""Real models against onnxruntime at several shapes; skipped without scripts/fetch-models."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from edgerelax.frontends.onnx import load
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import IfElse, MatchCast, Module, ReadInts
from edgerelax.ir.rewrite import all_bindings
from edgerelax.ir.verify import verify

MODELS = Path(__file__).parents[3] / "models"
Arrays = dict[str, Any]

onnxruntime.set_default_logger_severity(3)


def path_of(name: str) -> Path:
    path = MODELS / name
    if not path.is_file():
        pytest.skip(f"no {path}: run scripts/fetch-models")
    return path


def count(module: Module, kind: type) -> int:
    return sum(isinstance(b.value, kind) for b in all_bindings(module.funcs["main"].body))


LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


@pytest.mark.parametrize("path", sorted(LIGHT.glob("*.onnx")), ids=lambda p: p.stem)
def test_architectures_of_the_onnx_package_import(path: Path) -> None:
    module = load(path)
    verify(module)
    session = onnxruntime.InferenceSession(path)
    outputs = [tuple(o.shape) for o in session.get_outputs()]
    assert [result_shape(v.annotation) for v in module.funcs["main"].body.results] == outputs


def result_shape(annotation: Any) -> tuple[int, ...]:
    return tuple(d.as_int() for d in annotation.dims)


def normal(*shape: int, scale: float = 1.0) -> Any:
    rng = np.random.default_rng(sum(shape))
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def compare(name: str, module: Module, runs: list[Arrays], atol: float = 2e-5) -> None:
    """All outputs, exactly where they are integers."""
    verify(module)
    session = onnxruntime.InferenceSession(path_of(name))
    for inputs in runs:
        expected = session.run(None, inputs)
        found = evaluate(module, inputs)
        for output, want in zip(session.get_outputs(), expected, strict=True):
            np.testing.assert_allclose(found[output.name], want, rtol=1e-4, atol=atol)


def sentence(batch: int, length: int) -> Arrays:
    mask = np.ones((batch, length), np.int64)
    mask[0, length // 2 + 1 :] = 0
    ids = np.random.default_rng(length).integers(0, 1000, (batch, length))
    return {"input_ids": ids, "attention_mask": mask}


def test_minilm_is_symbolic_in_batch_and_sequence() -> None:
    module = load(path_of("minilm/model.onnx"))
    assert count(module, ReadInts) == 0
    main = module.funcs["main"]
    assert str(main.params[0].annotation) == "i64[batch_size, sequence_length]"
    assert [str(v.annotation) for v in main.body.results] == [
        "i64[batch_size, sequence_length]",
        "i64[batch_size, sequence_length]",
        "f32[batch_size, sequence_length, 384]",
        "f32[batch_size, 384]",
    ]
    compare("minilm/model.onnx", module, [sentence(1, 1), sentence(2, 7), sentence(3, 16)])


def test_a_sequence_longer_than_the_positions_is_refused_when_it_runs() -> None:
    module = load(path_of("minilm/model.onnx"))
    with pytest.raises(Exception, match="512"):
        evaluate(module, sentence(1, 513))


def test_text_detection_is_symbolic_in_all_dims() -> None:
    module = load(path_of("ppocr/det.onnx"))
    assert count(module, ReadInts) == 0
    runs = [{"x": normal(1, 3, 32, 64)}, {"x": normal(2, 3, 96, 32)}]
    compare("ppocr/det.onnx", module, runs)


def test_multiples_of_32_leave_no_checks_in_text_detection() -> None:
    names = [f"p2o.DynamicDimension.{k}" for k in (1, 2)]
    module = load(path_of("ppocr/det.onnx"), dims=dict.fromkeys(names, (32, 960, 32)))
    assert count(module, MatchCast) == 0
    compare("ppocr/det.onnx", module, [{"x": normal(1, 3, 64, 32)}])


def test_text_recognition_and_angle() -> None:
    angle = load(path_of("ppocr/cls.onnx"))
    compare("ppocr/cls.onnx", angle, [{"x": normal(1, 3, 48, 192)}, {"x": normal(2, 3, 33, 50)}])
    recognition = load(path_of("ppocr/rec.onnx"))
    assert "character" in recognition.attrs["metadata"]
    runs = [{"x": normal(1, 3, 48, 320)}, {"x": normal(2, 3, 48, 37)}]
    compare("ppocr/rec.onnx", recognition, runs)


def speech(batch: int, length: int, rate: int) -> Arrays:
    state = normal(2, batch, 128)
    return {"input": normal(batch, length, scale=0.1), "state": state, "sr": np.array(rate)}


@pytest.mark.parametrize(("length", "rate"), [(576, 16000), (288, 8000)])
def test_voice_detection_with_its_branches(length: int, rate: int) -> None:
    name = "silero/silero_vad.onnx"
    module = load(path_of(name), dims={"input_1": length})
    assert count(module, IfElse) <= 1
    compare(name, module, [speech(1, length, rate), speech(3, length, rate)])


def test_voice_detection_with_nothing_fixed() -> None:
    name = "silero/silero_vad.onnx"
    compare(name, load(path_of(name)), [speech(1, 576, 16000), speech(2, 288, 8000)])


def test_voice_detection_over_a_sequence() -> None:
    name = "silero/silero_vad_16k_sequence.onnx"
    runs = [
        {"input": normal(n, 576, scale=0.1), "h": normal(1, 1, 128), "c": normal(1, 1, 128)}
        for n in (1, 5)
    ]
    compare(name, load(path_of(name)), runs)
