"""What Spark's JVM prints reaches people, but for tracebacks of workers that Spark has left at a query's end."""

from __future__ import annotations

import io

from headrace.spark.session.jvm_output import pass_on, without_left_workers

LEFT = """\
Traceback (most recent call last):
  File "/tmp/headrace-spark-piga4wo0/python/pyspark/sql/streaming/python_streaming_source_runner.py", line 265, in main
    func_id = read_int(infile)
              ^^^^^^^^^^^^^^^^
  File "/tmp/headrace-spark-piga4wo0/python/pyspark/serializers.py", line 604, in read_int
    raise EOFError
EOFError

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/tmp/headrace-spark-piga4wo0/python/pyspark/worker_util.py", line 253, in get_sock_file_to_executor
    yield sock_file
  File "/usr/lib/python3.11/contextlib.py", line 158, in __exit__
    self.gen.throw(value)
BrokenPipeError: [Errno 32] Broken pipe
"""
OURS = """\
Traceback (most recent call last):
  File "/usr/lib/python3.11/site-packages/pyspark/worker.py", line 5, in main
    process()
  File "/data/stages/stage.py", line 7, in convert
    raise BrokenPipeError
BrokenPipeError
"""
OTHER = LEFT.replace("BrokenPipeError: [Errno 32] Broken pipe", "ValueError: bad")


def passed(text: str) -> str:
    return "".join(without_left_workers(text.splitlines(keepends=True)))


def test_the_traceback_of_a_worker_that_was_left_is_not_shown() -> None:
    assert passed(LEFT) == ""
    assert passed("before\n" + LEFT + LEFT + "10:00:00 ERROR after: it\n") == "before\n10:00:00 ERROR after: it\n"


def test_any_other_error_is_shown_as_it_is() -> None:
    for text in (OURS, OTHER, OURS + OTHER, "10:00 ERROR x\njava.lang.Error: y\n\tat z\n", "  indented\n"):
        assert passed(text) == text
    assert passed(OURS + LEFT + OTHER) == OURS + OTHER


def test_a_traceback_without_an_end_is_not_held_back_for_ever() -> None:
    endless = "Traceback (most recent call last):\n" + '  File "/a/pyspark/b.py", line 1\n' * 2000
    lines = without_left_workers(iter(endless.splitlines(keepends=True)))
    assert next(lines) == "Traceback (most recent call last):\n"
    assert passed(endless) == endless


def test_lines_are_passed_on_until_the_output_ends() -> None:
    lines: list[str] = []
    pass_on(io.BytesIO(LEFT.encode() + b"one\n\xff\n"), lines.append).join()
    assert lines == ["one\n", "\ufffd\n"]
