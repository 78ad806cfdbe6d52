"""Programs with tables of Spark's catalogs, one after the other in one Spark: run as a program.

    python -m tests.spark.sinks.catalog_programs delta|iceberg PACKAGE IVY FOLDER

A line of standard input is a JSON array: the program's name, a folder of its own, and its words. The answer is a line
of standard output: `right`, or `wrong` after a trace on standard error. The first answer is `ready`.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Final

from tests.spark.sinks import catalog_collections, catalog_crashes, catalog_job, catalog_letters
from tests.spark.sinks.catalog_session import start_session

PROGRAMS: Final = {
    "collections": catalog_collections.main,
    "crashes": catalog_crashes.main,
    "job": catalog_job.main,
    "letters": catalog_letters.main,
}


def main(kind: str, package: str, ivy: str, folder: str) -> None:
    spark = start_session(kind, package, ivy, Path(folder))
    print("ready", flush=True)
    for line in sys.stdin:
        name, its_folder, *words = json.loads(line)
        try:
            PROGRAMS[name](spark, kind, Path(its_folder), words)
        except BaseException:  # a Crash that nothing caught is one
            traceback.print_exc()
            print("wrong", flush=True)
        else:
            print("right", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
