"""The package around the functions: stubs, docstrings, `normkit info`."""

import ast
import importlib.metadata
import inspect
import os
import subprocess
import sys
from pathlib import Path

import normkit
import normkit._core
import pytest
from arrays.kinds import OPS
from nanobind.stubgen import StubGen
from normkit import cli

FUNCTIONS = [*OPS, *(op + "_backward" for op in OPS)]


def signatures(text: str) -> dict[str, list[dict[str, tuple[str, str]]]]:
    """name -> for each definition: parameter -> (kind, default or "") as written in a stub."""
    result: dict[str, list[dict[str, tuple[str, str]]]] = {}
    for node in ast.parse(text).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        a = node.args
        defaults = [None] * (len(a.args) - len(a.defaults)) + a.defaults
        every = [("positional", *pair) for pair in zip(a.args, defaults, strict=True)]
        every += [("keyword", *pair) for pair in zip(a.kwonlyargs, a.kw_defaults, strict=True)]
        parameters = {arg.arg: (kind, repr(ast.literal_eval(d)) if d else "") for kind, arg, d in every}
        result.setdefault(node.name, []).append(parameters)
    return result


def test_the_stubs_have_the_signatures_of_the_module():
    generator = StubGen(normkit._core)
    generator.put(normkit._core)
    real = signatures(generator.get())
    written = signatures(Path(normkit._core.__file__).with_name("_core.pyi").read_text())
    assert written.keys() == real.keys()
    for name, definitions in written.items():
        (actual,) = real[name]
        for definition in definitions:
            assert list(definition) == list(actual), name
            for parameter, (kind, default) in definition.items():
                assert kind == actual[parameter][0], (name, parameter)
                # An overload demands what tells it apart from the others.
                if not (parameter in ("residual", "return_stats") and default == ""):
                    assert default == actual[parameter][1], (name, parameter)


def test_the_package_is_typed():
    assert Path(normkit.__file__).with_name("py.typed").exists()
    assert normkit.__version__ == normkit._core.version() == importlib.metadata.version("normkit")


def test_everything_public_is_exported_and_documented():
    public = {name for name in vars(normkit._core) if not name.startswith("_")} - {"version"}
    assert public == set(normkit.__all__) - {"__version__"}
    for name in public:
        assert len(getattr(normkit, name).__doc__) > 60


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstrings_explain_every_parameter(name):
    doc = getattr(normkit, name).__doc__
    signature, _, text = doc.partition("->")
    described = {p for line in text.splitlines() if " : " in line for p in line.split(" : ")[0].split(", ")}
    parameters = {p.split(":")[0].strip(" *") for p in signature[signature.index("(") + 1 :].split(", ") if ":" in p}
    assert parameters == described
    assert inspect.cleandoc(text)


def test_targets():
    assert normkit.target() in normkit.targets()
    assert normkit.cache_bytes() > 0
    assert normkit.available_cpus() >= 1


def test_version_of_the_command(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert (end.value.code, capsys.readouterr().out) == (0, f"normkit {normkit.__version__}\n")


@pytest.mark.parametrize("command", [[sys.executable, "-m", "normkit", "info"], ["normkit", "info"]])
def test_info(command):
    if command[0] == "normkit":  # the console script lies beside the interpreter
        command = [str(Path(sys.executable).with_name("normkit")), "info"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in run.stdout.splitlines())
    assert lines["normkit"] == normkit.__version__
    assert normkit.target() in lines["instruction"]
    assert lines["threads"].startswith(str(normkit.available_cpus()))
    assert run.stdout.count(" GB/s") == 3
    assert lines["numpy"] == importlib.metadata.version("numpy")
    assert lines["torch"] == importlib.metadata.version("torch")


def test_forced_targets_have_the_same_bits():
    code = (
        "import numpy as np, normkit\n"
        "x = np.random.default_rng(0).standard_normal((7, 5000)).astype('f4')\n"
        "print(normkit.target(), hash(normkit.layer_norm(x).tobytes() + normkit.rms_norm_backward(x, x)[1].tobytes()))"
    )
    seen = set()
    for target in normkit.targets():
        environment = {**os.environ, "NORMKIT_TARGET": target, "PYTHONHASHSEED": "0"}
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
        name, bits = run.stdout.split()
        assert name == target
        seen.add(bits)
    assert len(seen) == 1


def test_an_unknown_target_is_an_error():
    code = "import numpy as np, normkit\nnormkit.rms_norm(np.ones(3))"
    environment = {**os.environ, "NORMKIT_TARGET": "mmx"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert "ValueError" in run.stderr and "mmx" in run.stderr


def test_a_command_that_does_not_exist():
    run = subprocess.run([sys.executable, "-m", "normkit", "inform"], capture_output=True, text=True)
    assert run.returncode == 2
    assert "info" in run.stderr
