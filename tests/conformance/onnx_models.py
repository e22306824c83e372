"""Models of one normalization operator, with random operands: what they compute, and what is right."""

from dataclasses import dataclass, field

import numpy as np
import onnx
import reference
from onnx import helper
from reference import Expected

RUNTIME = "com.microsoft"  # the domain of ONNX Runtime's fused operators
# operator: (domain, normkit's operation, inputs, outputs)
OPERATORS = {
    "LayerNormalization": ("", "layer_norm", ("x", "weight", "bias"), ("y", "mean", "rstd")),
    "RMSNormalization": ("", "rms_norm", ("x", "weight"), ("y",)),
    "LpNormalization": ("", "l2_norm", ("x",), ("y",)),
    "SimplifiedLayerNormalization": ("", "rms_norm", ("x", "weight"), ("y",)),
    "SkipLayerNormalization": (
        RUNTIME, "layer_norm", ("x", "residual", "weight", "bias"), ("y", "", "", "h")
    ),
    "SkipSimplifiedLayerNormalization": (RUNTIME, "rms_norm", ("x", "residual", "weight"), ("y", "", "", "h")),
}  # fmt: skip


@dataclass
class Problem:
    operator: str
    x: np.ndarray
    weight: np.ndarray | None = None
    bias: np.ndarray | None = None  # None: the input is left out
    residual: np.ndarray | None = None
    axis: int | None = None  # None: the attribute is left out
    epsilon: float | None = None
    outputs: tuple[str, ...] = field(default=("y",))  # those that the model asks for

    def operands(self) -> dict[str, np.ndarray]:
        given = {name: getattr(self, name) for name in OPERATORS[self.operator][2]}
        return {name: value for name, value in given.items() if value is not None}

    def attributes(self) -> dict:
        axis = {} if self.axis is None else {"axis": self.axis}
        return axis | ({} if self.epsilon is None else {"epsilon": self.epsilon})

    def model(self) -> onnx.ModelProto:
        domain, _, inputs, outputs = OPERATORS[self.operator]
        operands, asked = self.operands(), [o if o in self.outputs else "" for o in outputs]
        assert tuple(operands) == inputs[: len(operands)]  # only the last input, the bias, may be absent
        node = helper.make_node(self.operator, [*operands], asked, domain=domain, **self.attributes())
        shape = list(self.x.shape)
        statistics = shape[: self.first()] + [1] * (len(shape) - self.first())

        def info(name, dtype, dims):
            return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), dims)

        graph = helper.make_graph(
            [node],
            "norm",
            [info(name, value.dtype, value.shape) for name, value in operands.items()],
            [
                info(o, np.float32, statistics) if o in ("mean", "rstd") else info(o, self.x.dtype, shape)
                for o in self.outputs
            ],
        )
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid(RUNTIME, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def first(self) -> int:
        """The first normalized dimension."""
        return (-1 if self.axis is None else self.axis) % self.x.ndim

    def expected(self) -> dict[str, Expected | np.ndarray]:
        """y, mean and rstd as Expected in the shapes of ONNX, h as an array."""
        operation, x, first = OPERATORS[self.operator][1], self.x, self.first()
        if operation == "l2_norm":
            want = reference.forward(operation, np.moveaxis(x, first, -1), eps=0.0)["y"]
            return {"y": Expected(np.moveaxis(want.value, -1, first), np.moveaxis(want.scale, -1, first), want.unit)}
        weight, bias = (None if p is None else np.broadcast_to(p, x.shape[first:]) for p in (self.weight, self.bias))
        eps = np.float32(self.attribute_or_default("epsilon"))
        want = reference.forward(
            operation, x, weight, bias, residual=self.residual, axis=first, eps=eps, residual_stats=self.statistics()
        )
        for name in ("mean", "rstd"):
            e, kept = want[name], x.shape[:first] + (1,) * (x.ndim - first)
            want[name] = Expected(e.value.reshape(kept), e.scale.reshape(kept), e.unit)
        return want

    def statistics(self) -> str:
        return "rounded" if self.residual is None else "unrounded"

    def attribute_or_default(self, name):
        defaults = {"epsilon": 1e-12 if self.residual is not None else 1e-5}
        return self.attributes().get(name, defaults[name])

    def check(self, results, who: str, one_pass: bool = False) -> None:
        """Each result of a run against what is right.

        one_pass: the variance may have been computed as E[x^2] - mean^2, whose error grows with mean^2 / variance.
        """
        want = self.expected()
        if one_pass and "mean" in want:
            lost = 4 * (1 + (want["mean"].value * want["rstd"].value) ** 2)
            for name in ("y", "mean", "rstd"):
                want[name].scale = want[name].scale * lost
        for name, got in zip(self.outputs, results, strict=True):
            if name == "h":
                assert np.array_equal(got, want["h"]), f"{who}: h differs"
            else:
                want[name].check(got, f"{who}: {name}")
