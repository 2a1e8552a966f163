"""Reading command-line arguments: dims."""

import re
from collections.abc import Sequence

from edgerelax.frontends.dims import DimSpec
from edgerelax.ir.diagnostics import InputError

_DIM = re.compile(r"(?P<name>.+?)=(?P<lo>\d+)(?P<range>\.\.(?P<hi>\d*))?(?::(?P<multiple>\d+))?")


def parse_dims(texts: Sequence[str]) -> dict[str, DimSpec]:
    """`batch=4`, `batch=1..8`, `seq=1..` (no limit), `width=32..960:32` (a multiple of 32)."""
    out: dict[str, DimSpec] = {}
    for text in texts:
        match = _DIM.fullmatch(text)
        if match is None:
            raise InputError(
                f"--dim {text}: not understood",
                hint="write NAME=4, NAME=1..8, NAME=1.. or NAME=32..960:32",
            )
        if match["name"] in out:
            raise InputError(f"--dim {text}: '{match['name']}' was given before")
        lo = int(match["lo"])
        if match["range"] is None and match["multiple"] is None:
            out[match["name"]] = lo
        else:
            hi = int(match["hi"]) if match["hi"] else None
            out[match["name"]] = (lo, hi, int(match["multiple"] or 1))
    return out
