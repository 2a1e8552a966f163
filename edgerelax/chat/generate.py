"""Chats, completions and embeddings by a model: requests in, whole answers or streams out."""

import base64
import secrets
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from msgspec import UNSET, UnsetType
from msgspec.structs import replace as changed
from numpy.typing import NDArray

from edgerelax.chat.album import Album
from edgerelax.chat.collect import chat_answer, completion_answer
from edgerelax.chat.contents import Contents
from edgerelax.chat.engine import Embedder, Engine, Picture
from edgerelax.chat.grammar import Grammars
from edgerelax.chat.logprobs import chat_logprobs, completion_logprobs
from edgerelax.chat.openai import (
    ChatChunk,
    ChatCompletion,
    ChatRequest,
    ChunkChoice,
    Common,
    Completion,
    CompletionChoice,
    CompletionRequest,
    Delta,
    Embedding,
    EmbeddingRequest,
    Embeddings,
    EmbeddingUsage,
    FunctionCall,
    RequestError,
    StreamOptions,
    Tool,
    ToolCall,
    blaming,
    texts_of,
)
from edgerelax.chat.prepare import (
    COMPLETION_TOKENS,
    Job,
    Limits,
    MakeGrammar,
    calls_grammar,
    fields_of,
    format_grammar,
    job,
    messages_of,
    tools_of,
)
from edgerelax.chat.reply import Piece, Writer
from edgerelax.chat.text import Text
from edgerelax.chat.tools import Called, format_of, reader
from edgerelax.chat.work import Work

USAGE = StreamOptions(include_usage=True)


@dataclass(frozen=True, slots=True)
class Head:
    """What all chunks of an answer have in common."""

    id: str
    created: int
    model: str
    usage: UnsetType | None


class Chat:
    """A model to talk with. Requests are checked before anything is generated.

    Streams may be closed at any time by who reads them; that ends the work on them. Others end it
    by the `Work` that they gave, which counts as well. A model may lack `engine` or `embedder`.
    Answers of requests that say nothing have up to `answer` tokens; None: as the context has room.
    """

    def __init__(
        self,
        text: Text,
        engine: Engine | None,
        name: str = "edgerelax",
        embedder: Embedder | None = None,
        answer: int | None = None,
    ) -> None:
        self.text, self.engine, self.name = text, engine, name
        self._embedder, self._answer = embedder, answer
        images = text.template.file.images
        self.album = None if images is None else Album(images)
        self._form = format_of(text.template.source)
        ids = map(text.tokenizer.id_of, self._form.marks)
        self._marks = frozenset(token for token in ids if token is not None)

    @cached_property
    def _grammars(self) -> Grammars:
        return Grammars(self.text.tokenizer, self.text.vocabulary, self.text.ends)

    @property
    def _limits(self) -> Limits:
        context, text = self._generator.context, self.text
        return Limits(context, text.vocabulary, text.ends, self._answer)

    @property
    def _generator(self) -> Engine:
        if self.engine is None:
            raise RequestError(
                f"{self.name} gives embeddings, it writes nothing",
                hint="ask /v1/embeddings of `edgerelax serve`, in Python `embed` of the chat",
                node="model",
            )
        return self.engine

    def chat(self, request: ChatRequest, work: Work | None = None) -> ChatCompletion:
        """The whole answer. Raises RequestError for a request that can't be met."""
        return chat_answer(self.stream_chat(changed(request, stream_options=USAGE), work))

    def stream_chat(self, request: ChatRequest, work: Work | None = None) -> Generator[ChatChunk]:
        """The answer as it is written. Raises RequestError at once, not with the first chunk."""
        limits = self._limits
        tools = tools_of(request)
        grammar = calls_grammar(request, self._form, lambda: self._grammars)
        grammar = grammar or format_grammar(request, lambda: self._grammars)
        prompt, pictures = self._prompt(request, tools)
        wanted = request.max_completion_tokens or request.max_tokens
        one = job(request, prompt, "messages", wanted, limits)
        one = replace(one, pictures=pictures)
        names = [tool.function.name for tool in tools]
        marks = self._marks if names else frozenset[int]()
        writers = [
            Writer(
                self.text.tokenizer,
                one.ending,
                True,
                reader(self._form, names) if names else None,
                marks,
            )
            for _ in range(request.n or 1)
        ]
        return self._chat_chunks(request, one, writers, grammar, work or Work())

    def _prompt(
        self, request: ChatRequest, tools: Sequence[Tool]
    ) -> tuple[list[int], list[Picture]]:
        contents = Contents(self.text.template, self.album)
        messages, given = messages_of(request, contents.written), [fields_of(t) for t in tools]
        with blaming("messages"):
            text = self.text.template.render(messages, given, settings=request.chat_template_kwargs)
            return contents.prompt(text, self.text.tokenizer)

    def _chat_chunks(
        self,
        request: ChatRequest,
        one: Job,
        writers: Sequence[Writer],
        grammar: MakeGrammar | None,
        work: Work,
    ) -> Generator[ChatChunk]:
        head = self._head(request, "chatcmpl")
        work.prompt = len(one.prompt)
        for index, writer in enumerate(writers):
            yield _chunk(head, ChunkChoice(index, Delta(role="assistant", content="")))
            called = 0
            for piece in self._pieces(_drawn(one, index), writer, grammar, work):
                logged = request.logprobs and piece.tokens
                probs = chat_logprobs(self.text.tokenizer, piece.tokens) if logged else None
                if piece.text or piece.calls or probs:
                    delta = _delta(piece, called)
                    yield _chunk(head, ChunkChoice(index, delta, None, probs))
                if piece.reason is not None:
                    yield _chunk(head, ChunkChoice(index, Delta(), piece.reason))
                called += len(piece.calls)
        if head.usage is None:
            figures = work.usage(), work.timings()
            yield ChatChunk(head.id, head.created, head.model, [], *figures)

    def complete(self, request: CompletionRequest, work: Work | None = None) -> Completion:
        """The whole completion. Raises RequestError for a request that can't be met."""
        asked = changed(request, stream_options=USAGE)
        return completion_answer(self.stream_completion(asked, work))

    def stream_completion(
        self, request: CompletionRequest, work: Work | None = None
    ) -> Generator[Completion]:
        """Completions as they are written, one after another. Raises RequestError at once."""
        if request.echo and request.logprobs is not None:
            raise RequestError("echo: a prompt's own logprobs are not to be had", node="echo")
        prompts = [self._tokens(given, "prompt") for given in texts_of(request.prompt, "prompt")]
        grammar = format_grammar(request, lambda: self._grammars)
        wanted = request.max_tokens or COMPLETION_TOKENS
        jobs = [job(request, prompt, "prompt", wanted, self._limits) for prompt in prompts]
        return self._completion_chunks(request, jobs, grammar, work or Work())

    def _completion_chunks(
        self,
        request: CompletionRequest,
        jobs: Sequence[Job],
        grammar: MakeGrammar | None,
        work: Work,
    ) -> Generator[Completion]:
        head, count = self._head(request, "cmpl"), request.n or 1
        work.prompt = sum(len(one.prompt) for one in jobs)
        for index in range(len(jobs) * count):
            one = _drawn(jobs[index // count], index % count)
            if request.echo:
                text = self.text.tokenizer.decode(one.prompt)
                yield _completion(head, CompletionChoice(index, text))
            writer = Writer(self.text.tokenizer, one.ending, fresh=False)
            for piece in self._pieces(one, writer, grammar, work):
                logged = request.logprobs is not None and piece.tokens
                probs = completion_logprobs(self.text.tokenizer, piece.tokens) if logged else None
                yield _completion(head, CompletionChoice(index, piece.text, piece.reason, probs))
        if head.usage is None:
            figures = work.usage(), work.timings()
            yield Completion(head.id, head.created, head.model, [], *figures)

    def embed(self, request: EmbeddingRequest) -> Embeddings:
        """A vector for each input. Raises RequestError for a request that can't be met."""
        if self._embedder is None:
            raise RequestError(f"{self.name} gives no embeddings", node="model")
        texts = [self._tokens(given, "input") for given in texts_of(request.input, "input")]
        for tokens in texts:
            if not 0 < len(tokens) <= self._embedder.context:
                raise RequestError(
                    f"input: {len(tokens)} tokens; the model takes 1 to {self._embedder.context}",
                    node="input",
                    code="context_length_exceeded" if tokens else "",
                )
            if max(tokens) >= self.text.vocabulary:
                raise RequestError(
                    f"input: token {max(tokens)}, of {self.text.vocabulary} tokens", node="input"
                )
        vectors = _shortened(self._embedder.embed(texts), request.dimensions)
        count = sum(map(len, texts))
        return Embeddings(
            data=[
                Embedding(k, _written(vector, request.encoding_format == "base64"))
                for k, vector in enumerate(vectors)
            ],
            model=self.name,
            usage=EmbeddingUsage(count, count),
        )

    def _tokens(self, given: str | list[int], field: str) -> list[int]:
        with blaming(field):
            return self.text.tokenizer.encode(given) if isinstance(given, str) else given

    def _head(self, request: Common, kind: str) -> Head:
        with_usage = request.stream_options is not None and request.stream_options.include_usage
        number = f"{kind}-{secrets.token_hex(12)}"
        return Head(number, int(time.time()), self.name, None if with_usage else UNSET)

    def _pieces(
        self, one: Job, writer: Writer, grammar: MakeGrammar | None, work: Work
    ) -> Generator[Piece]:
        """What an answer grows by, to the piece with the reason of its end."""
        mask = None if grammar is None else grammar()
        stream = self._generator.generate(one.prompt, one.sampling, mask, one.pictures)
        work.watch(stream)
        begun: float | None = None
        try:
            work.check()
            for token in stream:
                now = time.perf_counter()
                begun = now if begun is None else begun
                work.first = now - work.started if work.first is None else work.first
                work.generated += 1
                work.steps += writer.count > 0
                piece = writer.push(token)
                if piece:
                    yield piece
                if piece.reason is not None:
                    return
                work.check()
            work.check()
            yield writer.finish()
        finally:
            work.watch(None)
            stream.close()
            if begun is not None:
                work.generation += time.perf_counter() - begun


def _drawn(one: Job, index: int) -> Job:
    """The same for another of several answers: with a seed each has its own."""
    if one.sampling.seed is None or index == 0:
        return one
    return replace(one, sampling=replace(one.sampling, seed=one.sampling.seed + index))


def _chunk(head: Head, choice: ChunkChoice) -> ChatChunk:
    return ChatChunk(head.id, head.created, head.model, [choice], head.usage)


def _completion(head: Head, choice: CompletionChoice) -> Completion:
    return Completion(head.id, head.created, head.model, [choice], head.usage)


def _delta(piece: Piece, called: int) -> Delta:
    calls = [_call(call, called + k) for k, call in enumerate(piece.calls)]
    return Delta(content=piece.text or UNSET, tool_calls=calls or UNSET)


def _call(call: Called, index: int) -> ToolCall:
    function = FunctionCall(name=call.name, arguments=call.arguments)
    return ToolCall(function=function, id=f"call_{secrets.token_hex(12)}", index=index)


def _shortened(vectors: NDArray[np.float32], width: int | None) -> NDArray[np.float32]:
    """The first `width` numbers of each, of length 1 again."""
    if width is None or width == vectors.shape[1]:
        return vectors
    if width > vectors.shape[1]:
        raise RequestError(
            f"dimensions: {width}, the model gives {vectors.shape[1]}", node="dimensions"
        )
    cut = vectors[:, :width]
    length = np.linalg.norm(cut, axis=1, keepdims=True)
    return np.asarray(cut / np.where(length == 0, 1, length), np.float32)


def _written(vector: NDArray[np.float32], as_bytes: bool) -> list[float] | str:
    if as_bytes:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(x) for x in vector]
