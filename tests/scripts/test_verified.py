"""docs/verified.md, which scripts/verify-models writes."""

import json

from scripts.verify_models import HOSTS, PAGE, RECORD, page
from tests.e2e.heavy import HEAVY


def test_the_page_is_made_of_the_record() -> None:
    record = json.loads(RECORD.read_text())
    assert set(record) <= set(HEAVY)
    assert all(set(found) <= set(HOSTS) for found in record.values())
    assert PAGE.read_text() == page(record)


def test_nothing_on_record_differs() -> None:
    for name, found in json.loads(RECORD.read_text()).items():
        for one in found.values():
            assert one.get("difference", 0.0) <= HEAVY[name].tolerance
            assert len(one.get("shapes", range(4))) == 4
