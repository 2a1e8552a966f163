"""Prints at the end how many node tests passed on each host."""

from collections import Counter

import pytest

from tests.backend.hosts import HOSTS


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    passed = Counter(
        value
        for report in terminalreporter.stats.get("passed", [])
        for name, value in report.user_properties
        if name == "node_test"
    )
    if passed:
        terminalreporter.write_line("ONNX node tests that pass:")
    for host in HOSTS:
        plain, symbolic = passed[f"{host} plain"], passed[f"{host} symbolic"]
        if plain + symbolic:
            terminalreporter.write_line(
                f"  {host}: {plain} as given, {symbolic} with every input dimension symbolic"
            )
