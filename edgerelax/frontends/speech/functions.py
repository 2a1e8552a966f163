"""The functions of a speech model's module."""

from collections.abc import Mapping

import msgspec

from edgerelax.frontends.dims import Dims, DimSpec
from edgerelax.frontends.language.drawing import drawing_states
from edgerelax.frontends.language.functions import STEPS, StepSizes, add_steps, described
from edgerelax.frontends.language.sampling import Settings, adjusted, sample
from edgerelax.frontends.language.storage import Kind
from edgerelax.frontends.language.text import Text
from edgerelax.frontends.nn import Input, Tensor, trace
from edgerelax.frontends.nn.functional import concat
from edgerelax.frontends.nn.tensor import apply
from edgerelax.frontends.speech.info import SPEECH, SpeechInfo
from edgerelax.frontends.speech.mel import Mel, log_mel
from edgerelax.frontends.speech.whisper import Heard, Whisper, memory_names
from edgerelax.ir.dtypes import F32, I32, U32
from edgerelax.ir.graph import Module
from edgerelax.sym import Expr, ceildiv

DIMS = ("batch", "length", "pages", "samples")

States = Mapping[str, Tensor]


def speech_module(
    model: Whisper,
    mel: Mel,
    info: SpeechInfo,
    dims: Mapping[str, DimSpec] | None = None,
    architecture: str = "",
    text: Text | None = None,
    cache: Kind = "f32",
) -> Module:
    """A module with the functions of a speech model.

    `encode`: audio f32[batch, samples], a window at most, and rows i32[batch]. What the decoder
    attends to goes to these rows of the memory. `step` and what draws from its logits are those of
    a language model (language_module), whose texts attend to the memory's rows that they have.
    `timed`: as `sample`, of the tokens that `allowed` has (sampling.adjusted); a timestamp where
    all of them together are likelier than any other token.

    `dims` may give sizes or bounds of `batch`, `length`, `pages` and `samples`. `text` and `info`
    become assets. `cache` says how keys and values of texts are stored. Raises InputError for a dim
    that the model does not have.
    """
    config = model.decoder.config
    wanted = Dims(dims)
    sizes = StepSizes.of(wanted, config.context)
    samples = wanted.make("samples", "samples", mel.window)
    wanted.finish(DIMS)
    memory = memory_states(model, sizes.rows)

    def encode(audio: Tensor, rows: Tensor, states: States) -> dict[str, Tensor]:
        heard = model.decoder.memory(model.encoder(log_mel(audio, mel)))
        at = rows.reshape(sizes.batch, 1)
        return {name: apply("scatter_nd", states[name], at, x) for name, x in heard.items()}

    rows = Input((sizes.batch,), I32)
    inputs = {"audio": Input((sizes.batch, samples), F32), "rows": rows}
    module = trace(encode, inputs, "encode", states=memory)
    module = add_steps(module, model.decoder, config.vocabulary, sizes, memory, Heard, cache)
    module = _add_timed(module, sizes, config.vocabulary, info.first_timestamp)
    functions = {"encode": "encode", **STEPS, "timed": "timed"}
    module = described(module, config, functions, architecture, text)
    module.attrs["assets"] = {
        **module.attrs.get("assets", {}),
        SPEECH: msgspec.json.format(msgspec.json.encode(info), indent=1),
    }
    return module


def memory_states(model: Whisper, rows: Expr) -> dict[str, Input]:
    """The states of `Heard`'s memory."""
    config = model.decoder.config
    shape = rows, model.sizes.frames, config.groups, config.head_width
    names = [name for k in range(config.layers) for name in memory_names(k)]
    return {name: Input(shape, F32) for name in names}


def _add_timed(module: Module, sizes: StepSizes, vocabulary: int, first: int | None) -> Module:
    def timed(
        rows: Tensor,
        numbers: Tensor,
        integers: Tensor,
        steps: Tensor,
        allowed: Tensor,
        states: States,
    ) -> dict[str, Tensor]:
        settings = Settings(numbers, integers, steps)
        logits = apply("gather", states["last_logits"], rows, axis=0)
        logits = adjusted(logits, settings, allowed=allowed)
        if first is not None:
            logits = _favoured(logits, first)
        token, logprob = sample(logits, settings)
        at = rows.reshape(sizes.batch, 1)
        drawn = apply("scatter_nd", states["drawn"], at, token)
        return {"token": token, "logprob": logprob, "drawn": drawn}

    every = drawing_states(sizes.rows, vocabulary)
    inputs = {"rows": Input((sizes.batch,), I32), **Settings.inputs(sizes.batch)}
    inputs["allowed"] = Input((sizes.batch, ceildiv(vocabulary, 32)), U32)
    states = {name: every[name] for name in ("last_logits", "drawn")}
    return trace(timed, inputs, "timed", module, states)


def _favoured(logits: Tensor, first: int) -> Tensor:
    """No other tokens where those from `first` on are likelier together than any other."""
    others, times = logits.split((first, logits.dims[1] - first))
    together = apply("reduce_log_sum_exp", times, axes=(1,), keepdims=True)
    best = apply("reduce_max", others, axes=(1,), keepdims=True)
    hidden = apply("gt", together, best)
    return concat((apply("where", hidden, float("-inf"), others), times))
