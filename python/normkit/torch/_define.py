"""Finds out which normalization a module computes, by asking it (see Probe).

A definition counts as proven for a pair of types, of x and of the weight, when its results agree with it

- in f32 and f64: on rows of ordinary size and on rows so small that eps decides, to 64 units in the last place of a
  row's largest element;
- in f16 and bf16: bit for bit, but for the rare element that two good computations round differently. That also
  tells where the weight is applied, before or after the rounding to x's type;
- in all: on single rows, tiny and huge ones, rows beside NaN and inf, up to four batch dims, and with weights and
  biases of both signs, of zero and of many sizes; and the gradients, by the module's own backward, also where only the
  rows or only the parameters have one.

eps is measured from the response to rows that are nothing beside it, then matched with the module's own attributes.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from . import _engine
from ._options import ROUNDINGS, Options
from ._probe import MOST_BATCH_DIMS, Case, NotProven, Parts, Probe, short
from ._watch import Watch

_TINY = 1e-30  # its square is nothing beside any eps in use
_SMALL = (1e-20, 1e-12)  # where eps decides as a rule, and one by which f32 has begun to lose the squares
_HALVES = (torch.bfloat16, torch.float16)
_KNOWN_EPS = (torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps)
# Share of 16-bit elements that may differ. Another order of the f32 sum moves less than one element in a hundred over
# a rounding boundary; applying the weight at another place moves one in five, another eps in the tests below more.
_MAX_DIFFERENT = 0.02
# Units of its type by which a good computation may be off, against the largest value of a row; a gradient against the
# largest of all. In 16 bits a module rounds its intermediate gradients, here about 5 percent.
_RESULT_UNITS, _HALF_RESULT_UNITS = 64, 8
_GRADIENT_UNITS, _HALF_GRADIENT_UNITS = 512, 32

Pair = tuple[torch.dtype, "torch.dtype | None"]  # the types of x and of the weight


class Definition(NamedTuple):
    """What is known of a module: how to compute it, for each pair of types that was proven."""

    weight: str | None  # the names of its parameters
    bias: str | None
    weight_shape: torch.Size | None
    shape: tuple[int, ...] | None  # of the dims that it normalizes; None: any last dim
    least_dims: int  # of the inputs that it was asked with; a module may refuse a row without batch dims
    most_dims: int
    any_width: bool  # it has no weight by which the engine would notice rows of another width
    heeds_autocast: bool  # it computes something else while autocast is on
    watch: Watch
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


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """By what the caller has switched on, and the caller's random numbers by this. The data are small: one thread."""
    threads = torch.get_num_threads()
    with (
        torch.random.fork_rng(devices=[]),
        torch.inference_mode(False),
        torch.device("cpu"),
        torch.no_grad(),
        torch.autocast("cpu", enabled=False),
    ):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def define(module: torch.nn.Module) -> Definition:
    """The definition that module computes. Raises NotProven unless it is proven for the module's own types and f32."""
    parts = Parts(module)
    wide: list[Pair] = [(t, None if parts.dtype is None else t) for t in (torch.float32, torch.float64)]
    half: list[Pair] = [(t, None if parts.dtype is None else t) for t in _HALVES]
    mixed: list[Pair] = [] if parts.dtype is None else [(t, torch.float32) for t in _HALVES]
    own: Pair = (parts.dtype or torch.float32, parts.dtype)
    attributes = {k: float(v) for k, v in vars(module).items() if type(v) in (int, float) and 0 <= v <= 1}
    options: dict[Pair, Options] = {}
    takes_rows, heeds_autocast = True, False
    with _undisturbed():
        for pair in (*wide, *half, *mixed):
            try:
                probe = Probe(module, parts, *pair)
                _has_no_state(probe)
                proven = _prove_wide(probe, attributes) if pair in wide else _prove_half(probe, options[wide[0]])
                takes_rows &= _check_special_cases(probe, proven)
                _check_gradients(probe, proven)
                heeds_autocast |= any(probe.heeds_autocast(probe.case(shape, (3,))) for shape in probe.shapes)
                options[pair] = proven
            except NotProven:
                if pair in (own, wide[0]):
                    raise
    dims = len(parts.shape or (1,))
    limits = dims if takes_rows else dims + 1, dims + MOST_BATCH_DIMS
    names = parts.weight, parts.bias, parts.weight_shape
    any_width = parts.weight_shape is None or parts.weight_shape.numel() == 1
    return Definition(*names, parts.shape, *limits, any_width, heeds_autocast, Watch(module), options)


def _has_no_state(probe: Probe) -> None:
    case = probe.case(probe.shapes[0], probe.batches(probe.shapes[0])[0])
    for training in (True, False):
        effect = probe.side_effect(case, training)
        if effect is not None:
            raise NotProven(f"its forward has a side effect: {effect}")
    if not torch.equal(probe.ask(case, training=True), probe.ask(case, training=False)):
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
    case = probe.case(shape, probe.batches(shape)[0], _TINY)
    x, y = case.x.double(), probe.ask(case).double()
    for kind, modes in (
        ("rms_norm", ("inside", "outside", "clamp")),
        ("layer_norm", ("inside", "outside", "clamp")),
        ("l2_norm", ("inside",) if math.prod(shape) > 1 else ()),  # its clamp is implied; on one element it is rms_norm
    ):
        for offset in (0.0,) if probe.weight is None else (0.0, 1.0):
            slope = _slope(kind, offset, probe, x, y)
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
    for shape in probe.shapes:
        scales = [1.0, *((_deciding_scale(o, shape), _TINY) if o.eps > 0 else ())]
        cases = (probe.case(shape, batch, scale) for batch in probe.batches(shape) for scale in scales)
        if not all(_near(probe, o, case) for case in cases):
            return False
    return True


def _near(probe: Probe, o: Options, case: Case) -> bool:
    """True if the module's answer is o's, but for the rounding of a good computation."""
    expected, got = probe.expect(o, case), probe.ask(case).double()
    units = _HALF_RESULT_UNITS if probe.x_dtype in _HALVES else _RESULT_UNITS
    size = expected.abs().nan_to_num().amax(dim=tuple(range(-o.dims, 0)), keepdim=True)
    return _within(got, expected, units, size, probe.x_dtype)


def _within(got: Tensor, expected: Tensor, units: int, size: Tensor, dtype: torch.dtype) -> bool:
    info = torch.finfo(dtype)
    bound = units * info.eps / 2 * size + info.smallest_normal * info.eps  # and the distance between subnormals
    both_nan = got.isnan() & expected.isnan()
    return bool((((got - expected).abs() <= bound) | both_nan).all())


def _check_special_cases(probe: Probe, o: Options) -> bool:
    """Raise NotProven if the module is not o everywhere. Return whether it takes a row without batch dims."""
    for shape in probe.shapes:
        for case in _special_cases(probe, o, shape):
            if not _near(probe, o, case):
                raise NotProven(f"it is {describe(o)}, but not for {case.what}")
    return all(_takes_row(probe, o, shape) for shape in probe.shapes)


def _takes_row(probe: Probe, o: Options, shape: tuple[int, ...]) -> bool:
    try:
        near = _near(probe, o, probe.case(shape, ()))
    except NotProven:
        return False
    if not near:
        raise NotProven(f"it is {describe(o)}, but not for a row without batch dims")
    return True


def _special_cases(probe: Probe, o: Options, shape: tuple[int, ...]) -> Iterator[Case]:
    batch = probe.batches(shape)[0]
    for single in ((1,), (1, 1)):
        yield probe.case(shape, single)
    for scale in _scales(probe, o, shape):
        yield probe.case(shape, batch, scale)
        yield probe.case(shape, (1,), scale)
    yield from probe.special_weights(shape)
    for case in probe.special_rows(shape):
        # Without eps a row of zeros is 0 / 0: NaN by most formulas, 0 by normkit's.
        yield case if o.eps > 0 else case._replace(x=case.x[:-1])


def _scales(probe: Probe, o: Options, shape: tuple[int, ...]) -> list[float]:
    """Sizes of rows from nothing to huge. Without eps only those whose squares f32 holds, and that x_dtype holds."""
    if o.eps > 0:
        return [_TINY, *_SMALL, _deciding_scale(o, shape), probe.huge]
    return [s for s in (*_SMALL, probe.huge) if s * s > 1e-30 and s > torch.finfo(probe.x_dtype).smallest_normal]


def _check_gradients(probe: Probe, o: Options) -> None:
    """Raise NotProven unless the module's own backward gives the gradients of o."""
    half = probe.x_dtype in _HALVES
    units = _HALF_GRADIENT_UNITS if half else _GRADIENT_UNITS
    for shape in probe.shapes:
        scales = [1.0, *((_deciding_scale(o, shape), _TINY) if o.eps > 0 and not half else ())]
        batches = (probe.batches(shape)[0], (1,))
        for number, (batch, scale) in enumerate(itertools.product(batches, scales)):
            case = probe.case(shape, batch, scale)
            # Along the rows too, so that every term of dx is as large as the others.
            dy = (case.x.double() / scale + probe.rows(shape, batch).double()).to(probe.x_dtype)
            questions = _gradient_questions(probe) if number == 0 else [((True, True), True)]
            _compare_gradients(probe, o, case, dy, questions, units)
            if number == 0:
                for special in _special_gradients(dy):
                    _compare_gradients(probe, o, case, special, [((True, True), True)], units)


def _special_gradients(dy: Tensor) -> Iterator[Tensor]:
    """Large, small and NaN gradients: what tells a backward that clips, scales or cleans them."""
    size = 16.0 if dy.dtype in _HALVES else 1e6
    yield dy * size
    yield dy / size
    broken = dy.clone()
    broken.view(-1)[0] = math.nan
    yield broken


def _compare_gradients(
    probe: Probe,
    o: Options,
    case: Case,
    dy: Tensor,
    questions: Iterable[tuple[tuple[bool, bool], bool]],
    units: int,
) -> None:
    expected = probe.expect_gradients(o, case, dy)
    for of, training in questions:
        wanted = [expected[0], *(expected[1:2] if of[0] else ()), *(expected[2:] if of[1] else ())]
        for g, e in zip(probe.ask_gradients(case, dy, of, training), wanted, strict=True):
            if not _within(g.double(), e, units, e.nan_to_num().abs().max(), probe.x_dtype):
                raise NotProven(f"it is {describe(o)}, but its gradients are others")


def _gradient_questions(probe: Probe) -> Iterator[tuple[tuple[bool, bool], bool]]:
    """Whether x and the parameters require gradients, and training: every combination under which the result does."""
    which = [(True, True)] if probe.weight is None else [(True, True), (True, False), (False, True)]
    yield from itertools.product(which, (True, False))


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
            case = probe.case(shape, batch, scale)
            ours, *_ = _engine.forward(o, case.x, case.weight, case.bias if scale == 1.0 else None)
            differ = int((ours != probe.ask(case)).sum())
            worst = max(worst, max(0, differ - 1) / case.x.numel())
    return worst
