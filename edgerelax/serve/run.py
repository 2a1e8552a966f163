"""Serving an application until someone ends it."""

import socket

import uvicorn
from starlette.applications import Starlette


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections; port 0 takes a free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=2048)


def server_of(app: Starlette, grace: int) -> uvicorn.Server:
    """A server that, when it is told to end, lets answers go on for `grace` seconds."""
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=grace)
    return uvicorn.Server(config)
