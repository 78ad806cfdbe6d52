"""`--state`: a file with the position after the last handled event.

    {"namespace": "shop.orders", "resumeToken": {"_data": "82..."}}

Rule: the whole file is replaced, and only after the event is handled. So an event is handled at least once, and again
only if the process ends before the position is stored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bson import json_util

from headrace.cli.arguments import Failed


class StateFile:
    """The state file of one stream."""

    def __init__(self, path: Path, namespace: str) -> None:
        self.path = path
        self._namespace = namespace
        self._stored: Mapping[str, Any] | None = None

    def read(self) -> dict[str, Any] | None:
        """Return the resume token, None if there is no file yet. Raises Failed for any other file or stream."""
        try:
            state = json.loads(self.path.read_text("utf-8"))
            token = json_util.loads(json.dumps(state["resumeToken"]))
            namespace = state["namespace"]
        except FileNotFoundError:
            if not os.access(self.path.parent, os.W_OK):
                raise Failed(
                    f"the position cannot be stored in {self.path.parent}: no such folder, or no right"
                ) from None
            return None
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise Failed(f"{self.path} is not a state file of `headrace tail`: {error}") from None
        if namespace != self._namespace:
            raise Failed(
                f"{self.path} is the state of {namespace or 'all databases'}, not of {self._namespace or 'all'}"
            )
        return dict(token)

    def write(self, token: Mapping[str, Any] | None) -> None:
        """Store a position durably if it differs from the last one. Raises Failed."""
        if token is None or token == self._stored:
            return
        text = json_util.dumps({"namespace": self._namespace, "resumeToken": token})
        temporary = self.path.with_name(f"{self.path.name}.tmp")
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(f"{text}\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
        except OSError as error:
            raise Failed(f"the position cannot be stored: {error}") from None
        self._stored = dict(token)
