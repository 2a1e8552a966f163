"""A language model's artifact as something to talk with."""

from pathlib import Path

from edgerelax.api import open_session
from edgerelax.artifact.store import Artifact
from edgerelax.chat.closing import Closing
from edgerelax.chat.embedding import SessionEmbedder
from edgerelax.chat.generate import Chat
from edgerelax.chat.paged import PagedEngine
from edgerelax.chat.text import Text
from edgerelax.frontends.speech.info import SPEECH
from edgerelax.hosts.session import Session
from edgerelax.ir.arguments import checked
from edgerelax.ir.diagnostics import InputError

TEXTS = 8
"""How many answers are written at once, if nobody says."""


class LoadedChat(Chat, Closing):
    """A chat and the session that it runs on. Closing it frees both."""

    def __init__(
        self,
        session: Session,
        name: str = "edgerelax",
        cache_tokens: int | None = None,
        texts: int = TEXTS,
        window: int | None = None,
        sinks: int | None = None,
    ) -> None:
        """Raises InputError for an artifact of no language model, and of one that does nothing."""
        text, language = Text.of(session.artifact), session.artifact.manifest.language
        assert language is not None
        embedder = SessionEmbedder(session, language) if "embed" in language.functions else None
        only_embeds = embedder is not None and "step" not in language.functions
        self.paged = None if only_embeds else PagedEngine(
            session, language, cache_tokens, texts, window, sinks
        )  # fmt: skip
        super().__init__(text, self.paged, name, embedder, window)
        self.session = session

    def close(self) -> None:
        """Free the model's memory. Nothing may be under way."""
        self.session.close()
        if self.album is not None:
            self.album.clear()


@checked
def load_chat(
    folder: str | Path,
    device: str = "auto",
    *,
    variant: str | None = None,
    threads: int | None = None,
    cache_tokens: int | None = None,
    texts: int = TEXTS,
    window: int | None = None,
    sinks: int | None = None,
    name: str | None = None,
) -> LoadedChat:
    """Load a language model's artifact to talk with.

    `device`, `variant` and `threads` are as for `load`. `cache_tokens` are what the cache of keys
    and values has room for, of all texts together; None takes the model's context, 4096 at most.
    `texts` are how many answers are written at once. With a `window` texts may be longer than it
    and than the context: the first `sinks` tokens (4) of each and the newest of the others are
    kept, `window` in all. `name` is the model's in requests and answers, else the folder's. Raises
    InputError for an artifact of no language model, or of one whose texts cannot go on like that.
    """
    path = Path(folder)
    artifact = Artifact.open(path)
    Text.of(artifact)  # says what is missing before the weights are read
    if SPEECH in artifact.manifest.assets:
        raise InputError("this artifact is of a speech model", hint="use load_transcriber")
    session = open_session(artifact, device, variant, threads=threads)
    try:
        called = name or path.resolve().name
        return LoadedChat(session, called, cache_tokens, texts, window, sinks)
    except BaseException:
        session.close()
        raise
