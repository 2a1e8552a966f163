"""What must hold of a module after every pass; a VerifyError is a fault of ours.

Graph functions: every value is defined once and used where it is visible; the same for symbols,
which are defined by bare dims of parameters, by match_cast, branches and loops. Annotations say at
least what deduction finds and do not contradict it. A call of a loop function passes exactly the
buffers it names. Loop functions: verify_loop.py.
"""

from collections.abc import Iterable, Mapping

from edgerelax.ir.builder import loop_result
from edgerelax.ir.deduce import (
    Fit,
    deduce,
    defined_by,
    derive_call,
    signature,
    substitute_annotation,
    subsumes,
)
from edgerelax.ir.diagnostics import ShapeError, VerifyError
from edgerelax.ir.dtypes import from_numpy
from edgerelax.ir.graph import (
    Binding,
    Block,
    CallGraph,
    CallTIR,
    Constant,
    GraphFunc,
    IfElse,
    MatchCast,
    Module,
    ReadInts,
    Repeat,
    Value,
    Var,
    body_exprs,
    module_states,
    operands,
    states,
    used_symbols,
)
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.printer import binding_text
from edgerelax.ir.types import Annotation, Tensor, Tuple, as_tensor, symbols_of
from edgerelax.ir.verify_loop import verify_loop
from edgerelax.sym import Atom, Expr, ExprLike, Symbol, as_expr, prove_eq


def verify(module: Module) -> None:
    """Raise VerifyError for the first thing that is wrong."""
    for name, loop in module.loops.items():
        if loop.name != name:
            raise VerifyError(f"loop function {loop.name} is listed as {name}")
        verify_loop(loop)
    for name, func in module.funcs.items():
        if func.name != name:
            raise VerifyError(f"function {func.name} is listed as {name}")
        _FuncVerifier(module, func).run()
    first = {s.name: s.annotation for s in module_states(module.funcs.values())}
    for func in module.funcs.values():
        for state in states(func):
            if str(state.annotation) != str(first[state.name]):
                raise VerifyError(
                    f"function {func.name}: the state {state.name} is {state.annotation}, "
                    f"and {first[state.name]} in another function"
                )


class _Scope:
    """What is visible at a place."""

    def __init__(self, values: set[Value], symbols: set[Symbol]) -> None:
        self.values, self.symbols = values, symbols

    def inner(self) -> "_Scope":
        return _Scope(set(self.values), set(self.symbols))


class _FuncVerifier:
    def __init__(self, module: Module, func: GraphFunc) -> None:
        self.module, self.func = module, func
        self.defined: set[Value] = set()
        self.constants: set[Constant] = set()

    def run(self) -> None:
        func = self.func
        if len(func.result_names) != len(func.body.results):
            self.fail(f"{len(func.body.results)} results, {len(func.result_names)} names for them")
        for names in (func.result_names, [p.name for p in func.params]):
            if len(set(names)) < len(names):
                self.fail(f"two inputs or two results of one name: {', '.join(names)}")
        scope = _Scope(set(), set())
        for param in func.params:
            self.define(param, scope)
            scope.symbols |= defined_by(param.annotation)
        if func.attrs.get("primitive"):  # shares the symbols of its only caller
            scope.symbols |= _all_symbols(func, self.module.loops)
        for param in func.params:
            self.check_symbols(symbols_of(param.annotation), scope, None)
        self.block(func.body, scope)
        self.states()

    def states(self) -> None:
        """A state is a parameter and a result of one name, dtype and dims."""
        params = {p.name: p for p in self.func.params}
        results = dict(zip(self.func.result_names, self.func.body.results, strict=True))
        for name in self.func.attrs.get("states", ()):
            if name not in params or name not in results:
                self.fail(f"the state {name} is not both a parameter and a result")
            before, after = params[name].annotation, results[name].annotation
            if not _is_exactly(after, before):
                self.fail(f"the state {name} is {before}, and {after} afterwards")

    def fail(self, what: str, binding: Binding | None = None) -> None:
        node = "" if binding is None else binding_text(binding)
        origin = "" if binding is None else binding.var.origin
        raise VerifyError(f"function {self.func.name}: {what}", node=node, origin=origin)

    def define(self, var: Var, scope: _Scope, binding: Binding | None = None) -> None:
        if var in self.defined:
            self.fail(f"{var.name} is defined twice", binding)
        self.defined.add(var)
        scope.values.add(var)

    def check_symbols(
        self, symbols: Iterable[Symbol], scope: _Scope, binding: Binding | None
    ) -> None:
        stray = set(symbols) - scope.symbols
        if stray:
            names = ", ".join(sorted(s.name for s in stray))
            self.fail(f"nothing defines {names} before its use", binding)

    def check_values(self, values: Iterable[Value], scope: _Scope, binding: Binding | None) -> None:
        for value in values:
            if isinstance(value, Constant):
                self.constant(value)
            elif value not in scope.values:
                self.fail(f"{value.name} is used where it is not defined", binding)

    def constant(self, value: Constant) -> None:
        if value in self.constants:
            return
        self.constants.add(value)
        actual = Tensor(tuple(map(as_expr, value.data.shape)), from_numpy(value.data.dtype))
        kind = as_tensor(value.annotation)
        if kind is None or subsumes(kind, actual) is not Fit.PASS:
            self.fail(f"constant {value.name} is {actual}, annotated {value.annotation}")

    def block(self, block: Block, scope: _Scope) -> None:
        for binding in block.bindings:
            self.binding(binding, scope)
        self.check_values(block.results, scope, None)

    def binding(self, binding: Binding, scope: _Scope) -> None:
        value, var = binding.value, binding.var
        self.check_values(operands(value), scope, binding)
        self.check_symbols(used_symbols(value), scope, binding)
        match value:
            case IfElse():
                self.branch(binding, value, scope)
            case Repeat():
                self.repeat(binding, value, scope)
            case MatchCast(value=source):
                scope.symbols |= defined_by(var.annotation)
                if subsumes(var.annotation, source.annotation) is Fit.IMPOSSIBLE:
                    self.fail(f"{source.name} is {source.annotation}, which cannot match", binding)
            case CallTIR():
                self.call_tir(binding, value, scope)
            case ReadInts(value=source):
                kind = as_tensor(source.annotation)
                if kind is None or (kind.rank or 0) > 1 or (kind.dtype and kind.dtype.is_float):
                    self.fail(f"{source.name} is {source.annotation}: no integers to read", binding)
        self.check_symbols(symbols_of(var.annotation), scope, binding)
        self.annotation(binding)
        self.define(var, scope, binding)

    def annotation(self, binding: Binding) -> None:
        """The annotation must be as fine as the deduced one and must not contradict it."""
        value, var = binding.value, binding.var
        try:
            if isinstance(value, CallGraph):
                deduced: Annotation | None = self.call_graph(binding, value)
            else:
                deduced = deduce(value, var.name, var.origin)
        except ShapeError as error:
            self.fail(f"deduction fails: {error.message}", binding)
            return
        if deduced is not None:
            self.fits(deduced, var.annotation, "deduced", binding)

    def fits(self, wanted: Annotation, given: Annotation, what: str, binding: Binding) -> None:
        fit = subsumes(wanted, given)
        if fit is Fit.IMPOSSIBLE:
            self.fail(f"annotated {given}, {what} {wanted}", binding)
        if fit is Fit.COARSE:
            self.fail(f"annotated {given}, which says less than what is {what}: {wanted}", binding)

    def call_graph(self, binding: Binding, call: CallGraph) -> Annotation | None:
        callee = self.module.funcs.get(call.func)
        if callee is None:
            self.fail(f"no function {call.func}", binding)
            return None
        if callee.attrs.get("primitive"):
            return signature(callee).result
        return derive_call(call.func, signature(callee), [a.annotation for a in call.args])

    def call_tir(self, binding: Binding, call: CallTIR, scope: _Scope) -> None:
        loop = self.module.loops.get(call.func)
        if loop is None:
            self.fail(f"no loop function {call.func}", binding)
            return
        if len(call.args) != len(loop.inputs):
            self.fail(f"{len(call.args)} arguments, it takes {len(loop.inputs)}", binding)
        bound: dict[Atom, ExprLike] = {s: e for s, e in call.symbols}
        for arg, buffer in zip(call.args, loop.inputs, strict=True):
            dims = tuple(d.subs(bound) for d in buffer.dims)
            if not _is_exactly(arg.annotation, Tensor(dims, buffer.dtype)):
                wanted = Tensor(dims, buffer.dtype)
                self.fail(f"{arg.name} is {arg.annotation}, {buffer.name} {wanted}", binding)
        self.check_symbols(_symbols_under(loop, bound), scope, binding)
        result = loop_result(loop, bound)
        parts = result.fields if isinstance(result, Tuple) else (result,)
        given = binding.var.annotation
        fields = given.fields if isinstance(given, Tuple) else (given,)
        if len(fields) != len(parts) or not all(map(_is_exactly, fields, parts)):
            self.fail(f"annotated {given}, the loop function gives {result}", binding)

    def branch(self, binding: Binding, branch: IfElse, scope: _Scope) -> None:
        whole = binding.var.annotation
        if not isinstance(whole, Tuple):
            self.fail(f"a branch gives a tuple, annotated {whole}", binding)
            return
        if isinstance(branch.cond, Expr):
            self.check_symbols(branch.cond.symbols(), scope, binding)
        again = set(branch.symbols) & scope.symbols
        if again or len(set(branch.symbols)) < len(branch.symbols):
            self.fail("a branch defines new dims, each once", binding)
        for arm, exprs in (
            (branch.then, branch.then_symbols),
            (branch.other, branch.other_symbols),
        ):
            inner = scope.inner()
            self.block(arm, inner)
            if len(exprs) != len(branch.symbols) or len(arm.results) != len(whole.fields):
                self.fail("an arm gives other counts of values or dims than the branch", binding)
            self.check_symbols((s for e in exprs for s in e.symbols()), inner, binding)
            bound: dict[Atom, ExprLike] = dict(zip(branch.symbols, exprs, strict=True))
            for field, result in zip(whole.fields, arm.results, strict=True):
                wanted = substitute_annotation(field, bound)
                self.fits(wanted, result.annotation, "promised by the branch", binding)
        scope.symbols |= set(branch.symbols)

    def repeat(self, binding: Binding, repeat: Repeat, scope: _Scope) -> None:
        whole, counts = binding.var.annotation, len(repeat.symbols)
        if not isinstance(whole, Tuple):
            self.fail(f"a loop gives a tuple, annotated {whole}", binding)
            return
        own = (repeat.counter, *repeat.symbols, *repeat.after)
        if set(own) & scope.symbols or len(set(own)) < len(own):
            self.fail("a loop defines new integers, each once", binding)
        if not len(repeat.first) == len(repeat.next) == len(repeat.after) == counts:
            self.fail("a loop carries other counts of integers in and out", binding)
        if not len(repeat.initial) == len(repeat.params) == len(whole.fields):
            self.fail("a loop carries other counts of values in and out", binding)
        if len(repeat.body.results) != len(repeat.params):
            self.fail("a loop's body gives another count of values than it takes", binding)
        inner = scope.inner()
        inner.symbols |= {repeat.counter, *repeat.symbols}
        for param in repeat.params:
            kind = param.annotation
            if not isinstance(kind, Tensor) or kind.dims is None or kind.dtype is None:
                self.fail(f"a loop carries {param.name}, which is {kind}", binding)
            self.check_symbols(symbols_of(kind), scope, binding)
            self.define(param, inner, binding)
        self.block(repeat.body, inner)
        self.check_symbols((s for e in body_exprs(repeat) for s in e.symbols()), inner, binding)
        for param, field, first, result in zip(
            repeat.params, whole.fields, repeat.initial, repeat.body.results, strict=True
        ):
            self.fits(param.annotation, field, "carried", binding)
            self.fits(param.annotation, first.annotation, "carried", binding)
            self.fits(param.annotation, result.annotation, "carried", binding)
        scope.symbols |= set(repeat.after)


def _is_exactly(given: Annotation, wanted: Annotation) -> bool:
    """Same dtype and rank, dims proved equal."""
    a, b = as_tensor(given), as_tensor(wanted)
    if a is None or b is None or a.dims is None or b.dims is None or a.dtype != b.dtype:
        return False
    return a.rank == b.rank and all(
        prove_eq(x, y) is True for x, y in zip(a.dims, b.dims, strict=True)
    )


def _symbols_under(loop: LoopFunc, bound: dict[Atom, ExprLike]) -> set[Symbol]:
    """The caller's symbols that a call needs."""
    return {s for own in loop.symbols() for s in own.expr.subs(bound).symbols()}


def _all_symbols(func: GraphFunc, loops: Mapping[str, LoopFunc]) -> set[Symbol]:
    values = (*func.params, *(b.var for b in func.body.bindings))
    calls = (b.value for b in func.body.bindings if isinstance(b.value, CallTIR))
    called = (loops[call.func] for call in calls if call.func in loops)
    own = {s for loop in called for s in loop.symbols()}
    return own | {s for v in values for s in symbols_of(v.annotation)}
