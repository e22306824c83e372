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
    times: tuple[Times, Times]  # per token


class Errors(NamedTuple):
    norm: Both  # largest relative error of an element of a norm's output, over all norms
    differing: int  # elements of all norms in which the two have other bits
    elements: int
    logits: Both  # relative error of the logits: root mean square of the error, of that of the logits


class Training(NamedTuple):
    loss: Both
    loss_after: Both
    gradient: Both  # relative error of the gradient of a parameter (2-norms), the largest of all parameters
    difference: float  # the same between own and ours


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
            step, cache = prompt.new_tensor([[token]]), outputs[i].cache
            outputs[i] = samples[i].time(lambda model=model, step=step, cache=cache: model(step, cache=cache))
    own, ours = (sample.finish(skip=min(2, count - 1)) for sample in samples)
    lead, difference = torch.stack(leads).min(), torch.stack(differences).max()
    return Generation(tokens[0], tokens[1], float(lead), float(difference), (own, ours))


@torch.inference_mode()
def time_prefill(pair: Pair, ids: Tensor, seconds: float) -> tuple[Times, Times]:
    """The first reading of a text; logits of the last token only, as before a generation."""
    return alternate((pair.own, pair.ours), pair.norms, lambda model: model(ids, logits_to_keep=1), seconds)


def time_training(pair: Pair, ids: Tensor, seconds: float) -> tuple[Times, Times]:
    """Forward and backward on the text, which is its own target."""

    def run(model: nn.Module) -> None:
        model.zero_grad()
        model(ids, labels=ids, use_cache=False).loss.backward()

    times = alternate((pair.own, pair.ours), pair.norms, run, seconds)
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


def train(pair: Pair, reference: nn.Module, ids: Tensor, rate: float) -> Training:
    """One step of plain gradient descent by each model, from the same parameters; gradients compared with f64."""
    _, exact = _step(reference, ids)
    before = [p.detach().clone() for p in pair.own.parameters()]
    losses, after, found = [], [], []
    for model in (pair.own, pair.ours):
        loss, gradients = _step(model, ids)
        losses.append(loss)
        found.append(gradients)
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(gradient, alpha=rate)
            after.append(float(model(ids, labels=ids, use_cache=False).loss))
            for parameter, old in zip(model.parameters(), before, strict=True):
                parameter.copy_(old)  # the twin has the same parameters and starts from them too
    return Training(
        Both(*losses), Both(*after), Both(*(_farthest(g, exact) for g in found)), _farthest(found[1], found[0])
    )


def _step(model: nn.Module, ids: Tensor) -> tuple[float, list[Tensor]]:
    """The loss and the gradient of every parameter."""
    model.zero_grad()
    loss = model(ids, labels=ids, use_cache=False).loss
    loss.backward()
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad()  # the models let go of them, the list keeps them
    return float(loss.detach()), gradients


def _farthest(gradients: list[Tensor], exact: list[Tensor]) -> float:
    """The largest relative distance of a parameter's gradient."""
    distances = [(g.double() - e.double()).norm() / e.double().norm() for g, e in zip(gradients, exact, strict=True)]
    return float(torch.stack(distances).max())  # torch's max keeps a NaN
