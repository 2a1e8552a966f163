"""What an artifact says of its speech model beside the program: the asset speech.json."""

import msgspec

SPEECH = "speech.json"


class SpeechInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Audio in samples, `rate` of them a second; tokens by their ids.

    Attributes:
        rate: samples per second.
        window: samples that the encoder takes.
        tick: samples from one timestamp to the next.
        start: begins every text.
        languages: of each language's code; empty for a model of one language.
        tasks: of `transcribe` and `translate`; empty where the model has one.
        forced: what follows `start` in a model without languages.
        no_timestamps: says that a text has none; None for a model that never has.
        first_timestamp: that of the window's begin; those that follow are ticks later.
        no_speech: how likely it is after `start` says whether nobody speaks.
        previous: begins what was said before the window.
        suppress: never come.
        begin_suppress: never come first.
        max_initial_timestamp: ticks after which no text begins.
    """

    rate: int
    window: int
    tick: int
    start: int
    languages: dict[str, int] = {}
    tasks: dict[str, int] = {}
    forced: list[int] = []
    no_timestamps: int | None = None
    first_timestamp: int | None = None
    no_speech: int | None = None
    previous: int | None = None
    suppress: list[int] = []
    begin_suppress: list[int] = []
    max_initial_timestamp: int | None = None

    def tokens(self) -> list[int]:
        """All ids in it."""
        maybe = self.no_timestamps, self.first_timestamp, self.no_speech, self.previous
        found = [self.start, *self.languages.values(), *self.tasks.values(), *self.forced]
        found += [token for token in maybe if token is not None]
        return [*found, *self.suppress, *self.begin_suppress]
