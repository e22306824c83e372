"""These tests use the f64 reference and the settings of the Python tests, and the helpers of this folder."""

import runpy
import sys
from pathlib import Path

runpy.run_path(str(Path(__file__).parents[1] / "python" / "conftest.py"))
sys.path.append(str(Path(__file__).parent))
