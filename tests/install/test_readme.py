"""The README's examples run, and its names exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("code", blocks("python"))
def test_python_examples_run(code):
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.RMSNorm(8))
    kinds = [type(m) for m in model]
    exec(compile(code, "README.md", "exec"), {"model": model})
    assert [type(m) for m in model] == kinds  # the last line of the PyTorch example undoes the patch


def test_cpp_example_is_the_program_that_is_built_and_run():
    lines = [line.strip() for line in "".join(blocks("cpp")).splitlines() if line.strip()]
    program = [line.strip() for line in (ROOT / "tests/install/consumer/main.cc").read_text().splitlines()]
    assert lines and set(lines) <= set(program)


def test_linked_files_exist():
    for page in ("README.md", "CONTRIBUTING.md"):
        links = re.findall(r"\]\(([^):#]+)\)", (ROOT / page).read_text())
        assert [link for link in links if not (ROOT / link).exists()] == []


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    pages = (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"(?:`|^    )make ([a-z-]+)", pages, flags=re.MULTILINE))
    assert named and named <= targets
