"""A real language model, SmolLM2-135M-Instruct, with its own norms and with normkit's. `make demo` runs it.

    python -m examples.demo            everything, about a minute and a half
    python -m examples.demo --quick    the same checks with few repetitions: the times mean little

Both models have the same parameters and take turns in everything that is measured; times are medians. The exit status
is 0 if every check holds: the same tokens, errors against f64 inside their bounds, the same training step.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from .progress import Progress

QUESTION = "What is gravity?"
EXPLANATION = """
Times are medians, both models in turns; ± is half the width of the middle half of the turns' ratios. The norms are a
small part of this model's time, so the whole gains little; what whole times differ by beyond that part is noise."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    quick = parser.parse_args().quick
    # Before anything imports them: no look at the network, no progress bars of their own.
    os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
    with Progress("Loading SmolLM2-135M-Instruct, unpacking its 4-bit weights to f32", final=True):
        # torch and transformers take seconds to import: only here, while something is shown.
        import normkit
        import torch

        from . import model as smollm2
        from .report import Report
        from .run import FULL, QUICK, Texts, compare_in

        model, tokenizer = smollm2.load()
    chat = [{"role": "user", "content": QUESTION}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    license_text = Path(__file__).resolve().parents[2].joinpath("LICENSE").read_text()
    texts = Texts(QUESTION, prompt["input_ids"], tokenizer(license_text, return_tensors="pt").input_ids)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; ", end="")
    print(f"normkit {normkit.__version__}, instruction set {normkit.target()}")
    report = Report()
    for dtype in (torch.float32, torch.bfloat16):
        compare_in(dtype, model, texts, tokenizer.decode, (QUICK if quick else FULL)[dtype], report)
    print(EXPLANATION)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
