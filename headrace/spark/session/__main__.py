"""`python -m headrace.spark.session`: writes the archive of Spark's classes, with which sessions start sooner."""

from __future__ import annotations

import sys

from headrace.spark.session.jvm import BACKGROUND, make

if __name__ == "__main__":
    path = make(background=BACKGROUND in sys.argv[1:])
    print(f"wrote {path}" if path else "another process is writing it")
