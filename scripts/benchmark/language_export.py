"""A GGUF language model as transformers.js and onnxruntime read it; each export is made once.

Run as `python -m scripts.benchmark.language_export MODEL FOLDER`: torch ends with that process.
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from edgerelax import api
from tests.browser.harness import ROOT

EXPORTS = ROOT / "models" / "bench"
PRECISIONS = {"fp32": ("model", []), "int4": ("model_q4", ["shared_embeddings=false"])}
"""Precisions of onnxruntime-genai's builder, what transformers.js calls the files (fp32, q4), and
options: onnxruntime-web's WASM provider has no quantised table that a product shares."""


def artifact(model: Path) -> Path:
    """Our export with all its variants; another one for every state of the compiler."""
    folder = EXPORTS / f"edgerelax-{_key(model, ROOT / 'edgerelax')}"
    if not (folder / "manifest.json").is_file():
        _remove_others(folder, "edgerelax-*")
        api.compile(model).save(folder)
    return folder


def onnx_folder(model: Path) -> Path:
    """config.json, tokenizer and onnx/*.onnx of the same weights, dequantised to f32, and in int4.

    Raises RuntimeError where that failed; what it says went to the terminal.
    """
    folder = EXPORTS / f"onnx-{_key(model, Path(__file__))}"
    if not (folder / "done").is_file():
        _remove_others(folder, "onnx-*")
        command = [sys.executable, "-m", __spec__.name, str(model), str(folder)]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            raise RuntimeError(f"no ONNX export of {model}: pip install -e '.[bench]'?")
        (folder / "done").touch()
    return folder


def _key(model: Path, code: Path) -> str:
    """Of a model and the Python code that exports it."""
    digest = hashlib.sha256(model.read_bytes())
    for file in sorted(code.rglob("*.py")) if code.is_dir() else [code]:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _remove_others(folder: Path, pattern: str) -> None:
    for old in folder.parent.glob(pattern):
        shutil.rmtree(old)
    folder.parent.mkdir(parents=True, exist_ok=True)


def export(model: Path, folder: Path) -> None:
    """Write the folder for transformers.js."""
    import onnx
    import torch
    from onnxruntime_genai.models.builder import create_model, parse_extra_options
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    source = str(model.parent)
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=model.name, dtype=torch.float32)
    config = type(loaded.config)(**{
        k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"
    })  # fmt: skip
    plain = type(loaded)(config)
    plain.load_state_dict(loaded.state_dict())
    weights = folder / "weights"
    plain.save_pretrained(weights)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=model.name)
    for place in (weights, folder):
        config.save_pretrained(place)
        tokenizer.save_pretrained(place)
    (folder / "onnx").mkdir(exist_ok=True)
    for precision, (name, more) in PRECISIONS.items():
        made = folder / precision
        options = (None, str(weights), str(made), precision, "cpu", str(folder / "cache"))
        create_model(*options, **parse_extra_options(*options, more))
        proto = onnx.load(made / "model.onnx")
        for given in proto.graph.input:  # transformers.js takes a width without a number for none
            if given.name.startswith("past_key_values"):
                given.type.tensor_type.shape.dim[3].dim_value = config.head_dim
        target = folder / "onnx" / f"{name}.onnx"
        onnx.save(proto, target, save_as_external_data=True, location=f"{target.name}_data")
        shutil.rmtree(made)
    shutil.rmtree(weights)
    shutil.rmtree(folder / "cache", ignore_errors=True)


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]))
