"""The command line of scripts/bench."""

import argparse
import contextlib
import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from edgerelax.pipeline import OPTIONAL
from scripts.benchmark import (
    ablation,
    contest,
    language,
    machine,
    memory,
    page_of_docs,
    page_of_language,
    pages,
    tables,
)
from scripts.benchmark.cases import Subject, subject
from scripts.benchmark.roofline import roofline
from scripts.benchmark.rounds import Effort
from tests.browser.harness import ROOT
from tests.e2e.models import HEADLINE, REAL

SITE = ROOT / "dist" / "bench"
DOCS = ROOT / "docs" / "bench.md"
QUICK = Effort(starts=1, rounds=3, seconds=5.0)


def arguments() -> argparse.Namespace:
    """What to measure, and how long."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measures edgerelax and ONNX Runtime side by side, sample by sample in turn.",
    )
    parser.add_argument(
        "--models", nargs="+", choices=REAL, metavar="MODEL", help="the headline models, if none"
    )
    parser.add_argument("--hosts", nargs="+", choices=contest.HOSTS, default=list(contest.HOSTS))
    parser.add_argument("--rounds", type=int, default=9, help="warm rounds at most (9)")
    parser.add_argument("--starts", type=int, default=3, help="fresh starts (3)")
    parser.add_argument("--minutes", type=float, default=12.0, help="for all contests (12)")
    parser.add_argument("--quick", action="store_true", help="one start, three rounds")
    parser.add_argument(
        "--ablation",
        nargs="*",
        choices=sorted(OPTIONAL),
        metavar="PART",
        help=f"also without parts of the compiler ({', '.join(ablation.PARTS)})",
    )
    parser.add_argument("--roofline", action="store_true", help="time and bound of each kernel")
    parser.add_argument("--memory", action="store_true", help="plans of all models, growth")
    parser.add_argument(
        "--language",
        nargs="*",
        choices=language.HOSTS,
        metavar="HOST",
        help=f"language models, on {', '.join(language.HOSTS)}; no others but those of --models",
    )
    parser.add_argument("--json", type=Path, default=SITE / "bench.json", metavar="FILE")
    parser.add_argument("--docs", action="store_true", help="write docs/bench.md")
    parser.add_argument(
        "--from",
        dest="sources",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="read these JSON files, time nothing; of what several hold the last counts",
    )
    options = parser.parse_args()
    if options.models is None:
        options.models = list(HEADLINE) if options.language is None else []
    if options.language == []:
        options.language = list(language.HOSTS)
    return options


def main() -> int:
    """Measure, print, write; 1 where our outputs are wrong or missing."""
    options = arguments()
    console = Console(highlight=False, width=150)
    result = merged(options.sources) if options.sources else measure(options, console)
    if options.memory:
        result["memory"] = memory.measure()
        save(result, options.json)
    if not options.sources:
        console.print(f"all figures: {options.json}")
    if result["models"]:
        console.print(tables.summary(result))
    if options.docs:
        DOCS.write_text(page_of_docs.page(result))
    return 0 if all_right(result, console) else 1


def merged(sources: Sequence[Path]) -> dict[str, Any]:
    """The results of several runs on one machine as one."""
    first, *others = [json.loads(source.read_text()) for source in sources]
    for other in others:
        for name, model in other["models"].items():
            hosts = first["models"].setdefault(name, model)["hosts"]
            hosts.update(model["hosts"])
        for part in ("ablation", "roofline"):
            for name, hosts in other[part].items():
                first[part].setdefault(name, {}).update(hosts)
        first["machine"]["busy"] = max(first["machine"]["busy"], other["machine"]["busy"])
        if "memory" in other:
            first["memory"] = other["memory"]
        if "language" in other:
            hosts = first.setdefault("language", other["language"])["hosts"]
            hosts.update(other["language"]["hosts"])
    return dict(first)


def measure(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Everything that the options ask for, as plain data."""
    shutil.rmtree(SITE, ignore_errors=True)
    (SITE / "cases").mkdir(parents=True)
    busy = machine.busy()  # before there is a browser
    spoken = options.language or []
    if spoken:
        language.install_rivals()
    in_pages = any(contest.HOSTS[host].in_page for host in options.hosts if options.models)
    in_pages = in_pages or any(language.HOSTS[host].in_page for host in spoken)
    with contextlib.ExitStack() as stack:
        browser = stack.enter_context(pages.browser(SITE)) if in_pages else None
        described = machine.describe(browser, busy)
        stand = contest.Stand(browser, described["adapters"])
        result: dict[str, Any] = {
            "machine": described,
            "options": told(options),
            "hosts": {name: host.title for name, host in contest.HOSTS.items()},
            "models": {},
            "ablation": {},
            "roofline": {},
        }
        plan = Plan(options)
        for name in options.models:
            model = subject(name, SITE / "cases")
            result["models"][name] = about(model)
            for host in options.hosts:
                console.print(measure_on(host, model, stand, plan, result))
                save(result, options.json)  # so far
        if spoken:
            effort = language.Effort(options.minutes * 60 / len(spoken), options.quick)
            for result["language"] in language.measure(spoken, browser, effort, console.print):
                save(result, options.json)
            console.print("\n\n".join(page_of_language.language_section(result["language"])))
    return result


def save(result: dict[str, Any], file: Path) -> None:
    """Write what is known."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result, indent=1) + "\n")


class Plan:
    """Shares the time that is left among the races that are left."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.parts = tuple(options.ablation or ablation.PARTS)
        races = 1 if options.ablation is None else 2
        self.left = len(options.models) * len(options.hosts) * races
        self.end = time.monotonic() + options.minutes * 60

    def next(self) -> Effort:
        """The effort for the next race; of its time fresh starts take about half."""
        if self.options.quick:
            return QUICK
        share = max(0.0, self.end - time.monotonic()) / max(self.left, 1)
        self.left -= 1
        return Effort(self.options.starts, self.options.rounds, share / 2)


def measure_on(
    host: str, model: Subject, stand: contest.Stand, plan: Plan, result: dict[str, Any]
) -> str:
    """All that is wanted of a model on a host; gives a line about it."""
    found = contest.contest(stand, model, host, plan.next())
    result["models"][model.name]["hosts"][host] = found
    if plan.options.ablation is not None:
        effort = replace(plan.next(), starts=1)
        variants = ablation.ablate(stand, model, host, plan.parts, effort)
        result["ablation"].setdefault(model.name, {})[host] = variants
    if plan.options.roofline:
        result["roofline"].setdefault(model.name, {})[host] = roofline(stand, model, host)
    return tables.line(model.name, host, found)


def about(model: Subject) -> dict[str, Any]:
    """What does not depend on the host."""
    return {
        "cases": model.shapes,
        "warm_case": model.shapes[model.warm],
        "export_seconds": model.artifact().seconds,
        "hosts": {},
    }


def told(options: argparse.Namespace) -> dict[str, Any]:
    """The options as plain data."""
    return {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}


def all_right(result: dict[str, Any], console: Console) -> bool:
    """Whether every output of ours equals the reference; prints what does not."""
    wrong = [
        f"{name} on {host}: {why}"
        for name, model in result["models"].items()
        for host, found in model["hosts"].items()
        for why in contest.failures(found)
    ]
    wrong += language.failures(result.get("language") or {})
    for text in wrong:
        console.print(f"[red]wrong[/red] {text}")
    return not wrong


if __name__ == "__main__":
    sys.exit(main())
