"""The real models: where they are, inputs at several sizes, and what onnxruntime makes of them."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageDraw, ImageFont

import edgerelax.api as api
from edgerelax.artifact.store import Artifact
from edgerelax.pipeline import Report
from tests.sharing import Run

ROOT = Path(__file__).resolve().parent.parent.parent
MODELS = ROOT / "models"
FONT = "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf"
SENTENCES = (
    "A man is playing the guitar on a stage.",
    "Someone performs music with a guitar.",
    "The stock market fell sharply on Monday.",
)
Inputs = dict[str, np.ndarray]


@dataclass(frozen=True)
class RealModel:
    """A model file and inputs for it, one dict per combination of sizes."""

    name: str
    file: str
    inputs: Callable[[], Iterator[Inputs]]

    @property
    def path(self) -> Path:
        path = MODELS / self.file
        assert path.is_file(), f"{path} is missing: run scripts/fetch-models"
        return path


@cache
def compiled(name: str) -> api.Executable:
    """The model for WebGPU with the CPU fallback, all its dims symbolic.

    Checked after every pass.
    """

    def make(folder: Path) -> None:
        api.compile(REAL[name].path, verify=True).save(folder)

    return api.Executable(Artifact.open(Run.shared(name, make)), Report())


@cache
def reference(name: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(REAL[name].path), options, ["CPUExecutionProvider"])


def run_reference(name: str, inputs: Inputs) -> Inputs:
    session = reference(name)
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def encode(sentences: tuple[str, ...]) -> Inputs:
    """Token ids and mask of sentences, padded to the longest."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(MODELS / "minilm-tokenizer" / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    rows = tokenizer.encode_batch(list(sentences))
    return {
        "input_ids": np.array([r.ids for r in rows], np.int64),
        "attention_mask": np.array([r.attention_mask for r in rows], np.int64),
    }


def sentences() -> Iterator[Inputs]:
    rng = np.random.default_rng(0)
    yield encode(SENTENCES)
    yield encode(SENTENCES[:1])
    for batch, length in ((1, 1), (2, 37)):
        mask = np.ones((batch, length), np.int64)
        mask[-1, length // 2 + 1 :] = 0
        ids = rng.integers(0, 30_000, (batch, length))
        yield {"input_ids": ids, "attention_mask": mask}


def draw(text: str, width: int, height: int, size: int = 24) -> np.ndarray:
    """Dark text on white, as uint8 RGB."""
    image = Image.new("RGB", (width, height), "white")
    font = ImageFont.truetype(FONT, size)
    ImageDraw.Draw(image).text((8, (height - size) // 2 - 3), text, "black", font)
    return np.asarray(image)


def for_detection(pixels: np.ndarray) -> np.ndarray:
    """BGR, normalised as the detector was trained."""
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    scaled = (pixels[..., ::-1] / 255.0 - mean) / std
    return scaled.transpose(2, 0, 1)[None].astype(np.float32)


def for_recognition(pixels: np.ndarray) -> np.ndarray:
    return ((pixels[..., ::-1] / 255.0 - 0.5) / 0.5).transpose(2, 0, 1)[None].astype(np.float32)


def pictures() -> Iterator[Inputs]:
    for width, height in ((32, 32), (160, 64), (224, 96)):
        yield {"x": for_detection(draw("Hello world", width, height))}
    two = [for_detection(draw(t, 96, 32, 16)) for t in ("first", "second")]
    yield {"x": np.concatenate(two)}


def lines() -> Iterator[Inputs]:
    yield {"x": for_recognition(draw("symbolic shapes", 320, 48, 32))}
    yield {"x": for_recognition(draw("x", 33, 48, 32))}
    for count, width in ((2, 101), (3, 192)):
        texts = ("one", "two", "three")[:count]
        yield {"x": np.concatenate([for_recognition(draw(t, width, 48, 32)) for t in texts])}


def angles() -> Iterator[Inputs]:
    upright = draw("upright text", 192, 48, 28)
    yield {"x": for_recognition(upright)}
    yield {"x": for_recognition(upright[::-1, ::-1])}
    yield {"x": np.concatenate([for_recognition(upright)] * 3)}
    yield {"x": np.concatenate([for_recognition(draw("odd", 97, 48, 28))] * 2)}


def frames() -> Iterator[Inputs]:
    rng = np.random.default_rng(0)
    for count in (1, 2, 7, 32):
        yield {
            "input": (rng.standard_normal((count, 576)) * 0.1).astype(np.float32),
            "h": (rng.standard_normal((1, 1, 128)) * 0.1).astype(np.float32),
            "c": (rng.standard_normal((1, 1, 128)) * 0.1).astype(np.float32),
        }


def windows(*cases: tuple[int, int], names_rate: bool = True) -> Iterator[Inputs]:
    """Windows of speech with the state, for each pair of batch and sample rate."""
    rng = np.random.default_rng(0)
    for batch, rate in cases:
        samples = 576 if rate == 16000 else 288
        inputs = {
            "input": (rng.standard_normal((batch, samples)) * 0.1).astype(np.float32),
            "state": (rng.standard_normal((2, batch, 128)) * 0.1).astype(np.float32),
        }
        yield inputs | ({"sr": np.array(rate, np.int64)} if names_rate else {})


BOTH_RATES = ((1, 16000), (1, 8000), (3, 16000), (2, 8000))
ONE_RATE = ((1, 16000), (3, 16000), (2, 16000), (5, 16000))


def typed_sentences() -> Iterator[Inputs]:
    for inputs in sentences():
        yield inputs | {"token_type_ids": np.zeros_like(inputs["input_ids"])}


def spectra(bins: int) -> Iterator[Inputs]:
    """Logarithms of the power of noisy tones, frame by frame."""
    rng = np.random.default_rng(0)
    for batch, time in ((1, 1), (1, 45), (2, 7), (3, 13)):
        noise = rng.standard_normal((batch, time, 2 * bins - 2)) * 0.01
        tone = np.sin(np.arange(2 * bins - 2) * rng.uniform(0.05, 1.0, (batch, time, 1)))
        power = np.abs(np.fft.rfft(noise + tone * 0.1)) ** 2
        yield {"input": np.log10(np.maximum(power, 1e-12)).astype(np.float32)}


def head_and_tail(content: bytes) -> np.ndarray:
    """The 1,024 bytes at either end, as the file type model takes them: 256 where there is none."""
    head, tail = content.lstrip()[:1024], content.rstrip()[-1024:]
    codes = np.full(2048, 256, np.int32)
    codes[: len(head)] = list(head)
    codes[2048 - len(tail) :] = list(tail)
    return codes


def files() -> Iterator[Inputs]:
    names = ("scripts/fetch-models", "README.md", "package.json", "scripts/setup", "pyproject.toml")
    codes = [head_and_tail((ROOT / name).read_bytes()) for name in names]
    for count in (1, 3, 2, 5):
        yield {"bytes": np.stack(codes[:count])}


def file_types() -> list[str]:
    """What the results of the file type model stand for."""
    config = json.loads((MODELS / "magika" / "config.json").read_text())
    return list(config["target_labels_space"])


def chords() -> Iterator[Inputs]:
    """Two seconds of decaying tones at 22,050 Hz, with noise.

    Without it, bands hold nothing but rounding errors, and the model takes their logarithm.
    """
    rng = np.random.default_rng(0)
    time = np.arange(43844) / 22050
    for batch in (1, 3, 2, 5):
        tones = rng.uniform(110, 880, (batch, 3, 1))
        chord = (np.sin(2 * np.pi * tones * time) * np.exp(-2 * time)).sum(axis=1) * 0.2
        chord += rng.standard_normal(chord.shape) * 0.01
        yield {"serving_default_input_2:0": chord[..., None].astype(np.float32)}


REAL = {
    m.name: m
    for m in (
        RealModel("minilm", "minilm/model.onnx", sentences),
        RealModel("ppocr-det", "ppocr/det.onnx", pictures),
        RealModel("ppocr-cls", "ppocr/cls.onnx", angles),
        RealModel("ppocr-rec", "ppocr/rec.onnx", lines),
        RealModel("silero", "silero/silero_vad_16k_sequence.onnx", frames),
        RealModel("silero-if", "silero/silero_vad.onnx", partial(windows, *BOTH_RATES)),
        RealModel(
            "silero-ifless", "silero/silero_vad_op18_ifless.onnx", partial(windows, *BOTH_RATES)
        ),
        RealModel("silero-op15", "silero/silero_vad_16k_op15.onnx", partial(windows, *ONE_RATE)),
        RealModel(
            "silero-half",
            "silero/silero_vad_half.onnx",
            partial(windows, *ONE_RATE, names_rate=False),
        ),
        RealModel(  # all its dims are fixed
            "silero-openvino",
            "silero/silero_vad_openvino_16k.onnx",
            partial(windows, ONE_RATE[0], names_rate=False),
        ),
        RealModel("minilm-int8", "minilm-int8/model.onnx", typed_sentences),
        RealModel("nsnet2", "nsnet2/nsnet2.onnx", partial(spectra, 161)),
        RealModel("nsnet2-48k", "nsnet2/nsnet2-48k.onnx", partial(spectra, 513)),
        RealModel("magika", "magika/model.onnx", files),
        RealModel("basic-pitch", "basic-pitch/model.onnx", chords),
    )
}
HEADLINE = ("minilm", "ppocr-det", "ppocr-cls", "ppocr-rec", "silero", "silero-if")
"""The models of the demo site and of the bench, unless others are asked for."""

TOLERANCE = 1e-3  # of the output's scale


def shape_text(inputs: Inputs) -> str:
    return " ".join("x".join(map(str, a.shape)) or "scalar" for a in inputs.values())
