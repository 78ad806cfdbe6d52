"""`python -m headrace`: the `headrace` command, for environments whose scripts are not on the PATH."""

from __future__ import annotations

import sys

from headrace.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
