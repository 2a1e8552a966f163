"""Programs that several tests use."""

from edgerelax.codegen.program import Binding, InputSpec, OutputSpec, ProgramBuilder
from edgerelax.ir.dtypes import F32, I32, I64


def everything() -> ProgramBuilder:
    """Each opcode at least once, in a program that runs: x has 4 * n elements, i one.

    y = 2 * x + 1 on the gpu and the cpu, z = twice the words of i, shifted by weights.
    """
    program = ProgramBuilder()
    gpu, other = program.slab("gpu"), program.slab("gpu")
    cpu = program.slab("cpu", 64)
    program.weight(16)
    program.weight(16)
    twice = program.kernel("gpu", 0, buffers=2, scalars=2)
    near = program.kernel("cpu", 0, buffers=2, scalars=1)
    main = program.function(
        "main",
        [InputSpec("x", F32, 1), InputSpec("i", I32, None)],
        [OutputSpec("y", F32), OutputSpec("z", I64)],
    )
    inner = program.function("inner", [InputSpec("x", F32, 1)], [], parameters=2, results=1)
    broken = program.function("broken")
    broken.fail("this function fails")

    n = main.load_dim(0, 0)
    four, zero, one = main.const(4), main.const(0), main.const(1)
    main.check_eq(main.mod(n, four), zero, "bärt: rank")
    main.check_le(one, n, "x: dimension 0")
    main.check_divisible(n, four, "x: dimension 0")
    size = main.mul(n, four)
    offset = main.mul(
        main.floordiv(main.add(size, main.const(255)), main.const(256)), main.const(256)
    )
    total = main.max(main.add(offset, size), main.min(size, main.const(1 << 40)))
    for slab in (gpu, other, cpu):
        main.ensure(slab, total)
    x = Binding("input", 0, size)
    low, high = Binding("slab", gpu, size), Binding("slab", other, size, offset)
    near_low, near_high = Binding("slab", cpu, size), Binding("slab", cpu, size, offset)
    late = main.select(main.ge(n, four), n, main.sub(n, one))
    with main.region("gpu", [n], [late]):
        main.dispatch(twice, n, [x, low], [n, late])
        main.copy("gpu", high, low)
    main.library("scale", [high], [n])
    main.to_cpu(near_low, high)
    main.fill("cpu", near_high, 0xDEADBEEF)
    main.copy("cpu", near_high, near_low)
    main.dispatch(near, n, [near_low, near_high], [n])
    main.to_gpu(low, near_high)
    main.fill("cpu", near_low, 0)
    (first,) = main.read("gpu", Binding("input", 1, four), I32, 1)
    (weight,) = main.read("cpu", Binding("weight", 0, main.const(8)), I64, 1)
    main.copy(
        "gpu", Binding("slab", other, main.const(16), offset), Binding("weight", 1, main.const(16))
    )
    (result,) = main.call(inner, first, weight)
    result = main.min(result, main.const(20))
    again, done = main.label(), main.label()
    count = main.move(zero)
    main.place(again)
    main.jump_if_zero(main.eq(main.eq(count, result), zero), done)
    main.add(count, one, into=count)
    main.jump(again)
    main.place(done)
    main.output(0, "gpu", low, [n])
    main.output(1, "gpu", Binding("slab", other, main.const(16), offset), [main.const(2)])
    main.ret()

    a, b = inner.parameters
    inner.read("cpu", Binding("input", 0, inner.const(4)), I32, 1)
    inner.ret(inner.add(a, b))
    return program


def keyed(device: str, late: bool, limit: int = 1 << 20, index: int = 0) -> bytes:
    """Two dispatches in a region: a, the first dimension, is a key, b is a key or late."""
    program = ProgramBuilder()
    slab = program.slab(device, 4096)
    kernel = program.kernel(device, index, buffers=1, scalars=2)
    f = program.function("main", [InputSpec("ab", I32, 2)], [OutputSpec("y", I32)])
    a, b = f.load_dim(0, 0), f.load_dim(0, 1)
    y = Binding("slab", slab, f.const(256))
    f.fill(device, y, 0)
    with f.region(device, [a] if late else [a, b], [b] if late else []):
        twice = f.add(a, a)
        f.check_le(twice, f.const(limit), "a")
        f.dispatch(kernel, a, [y], [b, a])
        f.dispatch(kernel, f.const(0), [y], [b, a])
        f.dispatch(kernel, a, [y], [a, b])
    f.output(0, device, y, [f.const(64)])
    f.ret()
    return program.encode()
