"""`python -m kvaudit`: the command line."""

from __future__ import annotations

import sys

from kvaudit.cli import main

sys.exit(main())
