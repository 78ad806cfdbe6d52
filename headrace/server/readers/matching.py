"""headraceMatches: find the documents that a write in the server will change. A reader runs it.

    {headraceMatches: collection, scan: {uuid, filter, collation, variables, after: record, limit}}
    → {records, documents, after, isAll}

The scan goes in natural order from the record after `after`. It ends at the collection's end (`isAll`), at the limit,
or after it has found or examined much; the server then sends another command. No client can send it.
"""

from __future__ import annotations

from typing import Any, Final

from headrace import limits
from headrace.dispatch.arguments import Fields, document
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import on_collection
from headrace.errors import CommandError
from headrace.execution.let import CommandVariables
from headrace.execution.plan import Finder
from headrace.query.collation import parse_collation
from headrace.running_command import examined
from headrace.values.bson import decode


def run(context: CommandContext, request: Request) -> dict[str, Any]:
    """Find documents. Raises 175 if the collection does not exist, and the filter's error if nothing was found before
    it."""
    scan, name = request.body["scan"], f"{request.db}.{request.body[request.name]}"
    collection = context.view.collection(name)
    if collection is None or collection.uuid != scan["uuid"]:
        raise CommandError(175, f"collection '{name}' was dropped or renamed")
    variables = CommandVariables(context)
    variables.update(scan["variables"])
    finder = Finder(collection, scan["filter"], parse_collation(scan["collation"]), variables, {"$natural": 1})
    predicate, keep = finder.predicate, finder.keeper()
    found: list[tuple[bytes, bytes]] = []
    after: bytes = scan["after"]
    size = count = 0
    while size < limits.VIEW_CHUNK_BYTES and count < limits.READER_SCAN_COUNT:
        chunk = context.view.scan_chunk(collection, after=after)
        if not chunk:
            return _reply(found, after, is_all=True)
        examined("COLLSCAN", len(chunk))
        try:
            if keep is not None:
                kept = set(map(id, keep([raw for _, raw in chunk])))
                matching = [item for item in chunk if id(item[1]) in kept]
            else:
                matching = [item for item in context.paced(chunk) if predicate(decode(item[1]))]
        except CommandError:
            if not found:
                raise
            break  # the server meets the same error later
        found += matching
        size, count = size + sum(len(raw) for _, raw in matching), count + len(chunk)
        after = chunk[-1][0]
        if scan["limit"] is not None and len(found) >= scan["limit"]:
            break
    return _reply(found, after, is_all=False)


def _reply(found: list[tuple[bytes, bytes]], after: bytes, *, is_all: bool) -> dict[str, Any]:
    records, documents = [record for record, _ in found], [raw for _, raw in found]
    return {"records": records, "documents": documents, "after": after, "isAll": is_all}


COMMAND: Final = Command(
    "headraceMatches", run, Fields(document("scan", required=True)), pauses=True, requires=on_collection("find")
)
