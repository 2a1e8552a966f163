"""A speech model's artifact as something that transcribes."""

from pathlib import Path

import msgspec

from edgerelax.api import open_session
from edgerelax.artifact.store import Artifact
from edgerelax.chat.closing import Closing
from edgerelax.chat.text import Text
from edgerelax.frontends.speech.info import SPEECH, SpeechInfo
from edgerelax.hosts.session import Session
from edgerelax.ir.arguments import checked
from edgerelax.ir.diagnostics import FormatError, InputError
from edgerelax.speech.listener import Listener
from edgerelax.speech.transcribe import Transcriber


class LoadedTranscriber(Transcriber, Closing):
    """A transcriber and the session that it runs on. Closing it frees both."""

    def __init__(self, session: Session, name: str = "edgerelax") -> None:
        """Raises InputError for an artifact of no speech model."""
        text, info = Text.of(session.artifact), info_of(session.artifact)
        language = session.artifact.manifest.language
        assert language is not None
        super().__init__(Listener(session, language), text, info)
        self.session, self.name = session, name

    def close(self) -> None:
        """Free the model's memory. Nothing may be under way."""
        self.session.close()


@checked
def load_transcriber(
    folder: str | Path,
    device: str = "auto",
    *,
    variant: str | None = None,
    threads: int | None = None,
    name: str | None = None,
) -> LoadedTranscriber:
    """Load a speech model's artifact to transcribe audio.

    `device`, `variant` and `threads` are as for `load`. `name` is the model's where it is served,
    else the folder's. Raises InputError for an artifact that is
    of no speech model.
    """
    path = Path(folder)
    artifact = Artifact.open(path)
    Text.of(artifact)  # these say what is missing before the weights are read
    info_of(artifact)
    session = open_session(artifact, device, variant, threads=threads)
    try:
        return LoadedTranscriber(session, name or path.resolve().name)
    except BaseException:
        session.close()
        raise


def info_of(artifact: Artifact) -> SpeechInfo:
    """What an artifact says of its speech model. Raises InputError where it says nothing."""
    language = artifact.manifest.language
    if SPEECH not in artifact.manifest.assets or language is None:
        raise InputError("this artifact is no speech model", hint="export a speech model's folder")
    try:
        info = msgspec.json.decode(artifact.asset(SPEECH), type=SpeechInfo)
    except msgspec.MsgspecError as error:
        raise FormatError(f"{SPEECH}: {error}") from error
    if any(not 0 <= token < language.vocabulary for token in info.tokens()) or not language.eos:
        raise FormatError(f"{SPEECH} names tokens that the model does not have")
    return info
