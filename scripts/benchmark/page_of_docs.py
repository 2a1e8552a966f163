"""docs/bench.md, from the figures that a run left as JSON."""

import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scripts.benchmark.machine import is_software
from scripts.benchmark.markdown import size, table
from scripts.benchmark.page_of_language import language_section
from scripts.benchmark.page_of_memory import memory_section
from scripts.benchmark.statistics import geometric_mean
from scripts.benchmark.tables import milliseconds, percent, ratio

Data = Mapping[str, Any]
MOST_KERNELS = 12
LEAST_POINTS = 3  # through two any line goes
BUSY = 0.2  # of all cores' time
OURS = "edgerelax"

HEAD = (Path(__file__).parent / "introduction.md").read_text()


def page(result: Data) -> str:
    """The whole page as Markdown."""
    parts = [HEAD, *_machine(result["machine"]), *(_targets(result) if result["models"] else ())]
    for host, title in _hosts(result):
        parts += [f"## {title}", _times(result, host), _footprint(result, host)]
        parts += [straight_line(result, host)] if host == "webgpu" else []
    parts += _ablations(result.get("ablation") or {})
    parts += language_section(result.get("language") or {})
    parts += memory_section(result.get("memory") or {})
    parts += _rooflines(result.get("roofline") or {})
    return "\n\n".join(p.strip("\n") for p in parts if p) + "\n"


def _machine(machine: Data) -> Iterator[str]:
    versions = [f"{name} {found}" for name, found in machine["versions"].items() if found]
    yield "## Machine"
    yield table(
        ("", ""),
        (
            ("date", machine["date"]),
            ("processor", f"{machine['processor']}, {machine['cores']} cores"),
            ("system", machine["system"]),
            ("busy before the run", f"{machine['busy']:.0%} of the cores' time"),
            ("WebGPU adapter", machine["adapters"]["webgpu"] or "not used"),
            ("wgpu adapter", machine["adapters"]["wgpu"] or "none"),
            ("versions", ", ".join(versions)),
        ),
    )
    if machine["busy"] > BUSY:
        yield "**The machine was busy: these times show that measuring works, and nothing else.**"
    if any(is_software(adapter) for adapter in machine["adapters"].values()):
        yield "A software adapter played the GPU: its times say nothing about real GPUs."


def _hosts(result: Data) -> Iterator[tuple[str, str]]:
    found = dict.fromkeys(h for m in result["models"].values() for h in m["hosts"])
    for host in found:
        yield host, result["hosts"].get(host, host)


def _pairs(result: Data, host: str) -> Iterator[tuple[str, Data, str, Data]]:
    """Model, our figures, a rival's name and figures."""
    for model, data in result["models"].items():
        if host in data["hosts"]:
            ours, *rivals = data["hosts"][host].items()
            for name, theirs in rivals:
                yield model, ours[1], name, theirs


def _targets(result: Data) -> Iterator[str]:
    """Geometric means over the models against the goals of the project."""
    rows = []
    goals = {"webgpu": 0.33, "wasm": 0.7, "wasm-threads": 0.7}
    for host, title in _hosts(result):
        rivals = dict.fromkeys(rival for _, _, rival, _ in _pairs(result, host))
        for rival in rivals:
            pairs = [(o, t) for _, o, name, t in _pairs(result, host) if name == rival]
            right = [(o, t) for o, t in pairs if o["equal"] and t["equal"]]
            warm = [t["warm_ratio"] for _, t in right]
            known = [w for w in warm if w is not None]
            news, fresh = ([s[k] for o, _ in pairs for s in o["new_shapes"] if k in s]
                           for k in ("ratio", "fresh_ratio"))  # fmt: skip
            goal = f"{goals[host]} / 0.3" if host in goals else "-"
            rows.append(
                (
                    title.split(",")[0],
                    rival,
                    ratio(geometric_mean(warm)),
                    ratio(max(known, default=None)),
                    ratio(geometric_mean(t["first_ratio"] for _, t in right)),
                    goal,
                    ratio(geometric_mean(news)),
                    ratio(geometric_mean(fresh)),
                    f"{len(known)} of {len(pairs)}",
                )
            )
    yield "## In short"
    yield (
        "Geometric means over the models where the outputs of both are right; the goal for a call "
        "at a new shape is 1.2 usual calls."
    )
    head = ("host", "rival", "warm", "worst", "first", "goals", "new shape", "new shape, fresh",
            "models compared")  # fmt: skip
    yield table(head, rows)


def _times(result: Data, host: str) -> str:
    rows = []
    for model, ours, rival, theirs in _pairs(result, host):
        rows.append(
            (
                f"{model} ({result['models'][model]['warm_case']})",
                rival,
                _warm(ours),
                _warm(theirs),
                f"**{ratio(theirs['warm_ratio'])}**",
                milliseconds(ours["first_median_ms"]),
                milliseconds(theirs["first_median_ms"]),
                f"**{ratio(theirs['first_ratio'])}**",
                milliseconds(ours.get("second_median_ms")),
                milliseconds(theirs.get("second_median_ms")),
                *(
                    ratio(geometric_mean(n.get(figure) for n in side["new_shapes"]))
                    for figure in ("ratio", "fresh_ratio")
                    for side in (ours, theirs)
                ),
                _difference(ours),
                _difference(theirs),
            )
        )
    head = ("model", "rival", "warm ms", "theirs", "ratio", "first ms", "theirs", "ratio",
            "second ms", "theirs", "new shape", "theirs", "new shape, fresh", "theirs",
            "difference", "theirs")  # fmt: skip
    return table(head, rows)


def _warm(data: Data) -> str:
    if data["failure"] is not None:
        return "failed: " + str(data["failure"]).replace("|", "/")[:80]
    return f"{milliseconds(data['warm_median_ms'])} {percent(data['warm_spread'])}"


def _difference(data: Data) -> str:
    if data["failure"] is not None:
        return "failed"
    gap = "NaN or shape" if data["gap"] is None else f"{data['gap']:.0e}"
    return gap if data["equal"] else f"**wrong** ({gap})"


def _footprint(result: Data, host: str) -> str:
    """What is fetched, what memory it takes, what is launched; natively memory and launches."""
    rows = []
    for model, data in result["models"].items():
        for name, found in data["hosts"].get(host, {}).items():
            rows.append((model, name, *_took(found, host == "webgpu")))
    return table(("model", "library", *COLUMNS), rows)


COLUMNS = ("fetched", "gzipped", "model without weights", "memory", "planned activations",
           "launches", "main thread ms a call", "µs a launch")  # fmt: skip


def _took(found: Data, on_gpu: bool) -> list[str]:
    download = found.get("download") or {}
    memory = found.get("resident_growth_bytes")
    if "wasm_bytes" in found:
        memory = found["wasm_bytes"] + found["gpu_peak_bytes"]
    graph = download.get("graph_bytes")
    launches, worked = found["launches"], found.get("thread_ms")
    each = "?" if worked is None or not launches else f"{worked * 1e3 / launches:.1f}"
    return [
        size(download.get("bytes")),
        size(download.get("gzip_bytes")),
        "in the above" if download and graph is None else size(graph),
        size(memory),
        size(found.get("activations")),
        "?" if not launches else f"{launches:.0f}",
        milliseconds(worked),
        each if on_gpu else "-",
    ]


def straight_line(result: Data, host: str) -> str:
    """What a launch costs the main thread when the fixed part of a call is taken away.

    Nothing where models of fewer than LEAST_POINTS counts of launches were measured.
    """
    found: dict[str, dict[float, float]] = {}
    for model in result["models"].values():
        for name, data in model["hosts"].get(host, {}).items():
            if data["launches"] and data.get("thread_ms") is not None:
                found.setdefault(name, {})[data["launches"]] = data["thread_ms"]
    lines = []
    for name, points in found.items():
        if len(points) >= LEAST_POINTS:
            slope, fixed = statistics.linear_regression(list(points), list(points.values()))
            lines.append(f"{name} {slope * 1e3:.1f} µs a launch and {fixed:.2f} ms a call")
    if not lines:
        return ""
    return (
        "Main thread by launches, the straight line nearest to the models (least squares): "
        f"{'; '.join(lines)}."
    )


def _ablations(ablation: Data) -> Iterator[str]:
    if not ablation:
        return
    yield "## Ablation"
    yield (
        "Our library against itself, a part of the compiler left out (`--without`): `fuse` is "
        "fusion, `reuse` the reuse of memory, `capture` the replay of command lists, `strategies` "
        "all ways to make kernels but the one that is always legal. Times over those of the whole "
        "compiler, in the same rounds."
    )
    rows = []
    for model, hosts in ablation.items():
        for host, variants in hosts.items():
            for name, data in variants.items():
                launches = data["launches"]
                rows.append(
                    (
                        model,
                        host,
                        name,
                        _warm(data),
                        ratio(data["ratio"]),
                        "?" if not launches else f"{launches:.0f}",
                        size(data["activations"]),
                        _difference(data),
                    )
                )
    head = ("model", "host", "compiler", "warm ms", "over all", "launches", "activations",
            "difference")  # fmt: skip
    yield table(head, rows)


def _rooflines(rooflines: Data) -> Iterator[str]:
    if not rooflines:
        return
    yield "## Kernels"
    yield (
        "The slowest loop functions of each model. Bytes and operations are what any kernel for "
        "them must move and do; the bound is the slower of both at the speeds that the target "
        "record assumes, and reached is the share of it. On WebGPU each launch had a pass of its "
        "own between timestamps, on WebAssembly each kernel ran inside a shim that reads the "
        "clock. On the native hosts single kernels cannot be timed."
    )
    for model, hosts in rooflines.items():
        for host, found in hosts.items():
            yield f"### {model} on {host}"
            if found["failure"] is not None:
                yield f"Not measured: {found['failure']}"
                continue
            total = sum(row["ms"] for row in found["rows"]) or 1.0
            yield table(
                ("function", "strategy", "ms", "share", "launches", "bytes", "Mflop", "GFLOP/s",
                 "bound", "reached"),
                (_kernel(row, total) for row in found["rows"][:MOST_KERNELS]),
            )  # fmt: skip


def _kernel(row: Data, total: float) -> tuple[str, ...]:
    flops = row["flops"]
    speed = flops / row["ms"] / 1e6 if flops and row["ms"] else None
    return (
        row["name"],
        row["strategy"] or "?",
        f"{row['ms']:.3f}",
        f"{row['ms'] / total:.0%}",
        f"{row['launches']:.0f}",
        size(row["bytes"]),
        "?" if flops is None else f"{flops / 1e6:.2f}",
        "?" if speed is None else f"{speed:.2f}",
        row["bound"] or "?",
        "?" if row["reached"] is None else _share(row["reached"]),
    )


def _share(value: float) -> str:
    return f"{value:.0%}" if value >= 0.1 else f"{value:.2%}"
