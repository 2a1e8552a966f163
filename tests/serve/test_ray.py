"""A deployment on Ray Serve. Ray takes long to start: it does where EDGERELAX_RAY is set."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from edgerelax.ir.diagnostics import InputError

pytest.importorskip("ray.serve", reason="Ray is not installed")


@pytest.fixture(scope="module")
def base(small_chat: Path) -> Iterator[str]:
    if not os.environ.get("EDGERELAX_RAY"):
        pytest.skip("set EDGERELAX_RAY to start Ray")
    import ray
    from ray import serve

    from edgerelax.serve.ray import app

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ray.init(num_cpus=3, include_dashboard=False, object_store_memory=100 << 20)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        given = {"folder": str(small_chat), "device": "cpu", "replicas": "2", "cpus": "0.5"}
        serve.run(app(given), route_prefix="/")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        serve.shutdown()
        ray.shutdown()


def test_streams_pass_through(base: str) -> None:
    asked: Any = {"model": "small", "prompt": "hello", "temperature": 0, "max_tokens": 60}
    asked["extra_body"] = {"ignore_eos": True}
    with openai.OpenAI(base_url=base, api_key="none", max_retries=0) as client:
        whole = [client.completions.create(**asked).choices[0].text for _ in range(6)]
        assert len(set(whole)) == 1
        times: list[float] = []
        text = ""
        for chunk in client.completions.create(**asked, stream=True):
            times.append(time.monotonic())
            text += chunk.choices[0].text
        assert text == whole[0]
        assert len(set(times)) > 10, "it came in one piece"
        with pytest.raises(openai.NotFoundError) as failure:
            client.completions.create(**{**asked, "model": "other"})
        assert failure.value.param == "model"


@pytest.mark.parametrize(
    ("given", "told"),
    [({}, "folder"), ({"folder": "x", "replicas": "two"}, "int"), ({"folder": "x", "a": "1"}, "a")],
)
def test_wrong_arguments(given: dict[str, str], told: str) -> None:
    from edgerelax.serve.ray import app

    with pytest.raises(InputError, match=told):
        app(given)
