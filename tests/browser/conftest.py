"""One Chromium for all browser tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.harness import Browser, chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder: Path = tmp_path_factory.mktemp("site")
    with chromium(folder) as opened:
        yield opened
