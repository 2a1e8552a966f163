"""One Chromium for all browser tests."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.harness import ROOT, Browser, chromium
from tests.browser.runtime_page import runtime_page
from tests.browser.small_models import SMALL
from tests.sharing import Run

if TYPE_CHECKING:
    from tests.chat.test_seeing import Model

Publish = Callable[[str], str]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder: Path = tmp_path_factory.mktemp("site")
    with chromium(folder) as opened:
        yield opened


@pytest.fixture(scope="session")
def webapp() -> Path:
    """The folder of the web app's pages, built now, once for all processes of the run."""

    def build(folder: Path) -> None:
        command = ["npm", "run", "--silent", "build", "--workspace", "webapp"]
        subprocess.run([*command, "--", "--outDir", str(folder)], cwd=ROOT, check=True)

    return Run.shared("webapp", build)


@pytest.fixture(scope="session")
def chat_address(browser: Browser, webapp: Path) -> str:
    """The built chat page on a plain server; gives its address."""
    shutil.copytree(webapp, browser.folder / "chat")
    (browser.folder / "chat" / "models").mkdir()
    return f"{browser.address}/chat/chat.html"


@pytest.fixture(scope="session")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple["Model", Path]]:
    """A small model that sees images, and the folder of its artifact."""
    pytest.importorskip("transformers")
    from tests.chat.test_seeing import made

    folder = tmp_path_factory.mktemp("seeing")
    with made("smolvlm", folder / "source", variants=("cpu", "software")) as model:
        model.artifact.save(folder / "artifact")
        yield model, folder / "artifact"


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Gives the folder of a small model, compiled when it is first asked for."""

    def folder(name: str) -> Path:
        target = tmp_path_factory.getbasetemp() / f"small-{name}"
        if not target.exists():
            SMALL[name].build().save(target)
        return target

    return folder


@pytest.fixture(scope="session")
def published(browser: Browser, small: Callable[[str], Path]) -> Publish:
    """Gives the address of a small model."""
    return lambda name: browser.publish(small(name), f"small-{name}")


@pytest.fixture
def page(browser: Browser) -> Iterator[Browser]:
    """A fresh page that counts what is made on the GPU; a complaint of the GPU fails the test."""
    with runtime_page(browser) as opened:
        yield opened
        assert opened.script("return gpu.errors") == []
