"""Shared by all Python tests: `reference` and `arrays.kinds` can be imported, and examples are found again."""

import os
import sys
from pathlib import Path

from hypothesis import settings

sys.path.append(str(Path(__file__).parent))  # at the end: the folder torch/ must not hide the package

settings.register_profile("normkit", deadline=None, derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "normkit"))
