#!/usr/bin/env python3
"""Whole networks with torch's norms and with ours, in turns: time, and how far the results are apart.

    python bench/networks.py [--threads N]

A GroupNorm + SiLU block as in a diffusion U-Net (forward), a style-transfer network with InstanceNorm (forward), and a
training step of a small ResNet with BatchNorm (forward, backward, SGD); channels first and channels last.
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness.timing import interleave, ratio


class UNetBlock(nn.Module):
    def __init__(self, channels: int = 320):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, channels), nn.GroupNorm(32, channels)
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        return x + self.conv2(F.silu(self.norm2(h)))


class StyleTransfer(nn.Module):
    """Johnson et al. 2016 with instance normalization: down, five residual blocks, up."""

    def __init__(self, width: int = 32):
        super().__init__()

        def conv(a, b, size, stride=1):
            return nn.Sequential(
                nn.Conv2d(a, b, size, stride, size // 2, padding_mode="reflect"), nn.InstanceNorm2d(b, affine=True)
            )

        self.down = nn.ModuleList([conv(3, width, 9), conv(width, 2 * width, 3, 2), conv(2 * width, 4 * width, 3, 2)])
        self.blocks = nn.ModuleList(
            [nn.Sequential(conv(4 * width, 4 * width, 3), nn.ReLU(), conv(4 * width, 4 * width, 3)) for _ in range(5)]
        )
        self.up = nn.ModuleList([conv(4 * width, 2 * width, 3), conv(2 * width, width, 3)])
        self.last = nn.Conv2d(width, 3, 9, padding=4, padding_mode="reflect")

    def forward(self, x):
        for layer in self.down:
            x = F.relu(layer(x))
        for block in self.blocks:
            x = x + block(x)
        for layer in self.up:
            x = F.relu(layer(F.interpolate(x, scale_factor=2.0)))
        return self.last(x)


class Residual(nn.Module):
    def __init__(self, a: int, b: int, stride: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.conv2, self.bn2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        self.short = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b)) if stride > 1 else None

    def forward(self, x):
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(h + (x if self.short is None else self.short(x)))


class ResNet(nn.Module):
    """The CIFAR form of ResNet (He et al. 2016), two blocks a stage."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        sizes = [(32, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
        self.blocks = nn.Sequential(*(Residual(*size) for size in sizes))
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def forward(model, inputs):
    model.eval()

    def run():
        with torch.no_grad():
            return model(inputs[0])

    return run


def training_step(model, inputs):
    """One step from the same weights every time: the learning rate is 0."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def run():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[0]), inputs[1])
        loss.backward()
        optimizer.step()
        return torch.cat([loss.detach().reshape(1), *(p.grad.flatten() for p in model.parameters())])

    return run


NETWORKS = {
    "U-Net block, GroupNorm, 1x320x64x64": (UNetBlock, forward, lambda: [torch.randn(1, 320, 64, 64)]),
    "style transfer, InstanceNorm, 1x3x256x256": (StyleTransfer, forward, lambda: [torch.randn(1, 3, 256, 256)]),
    "ResNet training step, BatchNorm, 64x3x32x32": (
        ResNet,
        training_step,
        lambda: [torch.randn(64, 3, 32, 32), torch.randint(10, (64,))],
    ),
}


def measure(name: str, last: bool) -> str:
    import normkit.torch

    make, prepare, data = NETWORKS[name]
    torch.manual_seed(0)
    layout = torch.channels_last if last else torch.contiguous_format
    theirs = make().to(memory_format=layout)
    ours = copy.deepcopy(theirs)
    report = normkit.torch.patch(ours)
    inputs = [t.contiguous(memory_format=layout) if t.ndim == 4 else t for t in data()]
    runs = {"torch": prepare(theirs, inputs), "normkit": prepare(ours, inputs)}
    a, b = (run() for run in runs.values())
    apart = ((a - b).abs().max() / a.abs().max()).item()
    timings = interleave(runs, 0.05)
    torch_ms, our_ms = (timings[k].seconds * 1e3 for k in ("torch", "normkit"))
    kind = "channels last" if last else "channels first"
    return (
        f"{name:<46}{kind:<16}{len(report.replaced):>3} norms {torch_ms:>9.2f} ms {our_ms:>9.2f} ms "
        f"{ratio(timings['torch'], timings['normkit']):>6.2f}x   apart {apart:.1e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    torch.set_num_threads(parser.parse_args().threads)
    print(f"{torch.get_num_threads()} threads; torch's norms, ours, times faster, largest difference / largest value")
    for name in NETWORKS:
        for last in (False, True):
            print(measure(name, last), flush=True)


if __name__ == "__main__":
    main()
