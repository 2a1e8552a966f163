"""The WGSL prelude: finding the functions that a text calls, in the forms it calls them.

Files of `prelude/*.wgsl` hold functions over F, I, U and B, which stand for f32, i32, u32 and bool,
or in the form with suffix _v2 or _v4 for their vectors. Functions of plain scalars get such forms
by being applied to each lane.
"""

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

_FUNCTION = re.compile(r"^fn (er_\w+)\((.*?)\) -> (\S+) \{\n.*?^\}\n", re.MULTILINE | re.DOTALL)
_CALL = re.compile(r"\ber_[a-z0-9_]+\b")
_GENERIC = re.compile(r"\b[FIUB]\b")
_FORM = re.compile(r"_v([24])$")
_SCALAR_LITERAL = re.compile(r"\b(?:f32|i32|u32)\((-?(?:0x[0-9a-f]+u?|[0-9][0-9.e+-]*[fu]?))\)")
_SCALARS = {"F": "f32", "I": "i32", "U": "u32", "B": "bool"}


@dataclass(frozen=True, slots=True)
class _Function:
    name: str
    params: str
    result: str
    text: str

    @property
    def is_generic(self) -> bool:
        return bool(_GENERIC.search(f"{self.params} {self.result}"))


@cache
def _functions() -> dict[str, _Function]:
    found: dict[str, _Function] = {}
    for file in sorted(
        resources.files("edgerelax.codegen.prelude").iterdir(), key=lambda f: f.name
    ):
        if file.name.endswith(".wgsl"):
            for match in _FUNCTION.finditer(file.read_text()):
                name, params, result = match.groups()
                found[name] = _Function(name, params, result, match.group())
    return found


def prelude_for(text: str) -> str:
    """All prelude functions that a text needs, callees first."""
    done: dict[str, str] = {}
    for name in dict.fromkeys(_CALL.findall(text)):
        _include(name, done)
    return "\n".join(done.values())


def _include(name: str, done: dict[str, str]) -> None:
    if name in done:
        return
    form = None if name in _functions() else _FORM.search(name)
    lanes = int(form.group(1)) if form else 1
    function = _functions()[_FORM.sub("", name) if form else name]
    if lanes > 1 and not function.is_generic:
        _include(function.name, done)
        done[name] = _by_lane(function, lanes)
        return
    text = _specialise(function, lanes)
    for callee in dict.fromkeys(_CALL.findall(text)):
        if callee != name:
            _include(callee, done)
    done[name] = text


def _specialise(function: _Function, lanes: int) -> str:
    """The function for scalars or for vectors, its generic callees alike."""

    def of_type(match: re.Match[str]) -> str:
        scalar = _SCALARS[match.group()]
        return scalar if lanes == 1 else f"vec{lanes}<{scalar}>"

    def callee(match: re.Match[str]) -> str:
        generic = _functions()[match.group()].is_generic
        return match.group() + (f"_v{lanes}" if generic and lanes > 1 else "")

    if not function.is_generic:
        return function.text
    text = _GENERIC.sub(of_type, _CALL.sub(callee, function.text))
    return _SCALAR_LITERAL.sub(r"\1", text) if lanes == 1 else text


def _by_lane(function: _Function, lanes: int) -> str:
    """A vector form that calls the scalar function for each lane; vectors for its f32 and so on."""
    params = [p.split(": ") for p in function.params.split(", ")]
    wide = ", ".join(f"{name}: vec{lanes}<{kind}>" for name, kind in params)
    result = f"vec{lanes}<{function.result}>"
    each = (
        f"{function.name}({', '.join(f'{name}.{lane}' for name, _ in params)})"
        for lane in "xyzw"[:lanes]
    )
    body = ", ".join(each)
    return f"fn {function.name}_v{lanes}({wide}) -> {result} {{\n  return {result}({body});\n}}\n"
