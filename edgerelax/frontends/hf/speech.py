"""From a Hugging Face folder of a speech model to a module."""

from pathlib import Path
from typing import Any

from edgerelax.frontends.hf.reading import Folder, Weights, read_object
from edgerelax.frontends.hf.text import added_tokens, text_of
from edgerelax.frontends.language.settings import Settings
from edgerelax.frontends.language.weights import load_weights, name_of
from edgerelax.frontends.nn.quantise import Quantiser
from edgerelax.frontends.speech.functions import speech_module
from edgerelax.frontends.speech.info import SpeechInfo
from edgerelax.frontends.speech.mel import Mel
from edgerelax.frontends.speech.whisper import NAMES, STRIDE, Sizes, Whisper, sizes_of
from edgerelax.ir.diagnostics import InputError
from edgerelax.ir.graph import Module

TYPES = ("whisper",)
"""`model_type` of config.json that are read here."""
AUDIO, PROCESSOR = "preprocessor_config.json", "processor_config.json"
GENERATION = "generation_config.json"


def load_speech(folder: Folder) -> Module:
    """The module of a folder's speech model: see `speech_module`.

    Raises InputError and UnsupportedError, as `load` does.
    """
    path, settings = folder.path, folder.settings
    sizes = sizes_of(settings, folder.longest)
    mel = mel_of(path, sizes)
    info = info_of(path, settings, mel)
    text = text_of(path, settings)
    if not text.eos:
        raise InputError(f"{path.name}: nothing says which token ends a text (eos_token_id)")
    model = whisper_of(path, sizes, folder.quantiser)
    return speech_module(model, mel, info, folder.dims, folder.kind, text, folder.cached)


def whisper_of(folder: Path, sizes: Sizes, quantiser: Quantiser | None = None) -> Whisper:
    """The folder's model with its weights."""
    model, weights = Whisper(sizes), Weights(folder)
    prefix = "model." if any(name.startswith("model.") for name in weights.names) else ""

    def name(parameter: str) -> str:
        own = name_of(parameter, NAMES)
        return own if parameter.startswith("decoder.head.") else prefix + own

    unused = [r"proj_out\.weight"] if sizes.decoder.tied else []
    load_weights(model, weights, name, unused, quantiser=quantiser)
    return model


def mel_of(folder: Path, sizes: Sizes) -> Mel:
    """How audio becomes spectrograms. Raises InputError where it does not fit the encoder."""
    said = _audio(folder)
    rate = said.integer("sampling_rate", default=16000)
    seconds = said.integer("chunk_length", default=30)
    mel = Mel(
        rate,
        rate * seconds,
        said.integer("n_fft", default=400),
        said.integer("hop_length", default=160),
        said.integer("feature_size", default=80),
    )
    given, wanted = (mel.frames, mel.bands), (STRIDE * sizes.frames, sizes.bands)
    if given != wanted:
        raise InputError(
            f"{said.origin} makes {mel.frames} frames of {mel.bands} bands; by config.json the "
            f"encoder takes {wanted[0]} of {wanted[1]}"
        )
    return mel


def _audio(folder: Path) -> Settings:
    """The settings of the feature extractor, in a file of their own or within another."""
    if not (folder / AUDIO).is_file() and (folder / PROCESSOR).is_file():
        found = read_object(folder / PROCESSOR).part("feature_extractor")
        if found is not None:
            return found
    return read_object(folder / AUDIO)


def info_of(folder: Path, settings: Settings, mel: Mel) -> SpeechInfo:
    """Languages, tasks, timestamps and what never comes, by generation_config.json."""
    own = read_object(folder / GENERATION)
    said = Settings({**settings.values, **own.values}, GENERATION)
    silent = said.integer("no_timestamps_token_id", default=-1)
    languages = {name.strip("<|>"): token for name, token in _ids(said, "lang_to_id").items()}
    info = SpeechInfo(
        rate=mel.rate,
        window=mel.window,
        tick=STRIDE * mel.hop,
        start=said.integer("decoder_start_token_id"),
        languages=languages,
        tasks=_ids(said, "task_to_id") if languages else {},
        forced=[] if languages else _forced(said, silent),
        no_timestamps=silent if silent >= 0 else None,
        first_timestamp=silent + 1 if silent >= 0 else None,
        no_speech=silent - 1 if silent > 0 else None,
        previous=_previous(folder, said),
        suppress=said.items("suppress_tokens", int),
        begin_suppress=said.items("begin_suppress_tokens", int),
        max_initial_timestamp=said.value("max_initial_timestamp_index", default=None),
    )
    vocabulary = settings.integer("vocab_size")
    outside = [token for token in info.tokens() if not 0 <= token < vocabulary]
    if outside:
        raise InputError(f"{GENERATION} names token {outside[0]} of a vocabulary of {vocabulary}")
    return info


def _ids(said: Settings, name: str) -> dict[str, int]:
    part = said.part(name)
    return {} if part is None else {key: part.integer(key) for key in part.values}


def _forced(said: Settings, silent: int) -> list[int]:
    """What follows the first token, as older files have it: pairs of a position and an id."""
    pairs = said.items("forced_decoder_ids", list)
    found = [token for _, token in sorted(pairs) if token is not None]
    return [token for token in found if token != silent]


def _previous(folder: Path, said: Settings) -> int | None:
    found: Any = said.value("prev_sot_token_id", default=None)
    if found is None:
        found = added_tokens(folder).get("<|startofprev|>")
    return found if isinstance(found, int) else None
