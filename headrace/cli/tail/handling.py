"""The handling of an event in `headrace tail`: print it, run a program, store the position after it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, Final

from headrace.cli.arguments import Failed
from headrace.cli.connection import Client
from headrace.cli.tail.following import Follow
from headrace.cli.tail.lines import EventLines, Path
from headrace.cli.terminal import Painter, one_line, width

STATE_SECONDS: Final = 1.0
"""The interval between stored positions while events are only printed; with a program it is stored after each event."""


class EventHandler:
    """Handles the events of one command line."""

    def __init__(self, follow: Follow, *, as_json: bool, program: str | None, fields: Sequence[Path]) -> None:
        self._follow = follow
        self._as_json = as_json
        self._program = program
        self._lines = EventLines(Painter(), width() if sys.stdout.isatty() else None, fields)
        self._stored_at = 0.0

    def run(self, client: Client, count_max: int | None) -> int:
        """Handle events until `count_max` are done. At every end, close the cursor and store the position.

        Raises Failed, and BrokenPipeError when the reader of the output is gone.
        """
        count, position = 0, None
        try:
            with closing(self._follow.events(client)) as events:
                for event, token in events:
                    if event is None:
                        self._look_at_output()
                    else:
                        self._handle(event)
                        count += 1
                    position = token or position
                    is_last = count == count_max
                    self._store(position, now=is_last or event is None or self._program is not None)
                    if is_last:
                        break
        except BaseException:
            self._store(position, now=True)
            raise
        return 0

    def _look_at_output(self) -> None:
        """Raise BrokenPipeError if the output is a pipe without a reader; without events no write would raise it."""
        if self._program is None or self._as_json:
            poll = select.poll()
            with suppress(OSError, ValueError):  # the output is no file in a test or a notebook
                poll.register(sys.stdout.fileno(), 0)
            if any(happened & select.POLLERR for _, happened in poll.poll(0)):
                raise BrokenPipeError

    def _handle(self, event: Mapping[str, Any]) -> None:
        if self._program is not None:
            self._run_program(self._program, event)
        if self._as_json:
            print(one_line(self._lines.chosen(event)), flush=True)
        elif self._program is None:
            print("\n".join(self._lines.of(event)), flush=True)

    def _run_program(self, program: str, event: Mapping[str, Any]) -> None:
        """Run the program. Raises Failed if it fails; then the position is not stored, and the event comes again."""
        namespace = event.get("ns") or {}
        environment = os.environ | {
            "HEADRACE_OPERATION_TYPE": str(event.get("operationType", "")),
            "HEADRACE_DATABASE": str(namespace.get("db", "")),
            "HEADRACE_COLLECTION": str(namespace.get("coll", "")),
            "HEADRACE_RESUME_TOKEN": json.dumps({"_data": event["_id"]["_data"]}),
        }
        text = one_line(self._lines.chosen(event))
        done = subprocess.run(program, shell=True, check=False, input=text.encode(), env=environment)
        if done.returncode:
            raise Failed(f"the command {program!r} failed with status {done.returncode}; its event is not done")

    def _store(self, position: Mapping[str, Any] | None, *, now: bool) -> None:
        state = self._follow.state
        if state is not None and (now or time.monotonic() - self._stored_at > STATE_SECONDS):
            state.write(position)
            self._stored_at = time.monotonic()
