"""Time and bound of each kernel in a page: where time goes, and how far it could fall."""

from collections.abc import Iterable, Mapping
from typing import Any

from edgerelax import api
from edgerelax.schedule.target import VARIANTS
from scripts.benchmark.cases import Subject
from scripts.benchmark.contest import HOSTS, OURS, Stand
from scripts.benchmark.pages import PageContender
from scripts.benchmark.rounds import ContenderError
from scripts.benchmark.sizes import sizes_of
from scripts.benchmark.work import Scheduled, scheduling, work

CALLS = 10
Row = dict[str, Any]


def roofline(stand: Stand, subject: Subject, host: str) -> dict[str, Any]:
    """Rows by loop function, the slowest first, at the warm case; or why there are none."""
    artifact = subject.artifact()
    with scheduling() as scheduled:
        api.compile(subject.model)
    contender = stand.ours(subject, host, artifact, OURS)
    if not isinstance(contender, PageContender):
        return {"failure": f"times of single kernels cannot be taken on {host}"}
    contender.scripts = ("profile.js",)
    try:
        contender.start()
        times = contender.profiled(subject.warm, CALLS)
    except ContenderError as error:
        return {"failure": str(error)}
    finally:
        contender.close()
    program = stand.program(artifact.manifest, host)
    if HOSTS[host].on_cpu:
        times = [time | {"name": program.cpu_kernels[int(time["name"])]} for time in times]
    sizes = sizes_of(artifact.manifest, subject.inputs[subject.warm])
    mine = [s for s in scheduled if s.target is VARIANTS[program.name].target]
    return {"failure": None, "rows": rows(times, mine, sizes)}


def rows(
    times: Iterable[Mapping[str, Any]], scheduled: Iterable[Scheduled], sizes: Mapping[str, int]
) -> list[Row]:
    """One row for each loop function that ran: launches, time, work of all its calls, bound."""
    owners = {name: s for s in scheduled for name in s.kernels}
    found: dict[str, Row] = {}
    for time in times:
        owner = owners.get(time["name"])
        name = time["name"] if owner is None else owner.func.name
        row = found.setdefault(name, {"name": name, "ms": 0.0, "launches": 0.0, "kernels": {}})
        row["ms"] += time["milliseconds"]
        row["launches"] += time["launches"]
        counted = row["kernels"].get(time["name"], 0.0)  # a kernel may have a form in place
        row["kernels"][time["name"]] = counted + time["launches"]
        row["owner"] = owner
    for row in found.values():
        row |= bound(row.pop("owner"), max(row.pop("kernels").values()), row["ms"], sizes)
    return sorted(found.values(), key=lambda r: -r["ms"])


def bound(owner: Scheduled | None, calls: float, ms: float, sizes: Mapping[str, int]) -> Row:
    """The work of all calls in one run, what bounds it on the target, the share reached of that."""
    known = None if owner is None else work(owner.func, sizes)
    if owner is None or known is None:
        return {"bytes": None, "flops": None, "bound": None, "reached": None, "strategy": None}
    least, by = known.seconds(owner.target)
    return {
        "bytes": known.bytes * calls,
        "flops": None if known.flops is None else known.flops * calls,
        "bound": by,
        "reached": least * calls * 1e3 / ms if ms else None,
        "strategy": " + ".join(owner.strategies),
    }
