"""docs/verified.md, which scripts/verify-models writes."""

import json

from scripts import verify_language
from scripts.verify_language import CASES, TOKENS, cell, differs
from scripts.verify_models import HOSTS, PAGE, RECORD, page
from tests.e2e.heavy import HEAVY


def test_the_page_is_made_of_the_record() -> None:
    record, language = json.loads(RECORD.read_text()), verify_language.on_record()
    assert set(record) <= set(HEAVY) and set(language) <= set(CASES)
    assert all(set(found) <= set(HOSTS) for found in (*record.values(), *language.values()))
    assert PAGE.read_text() == page(record, language)


def test_nothing_on_record_differs() -> None:
    for name, found in json.loads(RECORD.read_text()).items():
        for one in found.values():
            assert one.get("difference", 0.0) <= HEAVY[name].tolerance
            assert len(one.get("shapes", range(4))) == 4
    assert not any(differs(f) for one in verify_language.on_record().values() for f in one.values())


def test_a_text_that_differs_is_told() -> None:
    short, right = {"tokens": TOKENS, "equal": 3}, {"tokens": TOKENS, "equal": TOKENS}
    assert differs(short) and not differs(right)
    assert (cell(short), cell(right)) == (f"3 of {TOKENS} equal", "equal")
    assert differs({"difference": 0.006}) and not differs({"difference": 0.004})
