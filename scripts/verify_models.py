"""What scripts/verify-models does: heavy models at four shapes on every host, against onnxruntime.

What it finds is added to docs/verified.json, of which docs/verified.md is made; what it finds of a
language model (verify_language.py) to docs/verified-language.json.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from playwright.sync_api import Error as PageError
from rich.console import Console

from edgerelax import api
from edgerelax.checking import difference
from edgerelax.ir.diagnostics import EdgeRelaxError
from scripts import verify_language
from scripts.benchmark.markdown import table
from tests.browser.harness import chromium
from tests.e2e.heavy import HEAVY, HeavyModel
from tests.e2e.models import Inputs, shape_text

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs" / "verified.json"
PAGE = ROOT / "docs" / "verified.md"
FOLDER = ROOT / "dist" / "verify"
HOSTS = {
    "cpu": "native CPU",
    "wgpu": "native wgpu",
    "wasm": "Chromium WASM",
    "webgpu": "Chromium WebGPU",
}
INTRODUCTION = """# Heavy models on every host

The test suite runs the models of the demo on all hosts. These are too slow for it where a CPU
plays the GPU: Smart Turn, and nine classic CNNs with random weights. `scripts/verify-models` runs
them at four batch sizes on

* native CPU: wasmtime, and native wgpu: lavapipe,
* Chromium: WebAssembly, and WebGPU on SwiftShader,

and wrote this page. It shows for each model and host the largest difference from onnxruntime,
relative to the output's scale; up to 1e-3 is equal (Smart Turn: 5e-3, as near as onnxruntime is to
itself). An empty field was not run.
"""
Record = dict[str, dict[str, Any]]
"""By model and host: `shapes` and `difference`, or why it was `refused`."""

Run = Callable[[Inputs], Mapping[str, np.ndarray]]
console = Console(highlight=False)


def main(arguments: list[str]) -> int:
    """Run what the command line names; 1 if anything differs."""
    parser = argparse.ArgumentParser("scripts/verify-models", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="model", help=", ".join(HEAVY))
    parser.add_argument("--hosts", default=",".join(HOSTS), help="of cpu,wgpu,wasm,webgpu")
    parser.add_argument("--language", action="store_true", help="the language model alone")
    given = parser.parse_args(arguments)
    names, hosts = given.models or list(HEAVY), given.hosts.split(",")
    if unknown := (set(names) - set(HEAVY)) | (set(hosts) - set(HOSTS)):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if given.language:
        return 1 if verify_language.verify(hosts, HOSTS, write_page) else 0
    bad = 0
    for name in names:
        for host, found in verify(HEAVY[name], hosts):
            record = on_record()
            record.setdefault(name, {})[host] = found
            RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
            write_page()
            bad += found.get("difference", 0.0) > HEAVY[name].tolerance
    return 1 if bad else 0


def verify(model: HeavyModel, hosts: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is found on each host."""
    source = model.source()
    data = source.read_bytes() if isinstance(source, Path) else source.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    reference = onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"])
    folder = FOLDER / model.name
    shutil.rmtree(FOLDER, ignore_errors=True)
    folder.mkdir(parents=True)
    api.compile(source).save(folder)
    for host in hosts:
        try:
            with opened(folder, model.name, host) as run:
                yield host, compared(model, reference, host, run)
        except (EdgeRelaxError, PageError) as error:
            reason = str(error).splitlines()[0]
            console.print(f"{model.name} on {HOSTS[host]}: {reason}")
            yield host, {"refused": reason}
    shutil.rmtree(FOLDER)


@contextmanager
def opened(folder: Path, name: str, host: str) -> Iterator[Run]:
    """The artifact on a host."""
    if host in ("cpu", "wgpu"):
        with api.load(folder, host) as session:
            yield session.run
        return
    site = FOLDER / "site"
    site.mkdir(exist_ok=True)
    with chromium(site) as browser:
        browser.open(name, browser.publish(folder, name), backend=host)
        yield lambda inputs: browser.run(name, inputs)[0]


def compared(
    model: HeavyModel, reference: onnxruntime.InferenceSession, host: str, run: Run
) -> dict[str, Any]:
    """The largest difference at all shapes."""
    outputs = [o.name for o in reference.get_outputs()]
    shapes, largest = [], 0.0
    for inputs in model.inputs():
        wanted = dict(zip(outputs, reference.run(outputs, inputs), strict=True))
        got = run(inputs)
        gap = max(difference(got[name], value) for name, value in wanted.items())
        shapes.append(shape_text(inputs))
        largest = max(largest, gap)
        console.print(f"{model.name} on {HOSTS[host]} at {shapes[-1]}: {gap:.1e}")
    return {"shapes": shapes, "difference": largest}


def on_record() -> Record:
    """What was found before."""
    found: Record = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
    return found


def write_page() -> None:
    """Make docs/verified.md of what is on record."""
    PAGE.write_text(page(on_record(), verify_language.on_record()))


def page(record: Record, language: verify_language.Record) -> str:
    """The text of docs/verified.md."""
    rows = [
        (name, ", ".join(_batches(found)), *(_cell(found.get(host)) for host in HOSTS))
        for name, found in sorted(record.items())
    ]
    models = f"{INTRODUCTION}\n{table(('model', 'batch sizes', *HOSTS.values()), rows)}\n"
    return f"{models}\n{verify_language.section(language, HOSTS)}"


def _batches(found: Mapping[str, Any]) -> list[str]:
    shapes = next((f["shapes"] for f in found.values() if "shapes" in f), [])
    return [shape.split("x")[0] for shape in shapes]


def _cell(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    return f"{found['difference']:.1e}" if "difference" in found else str(found["refused"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
