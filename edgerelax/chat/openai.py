"""Requests and answers as OpenAI's API has them: chat.completions, completions, embeddings, models.

Fields that are hints to a service (`user`, `store`, …) are taken and have no effect; others that
aren't known are refused, so that a typo is an error. Beyond OpenAI's: `top_k`, `min_p`,
`repetition_penalty`, `ignore_eos`, `chat_template_kwargs`, parts of type `image`, grammars as
`response_format` (of completions too) in requests, `timings` in answers.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from edgerelax.ir.diagnostics import InputError

Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
Whole = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
Bias = Annotated[float, msgspec.Meta(ge=-100, le=100)]
Stops = Annotated[list[str], msgspec.Meta(max_length=16)]
Texts = str | list[str | Whole | list[Whole]]
"""One text, several, the tokens of one, or those of several."""
JSON = dict[str, Any]


class RequestError(InputError):
    """A request that can't be met; `param` is the field to blame."""

    default_code = "request"

    @property
    def param(self) -> str:
        """The field, as a path: `messages[0].role`."""
        return self.node


class Record(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Base of what comes in."""


class StreamOptions(Record, frozen=True, kw_only=True):
    """What a stream has beyond the text."""

    include_usage: bool = False
    include_obfuscation: bool = False


class JsonSchema(Record, frozen=True, kw_only=True):
    """A schema that the answer keeps to."""

    schema: JSON | None = None
    name: str = ""
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Record, frozen=True, kw_only=True):
    """What the answer is: any text, any JSON object, JSON of a schema, text of a GBNF grammar."""

    type: Literal["text", "json_object", "json_schema", "grammar"]
    json_schema: JsonSchema | None = None
    grammar: str | None = None


class Common(Record, frozen=True, kw_only=True):
    """What requests for chats and for completions have in common."""

    model: str = ""
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: Positive | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Probability | None = None
    top_k: Whole | None = None
    min_p: Probability | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0, le=10)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, Bias] | None = None
    seed: int | None = None
    stop: str | Stops | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=16)] | None = None
    response_format: ResponseFormat | None = None
    ignore_eos: bool = False
    user: Any = None

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())


class FunctionCall(Record, frozen=True, kw_only=True):
    """A function's name, and its arguments as JSON text."""

    name: str
    arguments: str = "{}"


class ToolCall(Record, frozen=True, kw_only=True):
    """A call; `index` only where it comes in a stream."""

    function: FunctionCall
    id: str = ""
    type: Literal["function"] = "function"
    index: int | msgspec.UnsetType = msgspec.UNSET


class TextPart(Record, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """A part of a message that is text."""

    text: str


class ImageURL(Record, frozen=True, kw_only=True):
    """An image as a data: URL. `detail` is a hint to a service."""

    url: str
    detail: str | None = None


class ImagePart(Record, frozen=True, kw_only=True, tag_field="type", tag="image_url"):
    """A part of a message that is an image."""

    image_url: ImageURL


class LocalImage(Record, frozen=True, kw_only=True, tag_field="type", tag="image"):
    """The same, from Python: an image of pillow or numpy, a file's path or bytes."""

    image: Any


Part = TextPart | ImagePart | LocalImage


class Message(Record, frozen=True, kw_only=True):
    """A message of any role."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    annotations: Any = None
    audio: None = None
    function_call: None = None


class Function(Record, frozen=True, kw_only=True):
    """A tool: its name, what it is for, and the JSON schema of its arguments."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    description: str | None = None
    parameters: JSON | None = None
    strict: bool | None = None


class Tool(Record, frozen=True, kw_only=True):
    """A function that the model may call."""

    function: Function
    type: Literal["function"] = "function"


class FunctionName(Record, frozen=True, kw_only=True):
    """Names a function."""

    name: str


class ToolChoice(Record, frozen=True, kw_only=True):
    """The function that has to be called."""

    function: FunctionName
    type: Literal["function"] = "function"


class ChatRequest(Common, frozen=True, kw_only=True):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: JSON | None = None
    store: Any = None
    metadata: Any = None
    service_tier: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None


class CompletionRequest(Common, frozen=True, kw_only=True):
    """The body of POST /v1/completions. Prompts are texts or lists of token ids."""

    prompt: Texts
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: None = None
    best_of: Literal[1] | None = None


class EmbeddingRequest(Record, frozen=True, kw_only=True):
    """The body of POST /v1/embeddings. Inputs are texts or lists of token ids."""

    input: Texts
    model: str = ""
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Positive | None = None
    user: Any = None


class Usage(msgspec.Struct, frozen=True):
    """Counts of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Timings(msgspec.Struct, frozen=True):
    """Seconds until the first token and from it to the last, and tokens per second of the latter.

    The rate is null where fewer than two tokens came.
    """

    first_token: float
    generation: float
    tokens_per_second: float | None


class TopLogprob(msgspec.Struct, frozen=True):
    """A token that might have come, the natural logarithm of its probability, its bytes."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True):
    """A token that came, and the likeliest in its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class Logprobs(msgspec.Struct, frozen=True):
    """Of the tokens of a message."""

    content: list[TokenLogprob]
    refusal: None = None


Reason = Literal["stop", "length", "tool_calls"]


class Reply(msgspec.Struct, frozen=True):
    """The message that answers."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET
    refusal: None = None


class Choice(msgspec.Struct, frozen=True):
    """One of the answers to a request."""

    index: int
    message: Reply
    finish_reason: Reason
    logprobs: Logprobs | None = None


class ChatCompletion(msgspec.Struct, frozen=True):
    """A whole answer."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    timings: Timings
    object: Literal["chat.completion"] = "chat.completion"


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chunk adds to the message."""

    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChunkChoice(msgspec.Struct, frozen=True):
    """What a chunk adds to one of the answers."""

    index: int
    delta: Delta
    finish_reason: Reason | None = None
    logprobs: Logprobs | None = None


class ChatChunk(msgspec.Struct, frozen=True):
    """A part of an answer in a stream. The last has no choices but usage, if that was asked for."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    timings: Timings | msgspec.UnsetType = msgspec.UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Of a completion's tokens, in lists of equal length; offsets are characters of its text."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True):
    """A completed text, or what a chunk adds to it."""

    index: int
    text: str
    finish_reason: Reason | None = None
    logprobs: CompletionLogprobs | None = None


class Completion(msgspec.Struct, frozen=True):
    """A whole answer, or a part of one in a stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    timings: Timings | msgspec.UnsetType = msgspec.UNSET
    object: Literal["text_completion"] = "text_completion"


class Embedding(msgspec.Struct, frozen=True):
    """A vector: numbers, or their bytes (f32, little-endian) in base64."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """Counts of tokens."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(msgspec.Struct, frozen=True):
    """The vectors of all inputs, in their order."""

    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


class ModelInfo(msgspec.Struct, frozen=True):
    """A model that answers."""

    id: str
    created: int
    owned_by: str = "edgerelax"
    object: Literal["model"] = "model"


class ModelList(msgspec.Struct, frozen=True):
    """All of them."""

    data: list[ModelInfo]
    object: Literal["list"] = "list"


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with a request, or went wrong with it."""

    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The body of an answer that is an error."""

    error: Fault


Asked = TypeVar("Asked", bound=Record)
_PLACE = re.compile(r" - at `\$\.?(.*)`\Z")
_FIELD = re.compile(r"field `(\w+)`")


def read(data: bytes | str, kind: type[Asked]) -> Asked:
    """A request from JSON. Raises RequestError that names the field."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise _request_error(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error


def convert(fields: JSON, kind: type[Asked]) -> Asked:
    """A request from Python's dicts and lists. Raises RequestError that names the field."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise _request_error(str(error)) from error


@contextmanager
def blaming(field: str) -> Iterator[None]:
    """Lays what is wrong with an input at a field's door."""
    try:
        yield
    except RequestError:
        raise
    except InputError as error:
        raise RequestError(f"{field}: {error.message}", node=field, hint=error.hint) from error


def texts_of(given: Texts, field: str) -> list[str | list[int]]:
    """The texts, as such or as tokens. Raises RequestError for none, and for several kinds."""
    if isinstance(given, str):
        return [given]
    if given and all(isinstance(item, int) for item in given):
        return [[item for item in given if isinstance(item, int)]]
    several = [item for item in given if not isinstance(item, int)]
    if not given or len({type(item) for item in given}) > 1:
        raise RequestError(f"{field}: expected texts, or tokens, and at least one", node=field)
    return several


def _request_error(text: str) -> RequestError:
    place = _PLACE.search(text)
    path = "" if place is None else place[1]
    said = text if place is None else text[: place.start()]
    field = _FIELD.search(said)
    if field is not None:  # a missing or unknown one: the place is what it is missing from
        path = f"{path}.{field[1]}" if path else field[1]
    return RequestError(f"{path}: {said}" if path else said, node=path)
