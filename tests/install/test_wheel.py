"""What the installed wheel contains and what it asks of a user's machine."""

import re
import subprocess
import sys
import zlib
from importlib import metadata
from pathlib import Path

FILES = {str(f): Path(str(f.locate())) for f in metadata.files("normkit") or []}
EXTENSION = next(path for name, path in FILES.items() if name.startswith("normkit/_core") and name.endswith(".so"))


def test_types_and_licence_are_shipped():
    assert {"normkit/py.typed", "normkit/_core.pyi"} <= set(FILES)
    assert any(name.endswith("licenses/LICENSE") for name in FILES)


def test_every_source_file_of_the_package_is_shipped():
    package = Path(__file__).parents[2] / "python" / "normkit"
    sources = {f"normkit/{p.relative_to(package)}" for p in package.rglob("*.py*") if "__pycache__" not in p.parts}
    assert sources and sources <= set(FILES)


def test_wheel_is_under_5_megabytes():
    size = sum(len(zlib.compress(path.read_bytes())) for name, path in FILES.items() if "__pycache__" not in name)
    assert size < 5_000_000


def test_uses_the_process_wide_openmp_and_bundles_no_library():
    assert [name for name in FILES if re.search(r"\.so\b", name)] == [f"normkit/{EXTENSION.name}"]
    needed = set(re.findall(rb"\0(lib[\w+.-]*\.so[\w.]*)(?=\0)", EXTENSION.read_bytes()))
    assert b"libgomp.so.1" in needed
    assert not [
        name for name in needed if b"normkit" in name or b"torch" in name or re.match(rb"lib(gomp|omp|iomp5)-", name)
    ]


def test_torch_is_no_requirement():
    required = [r for r in metadata.requires("normkit") or [] if "extra ==" not in r]
    assert [re.split(r"[<>=!~ ]", r)[0] for r in required] == ["numpy"]
    code = "import sys, normkit; sys.exit('torch' in sys.modules or 'jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_command_line_prints_version():
    result = subprocess.run([sys.executable, "-m", "normkit", "info"], capture_output=True, text=True, check=True)
    assert metadata.version("normkit") in result.stdout
