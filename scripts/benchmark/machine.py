"""What the numbers were measured on."""

import json
import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnxruntime
import wgpu

from edgerelax.version import VERSION
from scripts.benchmark.pages import ORT, adapter
from tests.browser.harness import ROOT, Browser


def describe(browser: Browser | None) -> dict[str, Any]:
    """Processor, adapters, versions, date, and the load before anything was measured."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "load": round(os.getloadavg()[0], 2),
        "adapters": {
            "webgpu": adapter(browser) if browser else None,
            "wgpu": _native_adapter(),
        },
        "versions": {
            "edgerelax": f"{VERSION} ({_commit()})",
            "onnxruntime": onnxruntime.__version__,
            "onnxruntime-web": _web_version(),
            "chromium": _chromium() if browser else None,
            "wgpu-py": version("wgpu"),
            "wasmtime": version("wasmtime"),
            "python": platform.python_version(),
        },
    }


def is_software(adapter: str | None) -> bool:
    """Whether a CPU plays that GPU."""
    return adapter is not None and any(n in adapter.lower() for n in ("swiftshader", "llvmpipe"))


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _native_adapter() -> str | None:
    try:
        info = wgpu.gpu.request_adapter_sync(power_preference="high-performance").info
    except RuntimeError:
        return None
    return f"{info.get('device')} ({info.get('adapter_type')}, {info.get('description')})"


def _web_version() -> str:
    return str(json.loads((ORT.parent / "package.json").read_text())["version"])


def _chromium() -> str:
    command = [shutil.which("chromium") or "chromium", "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no commit known"
