"""Loop functions and passes of the user's: they fuse with the rest, and are checked."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import edgerelax.api as api
from edgerelax.ir.builder import Function
from edgerelax.ir.diagnostics import InputError, PassError
from edgerelax.ir.dtypes import F32, U32
from edgerelax.ir.graph import Binding, Block, CallGraph, CallTIR, GraphFunc, Module, Var
from edgerelax.ir.loop import LoopFunc, Stage, grid
from edgerelax.ir.outcome import Outcome
from edgerelax.ir.scalar import Buffer, Value, cast, op
from edgerelax.ops import OPS
from edgerelax.pipeline import Pass
from tests.passes.programs import N, build

K, M = 64, 48
RNG = np.random.default_rng(5)
CODES = RNG.integers(0, 16, (K, M)).astype(np.uint32)
STEPS = RNG.uniform(0.05, 0.2, (K // 32, M)).astype(np.float32)
PACKED = (CODES.reshape(K // 8, 8, M) << (4 * np.arange(8, dtype=np.uint32)[:, None])).sum(
    1, dtype=np.uint32
)


def decode_q4() -> LoopFunc:
    """Words of eight 4-bit codes and a step for each 32 rows, to numbers."""
    words, steps = Buffer.of("words", U32, K // 8, M), Buffer.of("steps", F32, K // 32, M)
    out = Buffer.of("out", F32, K, M)
    i, j = grid(out)
    code = op("bit_and", op("shr", words[i // 8, j], cast(Value(i % 8 * 4), U32)), 15)
    stage = Stage(out, (i, j), (cast(code, F32) - 8.0) * steps[i // 32, j])
    return LoopFunc("decode_q4", (words, steps), (out,), (stage,))


def test_weights_are_decoded_inside_the_product() -> None:
    """No kernel of its own, and no memory for the weights but panels for many rows on the CPU."""

    def body(f: Function) -> None:
        x = f.input("x", (N, K), F32)
        w = f.call_tir(decode_q4(), f.constant("words", PACKED), f.constant("steps", STEPS))
        f.output("y", f.call(OPS["relu"], f.call(OPS["matmul"], x, w)))

    made = api.compile(build(body), variants=("software", "cpu"), verify=True)
    for program in made.artifact.manifest.programs:
        assert list(made.report.strategies[program.name]) == ["decode_q4_1_matmul_relu"]
        assert made.report.launches[program.name] == 1
        panels = K * 8 * 4 * (M // 8) if program.device == "cpu" else 0
        assert program.memory.planned == 64 * M * 4 + panels  # the result, and these
    # one row reads the words as they are given, several in the order of tiles; never as floats
    assert {w.bytes for w in made.artifact.manifest.weights} == {PACKED.nbytes, STEPS.nbytes}
    weights = (CODES.astype(np.float32) - 8) * STEPS.repeat(32, 0)
    for device in ("cpu", "wgpu"):
        with made.session(device) as session:
            for rows in (1, 7, 64):
                x = RNG.standard_normal((rows, K)).astype(np.float32)
                wanted = np.maximum(x @ weights, 0)
                np.testing.assert_allclose(session.run({"x": x})["y"], wanted, rtol=1e-4, atol=1e-4)


def chain() -> Module:
    def body(f: Function) -> None:
        x = f.input("x", (N, 8), F32)
        for name in ("exp", "tanh", "neg"):
            x = f.call(OPS[name], x)
        f.output("y", x)

    return build(body)


def group_first_two(module: Module) -> Module:
    """Outline exp and tanh, as fuse would outline all three."""
    main = module.funcs["main"]
    first, second, *rest = main.body.bindings
    assert isinstance(first.value, CallTIR) and isinstance(second.value, CallTIR)
    (source,) = first.value.args
    param = Var("x", source.annotation)
    inner = (Binding(first.var, replace(first.value, args=(param,))), second)
    own = GraphFunc("mine", (param,), Block(inner, (second.var,)), ("y",), {"primitive": True})
    call = Binding(second.var, CallGraph("mine", (source,)))
    body = Block((call, *rest), main.body.results)
    return replace(module, funcs={"mine": own, "main": replace(main, body=body)})


def test_a_group_of_ones_own_is_left_alone() -> None:
    whole = api.compile(chain(), target="cpu")
    made = api.compile(chain(), target="cpu", passes=[("fuse", group_first_two)])
    assert whole.report.launches["cpu"] == 1
    assert made.report.launches["cpu"] == 2 and "mine" in made.report.strategies["cpu"]
    x = RNG.standard_normal((3, 8)).astype(np.float32)
    with made.session("cpu") as session:
        np.testing.assert_allclose(session.run({"x": x})["y"], -np.tanh(np.exp(x)), rtol=1e-5)


def counting(seen: list[str], name: str) -> Pass:
    def own(module: Module) -> Module:
        seen.append(name)
        outcome = Outcome()
        outcome.did("looked")
        return outcome.on(module)

    own.__name__ = f"own_{name}"
    return own


@pytest.mark.parametrize("without", [(), ("fuse",)])
def test_passes_run_before_the_named_ones(without: tuple[str, ...]) -> None:
    """In their order, for each device where devices differ, even where the other is left out."""
    seen: list[str] = []
    passes = [(at, counting(seen, at)) for at in ("fuse", "legalize", "cse")]
    passes.append(("cse", counting(seen, "again")))
    made = api.compile(
        chain(), passes=passes, variants=("software", "cpu"), without=without, verify=True
    )
    assert seen == ["cse", "again", "legalize", "fuse", "fuse"]
    assert made.report.passes["own_cse"]["done"] == {"looked": 1}
    assert {"cpu-own_fuse", "gpu-own_fuse"} <= made.report.passes.keys()


def lose_a_binding(module: Module) -> Module:
    main = module.funcs["main"]
    body = replace(main.body, bindings=main.body.bindings[1:])
    return module.with_func(replace(main, body=body))


def test_what_a_pass_makes_is_checked() -> None:
    with pytest.raises(PassError, match="lose_a_binding made an ill-formed program"):
        api.compile(chain(), target="cpu", passes=[("cse", lose_a_binding)])


@pytest.mark.parametrize("name", ["dce", "fusion", "plan_memory"])
def test_places_that_there_are_not(name: str) -> None:
    """Of several places of one name, none is meant."""
    own: Callable[[Module], Module] = lose_a_binding
    with pytest.raises(InputError, match=f"no pass can be put before '{name}'"):
        api.compile(chain(), target="cpu", passes=[(name, own)])
