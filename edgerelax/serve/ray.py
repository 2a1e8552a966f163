"""The same HTTP interface on Ray Serve: one replica per device, streams pass through.

    serve run edgerelax.serve.ray:app folder=/models/smollm2 replicas=2 gpus=1

Each replica loads the artifact itself and has its own cache, queue and figures.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec
from ray import serve
from ray.serve import Application
from starlette.applications import Starlette

from edgerelax.chat.load import TEXTS, load_chat
from edgerelax.ir.diagnostics import InputError
from edgerelax.serve.app import make_app
from edgerelax.serve.server import Limits

BESIDE = 16
"""Requests that a replica takes beside those that wait: for its health, say."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """`gpus` are those of one replica: 0.5 has two share one. The rest is as for `edgerelax serve`.

    Every machine finds the artifact at `folder`.
    """

    folder: str
    replicas: int = 1
    gpus: float = 0
    cpus: float = 1
    device: str = "auto"
    name: str | None = None
    cache_tokens: int | None = None
    texts: int = TEXTS
    window: int | None = None
    sinks: int | None = None
    max_queue: int = 64
    api_key: str | None = None


def app(given: dict[str, str]) -> Application:
    """An application of the fields of Deployment, by name. Raises InputError for wrong ones."""
    try:
        wanted = msgspec.convert(given, Deployment, strict=False)
    except msgspec.ValidationError as error:
        raise InputError(str(error)) from error
    unknown = given.keys() - Deployment.__dataclass_fields__.keys()
    if unknown:
        raise InputError(
            f"unknown: {', '.join(sorted(unknown))}",
            hint=f"known are {', '.join(Deployment.__dataclass_fields__)}",
        )

    def build() -> Starlette:  # by each replica
        return _replica(wanted)

    deployment = serve.deployment(
        serve.ingress(build)(),
        name=wanted.name or Path(wanted.folder).name,
        num_replicas=wanted.replicas,
        max_ongoing_requests=wanted.texts + wanted.max_queue + BESIDE,
        ray_actor_options={"num_gpus": wanted.gpus, "num_cpus": wanted.cpus},
    )
    return deployment.bind()


def _replica(wanted: Deployment) -> Starlette:
    chat = load_chat(
        wanted.folder,
        wanted.device,
        cache_tokens=wanted.cache_tokens,
        texts=wanted.texts,
        window=wanted.window,
        sinks=wanted.sinks,
        name=wanted.name,
    )
    return make_app(chat, Limits(wanted.texts, wanted.max_queue), key=wanted.api_key)
