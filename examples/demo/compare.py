"""The comparisons: tokens, time, error against f64, a training step. `own`: the model as it comes; `ours`: its twin."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .clock import Samples, Times, alternate


class Pair(NamedTuple):
    """Two models with the same parameters, and the names of the norms that normkit computes in the second."""

    own: nn.Module
    ours: nn.Module
    norms: list[str]


class Both(NamedTuple):
    """One number of each model."""

    own: float
    ours: float


class Generation(NamedTuple):
    own: list[int]
    ours: list[int]
    lead: float  # the smallest lead of a chosen token's logit over the next best, own
    difference: float  # the largest difference of two logits, own and ours, while the tokens are the same
    times: tuple[Times, Times]  # token by token


class Errors(NamedTuple):
    norm: Both  # largest relative error of an element of a norm's output, over all norms
    differing: int  # elements of all norms in which the two have other bits
    elements: int
    logits: Both  # relative error of the logits: root mean square of the error, of that of the logits


class Loss(NamedTuple):
    own: float
    ours: float
    exact: float  # in f64


class Step(NamedTuple):
    before: float  # the loss
    after: float
    gradient: list[Tensor]  # by each parameter


class Training(NamedTuple):
    before: Loss
    after: Loss
    gradient: Both  # relative error of the whole gradient against f64 (2-norms)
    difference: float  # relative difference between ours and own of one parameter's gradient, the largest


@torch.inference_mode()
def generate(pair: Pair, prompt: Tensor, count: int) -> Generation:
    """Each model continues the prompt by `count` tokens, always the likeliest; the models take turns token by token."""
    models = (pair.own, pair.ours)
    outputs = [model(prompt, logits_to_keep=1) for model in models]
    samples = [Samples(model, pair.norms) for model in models]
    tokens: list[list[int]] = [[], []]
    leads, differences = [], []
    for _ in range(count):
        logits = [output.logits[0, -1].float() for output in outputs]
        if tokens[0] == tokens[1]:
            best = logits[0].topk(2).values
            leads.append(best[0] - best[1])
            differences.append((logits[0] - logits[1]).abs().max())
        for i, model in enumerate(models):
            token = int(logits[i].argmax())
            tokens[i].append(token)
            last, cache = prompt.new_tensor([[token]]), outputs[i].cache
            outputs[i] = samples[i].time(lambda model=model, last=last, cache=cache: model(last, cache=cache))
    own, ours = (sample.finish(skip=min(2, count - 1)) for sample in samples)
    lead, difference = torch.stack(leads).min(), torch.stack(differences).max()
    return Generation(tokens[0], tokens[1], float(lead), float(difference), (own, ours))


@torch.inference_mode()
def time_prefill(pair: Pair, ids: Tensor, seconds: float) -> tuple[Times, Times]:
    """The first reading of a text; logits of the last token only, as before a generation."""
    return alternate((pair.own, pair.ours), pair.norms, lambda model: model(ids, logits_to_keep=1), seconds)


def time_training(pair: Pair, ids: Tensor, seconds: float) -> tuple[Times, Times]:
    """Forward and backward on the text, which is its own target. Comes after `train`, which warms up."""

    def run(model: nn.Module) -> None:
        model.zero_grad()
        model(ids, labels=ids, use_cache=False).loss.backward()

    times = alternate((pair.own, pair.ours), pair.norms, run, seconds, warm=True)
    pair.own.zero_grad()
    return times


@torch.inference_mode()
def errors(pair: Pair, reference: nn.Module, ids: Tensor) -> Errors:
    """Of each norm, on the inputs that it gets in the own model; and of the logits of the whole models."""
    inputs: dict[str, Tensor] = {}

    def keep(name: str):
        return pair.own.get_submodule(name).register_forward_pre_hook(lambda _, x: inputs.update({name: x[0]}))

    handles = [keep(name) for name in pair.norms]
    logits = [pair.own(ids).logits]
    for handle in handles:
        handle.remove()
    logits.append(pair.ours(ids).logits)
    found: list[tuple[Tensor, Tensor]] = []
    differing, elements = 0, 0
    for name, x in inputs.items():
        exact = reference.get_submodule(name)(x)
        outputs = [model.get_submodule(name)(x) for model in (pair.own, pair.ours)]
        found.append(tuple(_largest_relative(y, exact) for y in outputs))
        differing += int((outputs[0] != outputs[1]).sum())
        elements += x.numel()
    exact = reference(ids).logits
    of_logits = [float((y.double() - exact).norm() / exact.norm()) for y in logits]
    worst = [float(torch.stack(column).max()) for column in zip(*found, strict=True)]  # torch's max keeps a NaN
    return Errors(Both(*worst), differing, elements, Both(*of_logits))


def _largest_relative(y: Tensor, exact: Tensor) -> Tensor:
    return ((y.double() - exact).abs() / exact.abs().clamp_min(torch.finfo(torch.float32).tiny)).max()


def step(model: nn.Module, ids: Tensor, rate: float) -> Step:
    """One step of plain gradient descent on the text, which is its own target. The parameters have then moved."""
    model.zero_grad()
    loss = model(ids, labels=ids, use_cache=False).loss
    loss.backward()
    gradient = [p.grad for p in model.parameters()]
    model.zero_grad()  # the model lets go of them, the list keeps them
    with torch.no_grad():
        for parameter, g in zip(model.parameters(), gradient, strict=True):
            parameter.sub_(g, alpha=rate)
        after = model(ids, labels=ids, use_cache=False).loss
    return Step(float(loss.detach()), float(after), gradient)


def train(pair: Pair, exact: Step, ids: Tensor, rate: float) -> Training:
    """One step by each model, from the same parameters, beside the step `exact` in f64."""
    before = [p.detach().clone() for p in pair.own.parameters()]
    steps = []
    for model in (pair.own, pair.ours):
        steps.append(step(model, ids, rate))
        with torch.no_grad():  # the twins share the parameters
            for parameter, old in zip(model.parameters(), before, strict=True):
                parameter.copy_(old)
    own, ours = steps
    distances = torch.stack([_distance([a], [b]) for a, b in zip(ours.gradient, own.gradient, strict=True)])
    return Training(
        Loss(own.before, ours.before, exact.before),
        Loss(own.after, ours.after, exact.after),
        Both(float(_distance(own.gradient, exact.gradient)), float(_distance(ours.gradient, exact.gradient))),
        float(distances.max()),  # torch's max keeps a NaN
    )


def _distance(gradient: list[Tensor], exact: list[Tensor]) -> Tensor:
    """The relative distance of two lists of tensors, each taken as one long vector."""
    pairs = [(g.double(), e.double()) for g, e in zip(gradient, exact, strict=True)]
    apart = torch.stack([(g - e).square().sum() for g, e in pairs]).sum()
    return (apart / torch.stack([e.square().sum() for _, e in pairs]).sum()).sqrt()
