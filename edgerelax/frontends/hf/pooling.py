"""How a folder's hidden states become vectors of texts, as sentence-transformers writes it down."""

from pathlib import Path
from typing import Any

from edgerelax.frontends.hf.reading import read_json
from edgerelax.frontends.language.encoder import Pooling
from edgerelax.ir.diagnostics import InputError, UnsupportedError

MODULES = "modules.json"
KINDS: dict[str, Pooling] = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}


def is_embedder(folder: Path) -> bool:
    """Whether a folder says how its model makes vectors."""
    return (folder / MODULES).is_file()


def pooling_of(folder: Path) -> Pooling:
    """The pooling that the folder states; the mean where it states none, as for any BERT."""
    if not is_embedder(folder):
        return "mean"
    found: Pooling = "mean"
    for module in _modules(folder):
        match module.get("type", "").rsplit(".", 1)[-1]:
            case "Transformer" | "Normalize":
                continue
            case "Pooling":
                found = _pooling(folder / module.get("path", "") / "config.json")
            case other:
                raise UnsupportedError(f"{folder.name}: a module {other or 'without a type'}")
    return found


def _modules(folder: Path) -> list[dict[str, Any]]:
    found = read_json(folder / MODULES)
    if not isinstance(found, list) or not all(isinstance(module, dict) for module in found):
        raise InputError(f"{MODULES} holds no list of modules")
    return found


def _pooling(path: Path) -> Pooling:
    said = read_json(path)
    chosen = [name for name, on in said.items() if name.startswith("pooling_mode_") and on is True]
    if len(chosen) != 1 or chosen[0] not in KINDS:
        raise UnsupportedError(
            f"{path.parent.name}: pooling by {', '.join(chosen) or 'nothing'}",
            hint=f"known are {', '.join(KINDS)}, one of them",
        )
    return KINDS[chosen[0]]
