"""`python -m kvgraft`: the command line."""

from __future__ import annotations

import sys

from kvgraft.cli import main

sys.exit(main())
