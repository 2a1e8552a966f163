"""From a file, bytes or a ModelProto to a checked `Source`, from which the importer starts."""

from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]

from edgerelax.frontends.onnx.external import Beside
from edgerelax.ir.diagnostics import FormatError, InputError, UnsupportedError

NEWEST_OPSET = 28
OLDEST_OPSET = 7
DEFAULT_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True, slots=True)
class Source:
    """A model and where it came from. `beside` is None if it came as bytes."""

    model: onnx.ModelProto
    label: str
    beside: Beside | None


def read_model(model: "str | Path | bytes | onnx.ModelProto") -> Source:
    """Read and check the outer structure. Raises FormatError for what is no ONNX model."""
    match model:
        case onnx.ModelProto():
            source = Source(model, model.graph.name or "model", None)
        case bytes() | bytearray() | memoryview():
            source = Source(_parse(bytes(model), "model"), "model", None)
        case str() | Path():
            source = _read_file(Path(model))
        case _:
            raise InputError(
                f"model is a {type(model).__name__}, not a path, bytes or an onnx.ModelProto"
            )
    _check(source)
    return source


def _read_file(path: Path) -> Source:
    if path.is_dir():
        found = sorted(p.name for p in path.glob("*.onnx"))
        hint = f"it holds {', '.join(found)}" if found else "it holds no .onnx file"
        raise InputError(f"{path} is a folder, not an ONNX file", hint=hint)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    return Source(_parse(data, path.name), path.name, Beside.of(path))


def _parse(data: bytes, label: str) -> onnx.ModelProto:
    if data.startswith(b"version https://git-lfs"):
        raise FormatError(
            f"{label}: a Git LFS pointer, not the model itself", hint="fetch it with `git lfs pull`"
        )
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise FormatError(
            f"{label}: {len(data)} bytes that are no ONNX model, or one cut short ({error})",
            hint=_other_form(label),
        ) from None
    return proto


def _other_form(label: str) -> str:
    if Path(label).suffix in (".json", ".safetensors"):
        return f"name the folder that {label} is in"
    return "check the download's size"


def _check(source: Source) -> None:
    model, label = source.model, source.label
    _check_text(model, label)
    if not model.HasField("graph") or not model.graph.output:
        raise FormatError(f"{label}: no ONNX model: it has no graph with outputs")
    if not model.opset_import:
        raise FormatError(f"{label}: the model does not say which operator sets it uses")
    version = opsets(model.opset_import).get("", NEWEST_OPSET)
    if not OLDEST_OPSET <= version <= NEWEST_OPSET:
        raise UnsupportedError(
            f"{label}: ONNX opset {version}; supported are {OLDEST_OPSET} to {NEWEST_OPSET}",
            hint="convert it with onnx.version_converter",
        )


def _check_text(message: Message, label: str) -> None:
    """Names must be UTF-8: protobuf gives bytes for those that are not."""
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in [value] if isinstance(value, Message) else value:
                _check_text(inner, label)
        elif field.type == FieldDescriptor.TYPE_STRING:
            texts = value if not isinstance(value, str | bytes) else [value]
            if any(isinstance(text, bytes) for text in texts):
                raise FormatError(f"{label}: a {field.name} that is no UTF-8 text: {value!r}")


def opsets(imports: "list[onnx.OperatorSetIdProto]") -> dict[str, int]:
    """Version by domain, the default domain as ''."""
    return {"" if o.domain in DEFAULT_DOMAINS else o.domain: o.version for o in imports}
