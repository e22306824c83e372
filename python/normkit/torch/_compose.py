"""The norms written with torch's differentiable operators.

Three users: gradients of gradients (autograd differentiates this again, to any order), inputs that the engine does not
take while an option is set that torch's own operator does not know, and the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ._options import Options, wider


def _safe_sqrt(q: Tensor) -> Tensor:
    """sqrt with derivative 0 at 0 instead of inf, which would turn the gradient of a zero row into NaN."""
    zero = q == 0
    return torch.where(zero, torch.zeros_like(q), torch.sqrt(torch.where(zero, torch.ones_like(q), q)))


def _reciprocal(d: Tensor) -> Tensor:
    """1 / d, and 0 with derivative 0 where d is 0: 0 * inf is defined as 0 here (docs/numerics.md)."""
    zero = d == 0
    return torch.where(zero, torch.zeros_like(d), 1.0 / torch.where(zero, torch.ones_like(d), d))


def _rstd(o: Options, q: Tensor) -> Tensor:
    """The factor of a row from q: variance (layer_norm), mean square (rms_norm) or sum of squares (l2_norm)."""
    if o.kind == "l2_norm" or o.eps_mode == "clamp":
        norm = _safe_sqrt(q)
        # A norm below eps is a constant eps: torch.nn.functional.normalize has the same derivative.
        return torch.where(norm < o.eps, torch.full_like(norm, 1.0 / o.eps if o.eps else 0.0), _reciprocal(norm))
    if o.eps_mode == "outside":
        return _reciprocal(_safe_sqrt(q) + o.eps)
    return reciprocal_root(q, o.eps)


def reciprocal_root(q: Tensor, eps: float) -> Tensor:
    """1 / sqrt(q + eps), and 0 with derivative 0 where that is 1 / 0."""
    return _reciprocal(_safe_sqrt(q + eps))


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x rounded to dtype and widened again; the derivative is 1 (straight through)."""
    return x if x.dtype == dtype else x + (x.to(dtype).to(x.dtype) - x).detach()


def compose(
    o: Options,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    x_dtype: torch.dtype,
    h_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """(y, h, mean, rstd), computed and returned in the type of x, which the caller has widened already.

    x_dtype and h_dtype are the types that x and h are stored in: what `before_weight` and the residual add round to.
    mean (None without a centre) and rstd have the batch dims' shape followed by ones.
    """
    h = x
    if residual is not None:
        h = x + residual.to(x.dtype)
        if o.residual_stats == "rounded":
            h = _rounded(h, h_dtype)
    normalized = x.shape[x.dim() - o.dims :]
    reduced = list(range(x.dim() - o.dims, x.dim()))
    mean = h.mean(dim=reduced, keepdim=True) if o.kind == "layer_norm" else None
    centred = h if mean is None else h - mean
    square = centred * centred
    q = square.sum(dim=reduced, keepdim=True) if o.kind == "l2_norm" else square.mean(dim=reduced, keepdim=True)
    rstd = _rstd(o, q)
    y = centred * rstd
    if o.rounding == "before_weight":
        y = _rounded(y, x_dtype)
    if weight is not None:
        w = weight if weight.numel() == 1 else weight.reshape(normalized)
        y = y * (w.to(x.dtype) + o.weight_offset)
    if bias is not None:
        y = y + (bias if bias.numel() == 1 else bias.reshape(normalized)).to(x.dtype)
    return y, h, mean, rstd


def compose_forward(
    o: Options,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    y_dtype: torch.dtype | None = None,
    h_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """(y, h, mean, rstd) of the public functions, for tensors of any device that torch can compute with.

    y_dtype and h_dtype: the types that y and h are rounded to, where they are not those of the inputs.
    """
    h_dtype = h_dtype or (x.dtype if residual is None else wider(x.dtype, residual.dtype))
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    y, h, mean, rstd = compose(o, wide, weight, bias, residual, x.dtype, h_dtype)
    batch = x.shape[: x.dim() - o.dims]
    y, h = y.to(y_dtype or x.dtype), h.to(h_dtype)
    return y, h, None if mean is None else mean.reshape(batch), rstd.reshape(batch)


def compose_backward(
    o: Options,
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    residual: Tensor | None,
    bias_shape: Sequence[int] | None,
    mask: Sequence[bool],
) -> list[Tensor | None]:
    """`gradients` of the norm o. x may be h = x + residual (then without residual)."""
    h_dtype = x.dtype if residual is None else wider(x.dtype, residual.dtype)

    def y(leaf_x: Tensor, leaf_w: Tensor | None, leaf_b: Tensor | None) -> Tensor:
        return compose(o, leaf_x, leaf_w, leaf_b, residual, x.dtype, h_dtype)[0]

    return gradients(y, dy, x, weight, bias_shape, mask)


def gradients(
    y: Callable[[Tensor, Tensor | None, Tensor | None], Tensor],
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias_shape: Sequence[int] | None,
    mask: Sequence[bool],
) -> list[Tensor | None]:
    """[dx, dweight, dbias] of y(x, weight, bias) as differentiable functions in f64; None where masked out.

    In f64, so that first derivatives agree with the engine's, and the graph that it leaves is what a second backward
    runs through. No derivative depends on the values of the bias.
    """
    with torch.enable_grad():
        # Tensors of their own, so that differentiation stops here: in the caller's graph weight may depend on x.
        leaf_x, leaf_w = _leaf(x, mask[0]), None if weight is None else _leaf(weight, mask[1])
        leaf_b = None if bias_shape is None else torch.zeros(bias_shape, dtype=torch.float64).requires_grad_()
        leaves = [leaf if m else None for leaf, m in zip((leaf_x, leaf_w, leaf_b), mask, strict=True)]
        wanted = [leaf for leaf in leaves if leaf is not None]
        grads = iter(torch.autograd.grad(y(leaf_x, leaf_w, leaf_b), wanted, dy.double(), create_graph=True))
        return [None if leaf is None else next(grads) for leaf in leaves]


def _leaf(t: Tensor, wanted: bool) -> Tensor:
    """t in f64 as a tensor to differentiate by, still connected to t."""
    if not t.requires_grad:
        return t.detach().double().requires_grad_(wanted)
    return t.view_as(t) if t.dtype == torch.float64 else t.double()
