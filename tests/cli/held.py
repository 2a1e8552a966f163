"""`edgerelax …` whose texts stop in their middle until nobody wants more of them."""

from typing import Any
from unittest.mock import patch

from edgerelax.chat.paged import PagedEngine
from edgerelax.cli.main import main
from tests.chat.holding import is_begun, is_given_up
from tests.waiting import wait_until

_run = PagedEngine._run


def run_while_wanted(engine: PagedEngine, role: str, **inputs: Any) -> Any:
    wait_until(lambda: not is_begun(engine) or is_given_up(engine), "nobody ends the text")
    return _run(engine, role, **inputs)


if __name__ == "__main__":
    with patch.object(PagedEngine, "_run", run_while_wanted):
        main()
