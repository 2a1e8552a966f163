"""The WebAssembly prelude: the functions of `*.wat` that a text calls, and imports of libm."""

import re
from functools import cache
from importlib import resources

_FUNCTION = re.compile(r"^\(func \$(\w+) .*?(?=^(?:\(func|;;)|\Z)", re.MULTILINE | re.DOTALL)
_CALL = re.compile(r"\(call \$(\w+)")
_BINARY = frozenset(("pow", "fmod"))


@cache
def _functions() -> dict[str, str]:
    found: dict[str, str] = {}
    for file in sorted(resources.files("edgerelax.codegen.wat").iterdir(), key=str):
        if file.name.endswith(".wat"):
            for match in _FUNCTION.finditer(file.read_text()):
                found[match.group(1)] = match.group().strip()
    return found


def prelude_for(text: str) -> tuple[list[str], list[str]]:
    """Imports and functions that a text calls, directly or not."""
    functions: dict[str, str] = {}
    imports: dict[str, str] = {}
    todo = list(dict.fromkeys(_CALL.findall(text)))
    while todo:
        name = todo.pop()
        if name in functions or name in imports:
            continue
        if name.startswith("er_"):
            imports[name] = _import(name)
            continue
        functions[name] = _functions().get(name) or _derived(name)
        todo.extend(_CALL.findall(functions[name]))
    return [imports[n] for n in sorted(imports)], [functions[n] for n in sorted(functions)]


def _import(name: str) -> str:
    """A libm function of the VM: er_sinf is f32, er_sin f64."""
    stem = name.removeprefix("er_")
    type_ = "f32" if stem.endswith("f") and stem != "erf" else "f64"
    params = " ".join([type_] * (2 if stem.removesuffix("f") in _BINARY else 1))
    return f'(import "env" "{name}" (func ${name} (param {params}) (result {type_})))'


def _derived(name: str) -> str:
    """A scalar form of a vector function (exp_f32), or a libm function lane by lane."""
    if name.startswith("lanes_"):
        return _by_lane(name, name.removeprefix("lanes_"))
    stem = name.removesuffix("_f32")
    if f"{stem}_v" not in _functions():
        raise KeyError(f"the prelude has no function {name}")
    return (
        f"(func ${name} (param $x f32) (result f32)\n"
        f"  (f32x4.extract_lane 0 (call ${stem}_v (f32x4.splat (local.get $x)))))"
    )


def _by_lane(name: str, scalar: str) -> str:
    binary = scalar.removeprefix("er_").removesuffix("f") in _BINARY
    names = ("a", "b") if binary else ("a",)
    params = " ".join(f"(param ${n} v128)" for n in names)
    result = "(v128.const f32x4 0 0 0 0)"
    for k in range(4):
        args = " ".join(f"(f32x4.extract_lane {k} (local.get ${n}))" for n in names)
        result = f"(f32x4.replace_lane {k} {result} (call ${scalar} {args}))"
    return f"(func ${name} {params} (result v128)\n  {result})"
