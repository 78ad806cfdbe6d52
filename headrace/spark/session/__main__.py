"""`python -m headrace.spark.session`: writes the archive of Spark's classes, with which sessions start sooner."""

from __future__ import annotations

from headrace.spark.session.java import find_java
from headrace.spark.session.jvm import archive_path
from headrace.spark.session.spark_session import warm

if __name__ == "__main__":
    warm()
    print(f"wrote {archive_path(find_java())}")
