"""Errors as OpenAI's API answers them."""

import msgspec

from edgerelax.chat.openai import ErrorAnswer, Fault, RequestError
from edgerelax.chat.pages import CacheFullError
from edgerelax.chat.work import CancelledError
from edgerelax.ir.diagnostics import InputError


class StatusError(Exception):
    """An answer that is an error; `retry_after` are seconds."""

    def __init__(self, status: int, fault: Fault, retry_after: int | None = None) -> None:
        super().__init__(fault.message)
        self.status, self.fault, self.retry_after = status, fault, retry_after

    @property
    def body(self) -> bytes:
        """The answer's JSON."""
        return msgspec.json.encode(ErrorAnswer(self.fault))

    @property
    def headers(self) -> dict[str, str]:
        """What the answer has beside it."""
        return {} if self.retry_after is None else {"retry-after": str(self.retry_after)}


def status_error(error: BaseException) -> StatusError:
    """What an error is for the client. One of ours tells no more than that it is."""
    match error:
        case StatusError():
            return error
        case RequestError():
            hint = f" ({error.hint})" if error.hint else ""
            code = None if error.code == RequestError.default_code else error.code
            return StatusError(
                400, Fault(error.message + hint, param=error.param or None, code=code)
            )
        case CacheFullError():
            fault = Fault(error.message, "server_error", code=error.code)
            return StatusError(503, fault, retry_after=1)
        case InputError():
            return StatusError(400, Fault(error.message))
        case CancelledError():  # not by the client, who is gone then
            return StatusError(503, Fault("the server is closing", "server_error", code=error.code))
    return StatusError(500, Fault("the server failed", "server_error", code="internal_error"))


def unknown_model(name: str, known: str) -> StatusError:
    """There is no model of that name."""
    message = f"the model {name!r} does not exist; this server has {known!r}"
    return StatusError(404, Fault(message, param="model", code="model_not_found"))


def queue_full(waiting: int, retry_after: int) -> StatusError:
    """There is no room for one more that waits."""
    message = f"{waiting} requests are waiting already; try again later"
    return StatusError(429, Fault(message, "rate_limit_error", code="queue_full"), retry_after)


def too_large(limit: int) -> StatusError:
    """The body of a request is too long."""
    message = f"the request has more than {limit} bytes"
    return StatusError(413, Fault(message, code="request_too_large"))


def wrong_key() -> StatusError:
    """The request names no key, or another one."""
    message = "a wrong API key or none: send it as `Authorization: Bearer KEY`"
    return StatusError(401, Fault(message, "authentication_error", code="invalid_api_key"))
