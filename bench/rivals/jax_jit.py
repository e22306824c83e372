"""JAX: the usual formulas (statistics in f32), jitted for the CPU. Outputs are JAX's own."""

from __future__ import annotations

import numpy as np

from . import Prepared, Skip, missing

NAME, TORCH_DOOR = "JAX", False


def absent() -> str | None:
    return missing("jax")


def version() -> str:
    import jax

    return jax.__version__


def _forward(cell):
    import jax
    import jax.numpy as jnp

    def norm(h, weight, bias):
        wide = h.astype(jnp.float32)
        if cell.centred:
            wide = wide - wide.mean(axis=-1, keepdims=True)
        rstd = jax.lax.rsqrt((wide * wide).mean(axis=-1, keepdims=True) + cell.eps)
        y = wide * rstd * weight.astype(jnp.float32)
        if cell.centred:
            y = y + bias.astype(jnp.float32)
        return y.astype(h.dtype)

    def forward(x, residual, weight, bias):
        if not cell.residual:
            return norm(x, weight, bias)
        h = x + residual
        return norm(h, weight, bias), h

    return forward


def prepare(cell, data, threads, outputs_given) -> Prepared:
    if not hasattr(cell, "rows"):
        raise Skip("norms over channels are not measured")
    import jax

    if cell.op == "llama_rms_norm":
        raise Skip("the same as rms_norm")
    # Calls are waited for one by one: without a second thread in between they are faster.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    forward = _forward(cell)
    arrays = [None if a is None else jax.device_put(a) for a in (data.x, data.residual, data.weight, data.bias)]
    gradient = tuple(jax.device_put(g) for g in (data.dy, data.dh) if g is not None)

    def both(x, residual, weight, bias, gradient):
        y, back = jax.vjp(forward, x, residual, weight, bias)
        return y, back(gradient if cell.residual else gradient[0])

    if cell.backward:
        compiled = jax.jit(both).lower(*arrays, gradient).compile()
        arguments = (*arrays, gradient)
    else:
        compiled = jax.jit(forward).lower(*arrays).compile()
        arguments = tuple(arrays)

    def run():
        return jax.block_until_ready(compiled(*arguments))

    def results():
        outputs = run()
        y, grads = outputs if cell.backward else (outputs, None)
        y, h = y if cell.residual else (y, None)
        found = {"y": y, "h": h}
        if grads is not None:
            found |= {"dx": grads[0], "dweight": grads[2], "dbias": grads[3]}
        return {name: np.asarray(value) for name, value in found.items() if value is not None}

    return Prepared(run, results, given=False)
