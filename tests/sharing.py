"""Artifacts that all processes of a test run read: the first that wants one makes it."""

import os
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from typing import ClassVar

import pytest
from filelock import FileLock


class Run:
    """The folder of this test run that its processes have in common."""

    folder: ClassVar[Path]

    @classmethod
    def begin(cls, factory: pytest.TempPathFactory) -> None:
        """Where one process among several has its folder, the run has the folder around it."""
        own = factory.getbasetemp()
        cls.folder = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    @classmethod
    def shared(cls, name: str, make: Callable[[Path], object]) -> Path:
        """The run's folder of that name, made by who asks first; the others wait for it."""
        folder, unfinished = cls.folder / f"shared-{name}", cls.folder / f"unfinished-{name}"
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                rmtree(unfinished, ignore_errors=True)  # of a process that failed to make it
                make(unfinished)
                unfinished.rename(folder)
        return folder
