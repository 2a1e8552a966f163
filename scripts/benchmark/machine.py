"""What the numbers were measured on."""

import json
import os
import platform
import shutil
import subprocess
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnxruntime
import wgpu

from edgerelax.version import VERSION
from scripts.benchmark.pages import ORT, adapter
from tests.browser.harness import ROOT, Browser


def describe(browser: Browser | None, busy: float) -> dict[str, Any]:
    """Processor, adapters, versions, date, and how busy it was before anything was started."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "busy": round(busy, 3),
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


def busy(seconds: float = 2.0) -> float:
    """The share of all cores' time that others took just now."""

    def ticks() -> tuple[int, int]:
        user, nice, system, idle, waiting, *rest = map(
            int, Path("/proc/stat").read_text().splitlines()[0].split()[1:]
        )
        return user + nice + system + sum(rest), idle + waiting

    worked, idled = ticks()
    time.sleep(seconds)
    works, idles = ticks()
    return (works - worked) / max(works - worked + idles - idled, 1)


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
