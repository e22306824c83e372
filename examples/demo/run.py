"""One type of the model: all comparisons, their bounds, and the lines that show them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import normkit.torch
import torch
from torch import Tensor, nn

from .clock import Times
from .compare import (
    Both,
    Errors,
    Generation,
    Loss,
    Pair,
    Training,
    errors,
    generate,
    step,
    time_prefill,
    time_training,
    train,
)
from .model import in_f64, twin
from .progress import Progress
from .report import Report


class Settings(NamedTuple):
    tokens: int  # to generate
    prefill: int  # tokens of the text that is read
    training: int  # tokens of the training step
    seconds: float  # for each of the two repeated measurements


# Few tokens in bf16: on a CPU without bf16 instructions torch's backward takes a quarter of a second per token.
FULL = {
    torch.float32: Settings(tokens=48, prefill=256, training=64, seconds=7.0),
    torch.bfloat16: Settings(tokens=48, prefill=64, training=8, seconds=10.0),
}
QUICK = {
    torch.float32: Settings(tokens=12, prefill=64, training=16, seconds=0.0),
    torch.bfloat16: Settings(tokens=12, prefill=32, training=4, seconds=0.0),
}


class Texts(NamedTuple):
    question: str
    prompt: Tensor  # the question as the model's chat format has it
    long: Tensor  # a text for prefill, errors and training


class Bounds(NamedTuple):
    """What is asked of normkit, per type. All are relative."""

    norm: float  # error of one element of a norm's output
    loss: float  # difference between normkit's loss and the own one
    gradient: float  # the same for the gradient of a parameter (2-norms)


# norm, f32: three roundings of 2^-24 each, and the sum; bf16: the two roundings to bf16 in Llama's definition.
# loss, gradient: the errors of both models come from their matmuls. One other bit anywhere, and they fall out
# differently, so the two models differ about as much as each differs from f64.
BOUNDS = {
    torch.float32: Bounds(norm=8 * 2.0**-24, loss=1e-5, gradient=1e-4),
    torch.bfloat16: Bounds(norm=2.02 * 2.0**-8, loss=5e-2, gradient=0.25),
}
WORSE = 3.0  # for the same reason: the error of the whole model against f64 may be this many times the own one
RATE = 0.003


def compare_in(
    dtype: torch.dtype,
    model: nn.Module,
    texts: Texts,
    decode: Callable[[list[int]], str],
    settings: Settings,
    report: Report,
) -> None:
    """Compare model, in dtype, with its twin whose norms normkit computes, and print the table."""
    name = {torch.float32: "f32", torch.bfloat16: "bf16"}[dtype]
    own = model if dtype == torch.float32 else copy.deepcopy(model).to(dtype)
    ours = twin(own)
    patched = normkit.torch.patch(ours)
    pair = Pair(own, ours, list(patched.replaced))
    if dtype == torch.float32:
        print("own:     the model as transformers runs it")
        print(f"normkit: the same weights after normkit.torch.patch: {patched}\n")
    with Progress(f"{name}: generating"):
        generation = generate(pair, texts.prompt, settings.tokens)
    if dtype == torch.float32:
        print(f"  {texts.question}\n  > {' '.join(decode(generation.own).split())} ...")
    with Progress(f"{name}: reading {settings.prefill} tokens, again and again"):
        prefill = time_prefill(pair, texts.long[:, : settings.prefill], settings.seconds)
    target = texts.long[:, : settings.training]
    with Progress(f"{name}: the same in f64"):
        reference = in_f64(own, pair.norms)
        found = errors(pair, reference, texts.long[:, : settings.prefill])
        exact = step(reference, target, RATE)
        del reference  # a gigabyte
    with Progress(f"{name}: training"):
        trained = train(pair, exact, target, RATE)
        training = time_training(pair, target, settings.seconds)
    report.head(f"SmolLM2-135M-Instruct in {name}")
    report.section("Norms")
    everything = f"{len(patched.replaced)} of {len(patched.replaced) + len(patched.left)}"
    report.check("computed by normkit", "", everything, not patched.left, "all")
    show_times(report, settings, prefill, generation.times, training)
    show_tokens(report, generation, exact=dtype == torch.float32)
    show_errors(report, found, BOUNDS[dtype])
    show_training(report, trained, BOUNDS[dtype])


def show_times(
    report: Report,
    settings: Settings,
    prefill: tuple[Times, Times],
    decode: tuple[Times, Times],
    training: tuple[Times, Times],
) -> None:
    kinds = {
        f"prefill: reading {settings.prefill} tokens": prefill,
        "decode: one more token": decode,
        f"training step, {settings.training} tokens": training,
    }
    report.section("Time in the norms (forward; in training also backward)")
    for label, (own, ours) in kinds.items():
        report.times(label, own.norms, ours.norms)
    report.section("Time of the whole model")
    for label, (own, ours) in kinds.items():
        share = median(own.norms) / median(own.whole)
        report.times(label, own.whole, ours.whole, f"   (norms: {share:.1%} of own)")


def show_tokens(report: Report, generation: Generation, exact: bool) -> None:
    """Equal tokens are asked for in f32 only: see the remark that is printed in bf16."""
    report.section("Generated tokens")
    label, same = f"{len(generation.own)}, always the likeliest", generation.own == generation.ours
    if exact:
        report.check(label, "", "", same, "the same")
    elif same:
        report.line(label, "", "", "the same")
    else:
        first = next(i for i, (a, b) in enumerate(zip(generation.own, generation.ours, strict=True)) if a != b)
        report.line(label, "", "", f"the first {first} the same (asked in f32 only)")
    lead, apart = f"{generation.lead:.2g}", f"{generation.difference:.2g}"
    report.remark(f"The closest choice was won by {lead}; own and normkit logits are at most {apart} apart.")
    if not exact:
        report.remark("In bf16 one other bit in a norm changes every rounding after it, and ties between logits occur.")


def show_errors(report: Report, found: Errors, bounds: Bounds) -> None:
    report.section("Error against f64")
    good = found.norm.ours <= bounds.norm
    report.check("any norm, worst element, relative", *numbers(found.norm, ".1e"), good, f"at most {bounds.norm:.1e}")
    good = found.logits.ours <= WORSE * found.logits.own
    report.check("logits of the whole model, relative", *numbers(found.logits, ".2e"), good, f"at most {WORSE:g} x own")
    report.remark(f"{found.differing:,} of the {found.elements:,} elements of all norms have other bits than own.")


def show_training(report: Report, trained: Training, bounds: Bounds) -> None:
    report.section("One training step (gradient descent)")
    for label, loss in (("loss before", trained.before), ("loss after", trained.after)):
        good = abs(loss.ours - loss.own) <= bounds.loss * loss.own
        report.check(
            label, *numbers(loss, ".6f"), good, f"within {bounds.loss:.0e} of own", f" (f64: {loss.exact:.6f})"
        )
    good = trained.gradient.ours <= WORSE * trained.gradient.own
    report.check("gradient, error against f64", *numbers(trained.gradient, ".2e"), good, f"at most {WORSE:g} x own")
    good = trained.difference <= bounds.gradient
    report.check(
        "gradient of one parameter, from own", "", f"{trained.difference:.2e}", good, f"at most {bounds.gradient:g}"
    )


def numbers(both: Both | Loss, form: str) -> tuple[str, str]:
    return format(both.own, form), format(both.ours, form)
