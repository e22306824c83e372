"""One type of the model: all comparisons, their bounds, and the lines that show them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import normkit.torch
import torch
from torch import Tensor, nn

from .clock import Times
from .compare import Both, Errors, Generation, Pair, Training, errors, generate, time_prefill, time_training, train
from .model import in_f64, twin
from .progress import Progress
from .report import Report


class Settings(NamedTuple):
    tokens: int  # to generate
    prefill: int  # tokens of the text that is read
    training: int  # tokens of the training step
    seconds: float  # for each of the two repeated measurements


FULL = Settings(tokens=48, prefill=512, training=128, seconds=6.0)
QUICK = Settings(tokens=8, prefill=64, training=32, seconds=0.0)


class Texts(NamedTuple):
    question: str
    prompt: Tensor  # the question as the model's chat format has it
    long: Tensor  # a text for prefill, errors and training


class Bounds(NamedTuple):
    """What is asked of normkit, per type. Relative errors."""

    norm: float  # of one element
    loss: float  # of normkit's loss from the own one
    gradient: float  # of a parameter's gradient from the own one


# One norm: three roundings in f32 and the error of 1/sqrt; in bf16 the two roundings to bf16 of Llama's definition.
BOUNDS = {
    torch.float32: Bounds(norm=4 * 2.0**-24, loss=1e-6, gradient=1e-4),
    torch.bfloat16: Bounds(norm=2.02 * 2.0**-8, loss=1e-2, gradient=0.1),
}
WORSE = 1.25  # the whole model's error against f64 may be this many times the own one: both come from the matmuls
RATE = 0.01


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
        print(f"\nnormkit.torch.patch(model): {patched}")
    with Progress(f"{name}: generating"):
        generation = generate(pair, texts.prompt, settings.tokens)
    if dtype == torch.float32:
        print(f"\n  {texts.question}\n  > {' '.join(decode(generation.own).split())} ...")
    with Progress(f"{name}: reading {settings.prefill} tokens, again and again"):
        prefill = time_prefill(pair, texts.long[:, : settings.prefill], settings.seconds)
    part = texts.long[:, : settings.training]
    with Progress(f"{name}: training steps"):
        training = time_training(pair, part, settings.seconds)
    with Progress(f"{name}: the same in f64"):
        reference = in_f64(own, pair.norms)
        found = errors(pair, reference, part)
        step = train(pair, reference, part, RATE)
    report.head(f"SmolLM2-135M-Instruct in {name}")
    report.section("Norms that normkit computes")
    everything = f"{len(patched.replaced)} of {len(patched.replaced) + len(patched.left)}"
    report.check("", "", everything, not patched.left, "all")
    show_times(report, settings, prefill, generation.times, training)
    show_tokens(report, generation, exact=dtype == torch.float32)
    show_errors(report, found, BOUNDS[dtype])
    show_training(report, step, BOUNDS[dtype])


def show_times(
    report: Report,
    settings: Settings,
    prefill: tuple[Times, Times],
    decode: tuple[Times, Times],
    training: tuple[Times, Times],
) -> None:
    kinds = {
        f"prefill, {settings.prefill} tokens": prefill,
        "decode, one token": decode,
        f"training step, {settings.training} tokens": training,
    }
    report.section("Time in the norms (forward; in training forward and backward)")
    for label, (own, ours) in kinds.items():
        report.times(label, own.norms, ours.norms)
    report.section("Time of the whole model")
    for label, (own, ours) in kinds.items():
        report.times(label, own.whole, ours.whole, f"the norms were {own.norms / own.whole:.1%} of it")


def show_tokens(report: Report, generation: Generation, exact: bool) -> None:
    count, same = len(generation.own), generation.own == generation.ours
    report.section("Generated tokens")
    note = f"closest choice won by {generation.lead:.2g}; logits differ by at most {generation.difference:.2g}"
    if same or exact:
        report.check(f"{count}, always the likeliest", "", "", same, "the same tokens")
        report.remark(note)
    else:
        first = next(i for i, (a, b) in enumerate(zip(generation.own, generation.ours, strict=True)) if a != b)
        report.line(f"{count}, always the likeliest", "", "", f"the same up to token {first}")
        report.remark(note)


def show_errors(report: Report, found: Errors, bounds: Bounds) -> None:
    report.section("Error against f64")
    good = found.norm.ours <= bounds.norm
    report.check("one norm, worst element, relative", *numbers(found.norm, ".1e"), good, f"at most {bounds.norm:.1e}")
    good = found.logits.ours <= WORSE * found.logits.own
    report.check("logits of the model, relative", *numbers(found.logits, ".2e"), good, f"at most {WORSE} x own")
    report.remark(f"outputs of all norms with other bits: {found.differing} of {found.elements} elements")


def show_training(report: Report, step: Training, bounds: Bounds) -> None:
    report.section("One training step (gradient descent)")
    for label, loss in (("loss before", step.loss), ("loss after", step.loss_after)):
        good = abs(loss.ours - loss.own) <= bounds.loss * loss.own
        report.check(label, *numbers(loss, ".6f"), good, f"equal within {bounds.loss:.0e}")
    good = step.gradient.ours <= WORSE * step.gradient.own
    report.check("gradients, error against f64", *numbers(step.gradient, ".2e"), good, f"at most {WORSE} x own")
    good = step.difference <= bounds.gradient
    report.check("gradients, normkit from own", "", f"{step.difference:.2e}", good, f"at most {bounds.gradient:.0e}")


def numbers(both: Both, form: str) -> tuple[str, str]:
    return format(both.own, form), format(both.ours, form)
