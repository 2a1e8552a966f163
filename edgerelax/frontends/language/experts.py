"""Mixtures of experts (arXiv 2101.03961, 2401.04088): many MLPs, of which a token sees few.

Each token reads the weights of the experts that it chose, by an index that its kernels gather: no
shape depends on the choice, nothing is computed for experts that were not chosen, and a step of few
tokens reads few experts' weights. For many tokens at once a weight is read again for each token
that chose it: right for decoding; in long prompts a product by experts would read less. The
experts' matrices stand one above the other, so that weights in groups work as in other products.
"""

from edgerelax.frontends.language.config import Experts
from edgerelax.frontends.language.mlp import MLP, activation
from edgerelax.frontends.nn import Linear, Module, Parameter, Tensor
from edgerelax.frontends.nn.functional import sigmoid, softmax, topk, total
from edgerelax.ir.dtypes import F32
from edgerelax.ir.loop import LoopFunc, Stage, grid
from edgerelax.ir.scalar import Buffer, gather
from edgerelax.sym import Axis, symbol


class Stack(Module):
    """A linear layer for each expert: their matrices [outputs, inputs] one above the other."""

    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        self.count, self.inputs, self.outputs = count, inputs, outputs
        self.weight = Parameter(count * outputs, inputs, role="experts")

    def each(self, x: Tensor, chosen: Tensor) -> Tensor:
        """[tokens, inputs] and experts [tokens, k] → [tokens, k, outputs]."""
        return self._call(x, chosen)

    def total(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """[tokens, k, inputs], experts and shares [tokens, k] → their sum [tokens, outputs]."""
        return self._call(x, chosen, shares)

    def _call(self, x: Tensor, chosen: Tensor, *shares: Tensor) -> Tensor:
        k = chosen.dims[1].as_int()
        assert k is not None
        loop = self._sum(k, chosen) if shares else self._each(k, chosen)
        weight = self.weight.emit(x.builder)
        rest = (part.value for part in shares)
        return Tensor(x.builder, x.builder.call_tir(loop, x.value, weight, chosen.value, *rest))

    def _each(self, k: int, chosen: Tensor) -> LoopFunc:
        tokens, c = symbol("tokens"), Axis("c", self.inputs)
        x = Buffer.of("x", F32, tokens, self.inputs)
        weight, experts = self._operands(k, chosen)
        out = Buffer.of("out", F32, tokens, k, self.outputs)
        token, j, row = (axis.expr for axis in grid(out))
        above = gather(experts[token, j], self.count) * self.outputs
        body = x[token, c.expr] * weight[above + row, c.expr]
        stage = Stage(out, grid(out), body, (c,), "sum")
        return LoopFunc(self._name("each", k), (x, weight, experts), (out,), (stage,))

    def _sum(self, k: int, chosen: Tensor) -> LoopFunc:
        tokens, c, choice = symbol("tokens"), Axis("c", self.inputs), Axis("j", k)
        x = Buffer.of("x", F32, tokens, k, self.inputs)
        weight, experts = self._operands(k, chosen)
        shares = Buffer.of("shares", F32, tokens, k)
        out = Buffer.of("out", F32, tokens, self.outputs)
        (token, row), j = (axis.expr for axis in grid(out)), choice.expr
        above = gather(experts[token, j], self.count) * self.outputs
        body = shares[token, j] * x[token, j, c.expr] * weight[above + row, c.expr]
        stage = Stage(out, grid(out), body, (choice, c), "sum")
        return LoopFunc(self._name("sum", k), (x, weight, experts, shares), (out,), (stage,))

    def _operands(self, k: int, chosen: Tensor) -> tuple[Buffer, Buffer]:
        weight = Buffer.of("weight", F32, self.count * self.outputs, self.inputs)
        return weight, Buffer.of("experts", chosen.dtype, symbol("tokens"), k)

    def _name(self, kind: str, k: int) -> str:
        return f"experts_{kind}_{k}_of_{self.count}_{self.outputs}x{self.inputs}"


class Mixture(Module):
    """What the chosen experts, and perhaps a shared one, make of each token."""

    def __init__(self, width: int, experts: Experts, act: str) -> None:
        self.width, self.experts, self.act = width, experts, activation(act)
        self.router = Linear(width, experts.count, role="")
        self.gate = Stack(experts.count, width, experts.hidden)
        self.up = Stack(experts.count, width, experts.hidden)
        self.down = Stack(experts.count, experts.hidden, width)
        self.shared = MLP(width, experts.shared, act) if experts.shared else None
        self.shared_gate = Linear(width, 1, role="") if experts.shared else None

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.dims
        tokens = x.reshape(batch * length, width)
        shares, chosen = topk(softmax(self.router(tokens)), self.experts.chosen)
        if self.experts.normalised:
            shares = shares / total(shares)
        inner = self.act(self.gate.each(tokens, chosen)) * self.up.each(tokens, chosen)
        result = self.down.total(inner, chosen, shares).reshape(batch, length, width)
        if self.shared is None or self.shared_gate is None:
            return result
        summed: Tensor = result + sigmoid(self.shared_gate(x)) * self.shared(x)
        return summed
