"""The section on memory of the bench's page."""

from scripts.benchmark import memory, page_of_memory
from tests.e2e.models import REAL


def test_every_model_has_bounds() -> None:
    assert set(memory.BOUNDS) == set(REAL)


def test_calls_that_allocated() -> None:
    assert memory.allocations([100, 100, 100]) == 1
    assert memory.allocations([100, 300, 300, 700, 700]) == 3


def test_the_section_says_what_was_found() -> None:
    plan = {"bounds": ["n=1..8"], "in_place": 3, "unplanned": 4e6, "planned": 1.1e6,
            "lower_bound": 1e6}  # fmt: skip
    same = plan | {"planned": 1e6, "lower_bound": 1e6, "bounds": []}
    open_ended = plan | {"planned": None, "lower_bound": None, "unplanned": None}
    series = {
        kind: [1000 * k for k in range(1, len(sizes) + 2)] for kind, sizes in memory.GROWING.items()
    }
    found = {
        "plans": {"one": plan, "two": same, "three": open_ended},
        "growth": {"without": series},
    }
    page = "\n".join(page_of_memory.memory_section(found))
    assert "| one | `n=1..8` | 4.0 MB | 1.1 MB | 1.0 MB | 3 | 1.10 | 4.00 |" in page
    assert "| two | none: all dims are fixed | 4.0 MB | 1.0 MB | 1.0 MB | 3 | 1.00 | 4.00 |" in page
    assert "| three | `n=1..8` | ? | ? | ? | 3 | - | - |" in page
    assert "**1.05** | **4.00** |" in page
    assert "| without | batch | 1x32: 1 kB, 2x32: 2 kB" in page
    assert list(page_of_memory.memory_section({})) == []
