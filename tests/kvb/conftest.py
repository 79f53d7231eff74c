"""Makes the sample blocks importable and tells hypothesis that a busy machine is no failure."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("kvb", deadline=None)
settings.load_profile("kvb")
