"""Finds out which normalization a module computes, by asking it (see Probe).

A definition counts as proven for a pair of types, of x and of the weight, when its results agree with it

- in f32 and f64: on rows of ordinary size and on rows so small that eps decides, to a few units in the last place;
- in f16 and bf16: bit for bit, but for the rare element that two good computations round differently. That also
  tells where the weight is applied, before or after the rounding to x's type.

eps is measured from the response to rows that are nothing beside it, then matched with the module's own attributes.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from . import _engine
from ._options import ROUNDINGS, Options
from ._probe import NotProven, Parts, Probe, short

_TINY = 1e-30  # its square is nothing beside any eps in use
_HALVES = (torch.bfloat16, torch.float16)
_KNOWN_EPS = (torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps)
# Share of 16-bit elements that may differ. Another order of the f32 sum moves less than one element in a hundred over
# a rounding boundary; applying the weight at another place moves one in five, another eps in the tests below more.
_MAX_DIFFERENT = 0.02

Pair = tuple[torch.dtype, "torch.dtype | None"]  # the types of x and of the weight


class Definition(NamedTuple):
    """What is known of a module: how to compute it, for each pair of types that was proven."""

    parts: Parts
    watched: tuple[tuple[str, float | None], ...]  # the attributes that hold eps: proven for these values only
    options: dict[Pair, Options]

    def __str__(self) -> str:
        by_text: dict[str, list[str]] = {}
        for (x, w), o in self.options.items():
            types = short(x) if w in (None, x) else f"{short(x)} with {short(w)} weight"
            by_text.setdefault(describe(o), []).append(types)
        return "; ".join(f"{text} ({', '.join(types)})" for text, types in by_text.items())


def describe(o: Options) -> str:
    """One definition in words, the default options left out."""
    words = [o.kind, f"eps={o.eps:g}"]
    if o.weight_offset:
        words.append(f"weight_offset={o.weight_offset:g}")
    if o.rounding != "once":
        words.append(f"rounding={o.rounding}")
    if o.eps_mode != "inside":
        words.append(f"eps_mode={o.eps_mode}")
    return " ".join(words)


def define(module: torch.nn.Module) -> Definition:
    """The definition that module computes. Raises NotProven unless it is proven for the module's own types and f32."""
    parts = Parts(module)
    wide: list[Pair] = [(t, None if parts.dtype is None else t) for t in (torch.float32, torch.float64)]
    half: list[Pair] = [(t, None if parts.dtype is None else t) for t in _HALVES]
    mixed: list[Pair] = [] if parts.dtype is None else [(t, torch.float32) for t in _HALVES]
    own: Pair = (parts.dtype or torch.float32, parts.dtype)
    attributes = {k: float(v) for k, v in vars(module).items() if type(v) in (int, float) and 0 <= v <= 1}
    options: dict[Pair, Options] = {}
    unaffected = torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.device("cpu"), torch.no_grad()
    with contextlib.ExitStack() as stack:
        for context in unaffected:  # by what the caller has switched on, and the caller's random numbers by this
            stack.enter_context(context)
        for pair in (*wide, *half, *mixed):
            try:
                probe = Probe(module, parts, *pair)
                _same_in_training(probe)
                if pair in wide:
                    options[pair] = _prove_wide(probe, attributes)
                else:
                    options[pair] = _prove_half(probe, options[wide[0]])
            except NotProven:
                if pair in (own, wide[0]):
                    raise
    watched = {k: v for k, v in attributes.items() if v == options[own].eps}
    watched |= {k: v for k, v in vars(module).items() if "eps" in k.lower() and type(v) in (int, float, type(None))}
    return Definition(parts, tuple(watched.items()), options)


def _same_in_training(probe: Probe) -> None:
    x = probe.rows(probe.shapes[0], probe.batches(probe.shapes[0])[0])
    if not torch.equal(probe.ask(x, training=True), probe.ask(x, training=False)):
        raise NotProven("it differs between training and evaluation")


def _prove_wide(probe: Probe, attributes: dict[str, float]) -> Options:
    """The one definition that agrees in f32 or f64."""
    matching = [o for o in _hypotheses(probe, attributes) if _agrees(probe, o)]
    if not matching:
        raise NotProven("it computes none of the definitions that normkit knows")
    if len(matching) > 1:
        raise NotProven("it fits several definitions: " + "; ".join(map(describe, matching)))
    return matching[0]


def _hypotheses(probe: Probe, attributes: dict[str, float]) -> Iterator[Options]:
    """Every definition, each with the eps that the response to tiny rows means under it."""
    shape = probe.shapes[0]
    x = probe.rows(shape, probe.batches(shape)[0], _TINY)
    y = probe.ask(x, with_bias=False).double()
    for kind, modes in (
        ("rms_norm", ("inside", "outside", "clamp")),
        ("layer_norm", ("inside", "outside", "clamp")),
        ("l2_norm", ("inside",) if math.prod(shape) > 1 else ()),  # its clamp is implied; on one element it is rms_norm
    ):
        for offset in (0.0,) if probe.weight is None else (0.0, 1.0):
            slope = _slope(kind, offset, probe, x.double(), y)
            for mode in modes:
                eps = 0.0
                if 1e-30 < slope < 1e30:
                    eps = slope**-2 if mode == "inside" and kind != "l2_norm" else 1.0 / slope
                elif mode != "inside":
                    continue  # without eps the modes are one
                yield Options(kind, len(shape), _snap(eps, attributes), offset, "once", mode)


def _slope(kind: str, offset: float, probe: Probe, x: Tensor, y: Tensor) -> float:
    """y / (weight * (x - mean)) where eps alone decides: 1/sqrt(eps) or 1/eps. NaN or inf without eps."""
    dims = list(range(x.dim() - len(probe.shapes[0]), x.dim()))
    if kind == "layer_norm":
        x = x - x.mean(dim=dims, keepdim=True)
    if probe.weight is not None:
        x = x * (probe.weight.double() + offset)
    return float((y / x).median())


def _snap(eps: float, attributes: dict[str, float]) -> float:
    """The number that was meant by a measured eps: an attribute, a machine epsilon, or three decimal digits."""
    for known in (*attributes.values(), *_KNOWN_EPS):
        if abs(eps - known) <= 1e-4 * known:
            return known
    return float(f"{eps:.3g}")


def _deciding_scale(o: Options, shape: tuple[int, ...]) -> float:
    """The size of rows at which the sum and eps weigh the same."""
    if o.kind == "l2_norm":
        return o.eps / math.sqrt(math.prod(shape))
    return math.sqrt(o.eps) if o.eps_mode == "inside" else o.eps


def _agrees(probe: Probe, o: Options) -> bool:
    unit = torch.finfo(probe.x_dtype).eps / 2
    for shape in probe.shapes:
        scales = [1.0, *((_deciding_scale(o, shape), _TINY) if o.eps > 0 else ())]
        for batch in probe.batches(shape):
            for scale in scales:
                x = probe.rows(shape, batch, scale)
                expected = probe.expect(o, x, with_bias=scale == 1.0)
                error = (probe.ask(x, with_bias=scale == 1.0).double() - expected).abs()
                if not bool((error <= 64 * unit * expected.abs().max()).all()):
                    return False
    return True


def _prove_half(probe: Probe, wide: Options) -> Options:
    """The definition found in f32, with the rounding that gives this module's bits."""
    candidates = [wide._replace(rounding=r) for r in ROUNDINGS if probe.weight is not None or r == "once"]
    shares = [max(_different(probe, o, shape) for shape in probe.shapes) for o in candidates]
    best = min(range(len(candidates)), key=shares.__getitem__)
    if shares[best] > _MAX_DIFFERENT:
        raise NotProven(f"in {short(probe.x_dtype)} it rounds at a place that normkit does not know")
    return candidates[best]


def _different(probe: Probe, o: Options, shape: tuple[int, ...]) -> float:
    """The largest share of elements with other bits than o has, over batch dims and sizes of rows."""
    worst = 0.0
    for batch in probe.batches(shape, elements=8192):
        small = max(_deciding_scale(o, shape), torch.finfo(probe.x_dtype).tiny)
        for scale in (1.0, small) if o.eps > 0 else (1.0,):
            x = probe.rows(shape, batch, scale)
            bias = probe.bias if scale == 1.0 else None
            ours, *_ = _engine.forward(o, x, probe.weight, bias)
            differ = int((ours != probe.ask(x, with_bias=scale == 1.0)).sum())
            worst = max(worst, max(0, differ - 1) / x.numel())
    return worst
