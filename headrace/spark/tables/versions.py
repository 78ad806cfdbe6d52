"""The fold of a batch of rows into a history: which versions of documents end, and which begin.

A version is a document from one token to its next change (slowly changing dimension, type 2). Rule: at any token T that
the history covers, the versions with `token` <= T < `until` are the collection at T.

After a new snapshot (a lost checkpoint) the events in between are unknown. A document that has changed or is gone ends
with `endedBy` = `snapshot`; an unchanged document continues.

Events may come between the chunks of a snapshot, by the rule in `fold.py`. From the snapshot's end on the history is
exact. Before it, a version may begin at its chunk instead of at its event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from headrace.spark.rows.events import DOCUMENT_OPERATIONS, INVALIDATING, SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END, Row
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.rows.key_identity import key_identity, same_document_key
from headrace.spark.tables.apply_update import CannotApply, apply_update
from headrace.spark.tables.fold import MirrorDiverged, key_of
from headrace.spark.tables.progress import CollectionGone, Progress, Sieve


@dataclass(frozen=True, slots=True)
class DocumentVersion:
    """A document from `token` until `until` (None: still valid), last seen unchanged at the token `confirmed`."""

    key: str
    document: str
    token: str
    operation: str
    confirmed: str
    until: str | None = None
    ended_by: str | None = None


OpenVersions = Mapping[str, DocumentVersion]


class VersionChanges:
    """Applies rows in order; `changed` then has the versions to write.

    `everything` returns the open versions: those confirmed before a token, when a snapshot ends, or, for an empty
    token, all of them, when the collection is gone.
    """

    def __init__(
        self, progress: Progress, opened: OpenVersions, everything: Callable[[str], OpenVersions], policy: str
    ) -> None:
        self._sieve = Sieve(progress)
        self._before = opened
        self._everything = everything
        self._policy = policy
        self._now: dict[str, DocumentVersion | None] = {}
        self._all_read = False
        self._texts = {key_identity(key): key for key in opened} if policy == "keep" or progress.leftovers else {}
        """The keys of open versions by their identity, if kept versions may have another text of the same key."""
        self.changed: dict[tuple[str, str], DocumentVersion] = {}

    @property
    def progress(self) -> Progress:
        """The progress after the rows so far."""
        return self._sieve.progress

    @property
    def event_count(self) -> int:
        """The number of new events in the rows so far."""
        return self._sieve.event_count

    def take(self, row: Row) -> None:
        """Apply a row, if it is new. Raise CollectionGone, MirrorDiverged."""
        before = self.progress
        if not self._sieve.is_new(row):
            return
        kind = row.operationType
        if self._policy == "keep" and before.token and kind in {SNAPSHOT_BEGIN, *INVALIDATING}:
            self._sieve.progress = replace(self.progress, leftovers=True)
        if kind == SNAPSHOT:
            self._snapshot(row)
        elif kind == SNAPSHOT_END and self._policy != "keep":
            self._end_unconfirmed(before.begun)
        elif kind in INVALIDATING:
            self._emptied(row)
        elif kind in DOCUMENT_OPERATIONS and kind != SNAPSHOT_BEGIN:
            self._event(row)

    def _current(self, key: str) -> DocumentVersion | None:
        version = self._now[key] if key in self._now else self._before.get(key)
        same = self._texts.get(key_identity(key), key) if self._texts else key
        return version if version or same == key else self._current(same)

    def _put(self, version: DocumentVersion) -> None:
        self.changed[version.key, version.token] = version
        self._now[version.key] = None if version.until else version
        if self._policy == "keep" or self.progress.leftovers:
            self._texts[key_identity(version.key)] = version.key

    def _end(self, version: DocumentVersion, until: str, ended_by: str) -> None:
        self._put(replace(version, until=until, ended_by=ended_by))

    def _begin(self, key: str, document: str, row: Row) -> None:
        self._put(DocumentVersion(key, document, row.token, row.operationType or "", row.token))

    def _snapshot(self, row: Row) -> None:
        key, document = key_of(row), row.fullDocument or ""
        version = self._current(key)
        if version and version.confirmed >= row.token:
            return
        if version and version.document == document:
            self._put(replace(version, confirmed=row.token))
            return
        if version:
            self._end(version, row.token, SNAPSHOT)
        self._begin(key, document, row)

    def _end_unconfirmed(self, begun: str) -> None:
        for version in self._all_open(begun):
            if version.confirmed < begun:
                self._end(version, begun, SNAPSHOT)

    def _emptied(self, row: Row) -> None:
        if self._policy == "fail":
            raise CollectionGone.by(row)
        if self._policy == "follow":
            for version in self._all_open():
                self._end(version, row.token, row.operationType or "")

    def _all_open(self, confirmed_before: str = "") -> list[DocumentVersion]:
        if not self._all_read:
            self._before = {**self._before, **self._everything(confirmed_before)}
            self._all_read = not confirmed_before
        keys = dict.fromkeys([*self._before, *self._now])
        return [version for key in keys if (version := self._current(key))]

    def _event(self, row: Row) -> None:
        key = key_of(row)
        version = self._current(key)
        if version and row.token <= version.confirmed:
            return
        if row.fullDocument is None and row.operationType != "delete" and self._is_early(row, version):
            return
        document = self._document(row, version)
        if version and document != version.document:
            self._end(version, row.token, row.operationType or "")
        elif version:
            # The document is unchanged (such as a replacement by itself), so the version continues.
            self._put(replace(version, confirmed=row.token))
            return
        if document is not None:
            name = same_document_key(document, key)
            after = self._current(name) if name != key else None
            if after and after.confirmed >= row.token:
                return  # a chunk has already brought the document under its new key
            if after:
                self._end(after, row.token, row.operationType or "")
            self._begin(name, document, row)

    def _is_early(self, row: Row, version: DocumentVersion | None) -> bool:
        """Whether the snapshot has not read the updated document yet, or did not find it."""
        progress = self.progress
        if row.token > progress.ended and not progress.in_snapshot:
            return False
        return version is None or version.confirmed < progress.begun

    def _document(self, row: Row, version: DocumentVersion | None) -> str | None:
        if row.operationType == "delete":
            return None
        if row.fullDocument is not None:
            return row.fullDocument
        if version is None:
            message = f"the history has no document {key_of(row)}, which was updated at {row.token}"
            raise MirrorDiverged(message, row.token)
        try:
            return dumps(apply_update(loads(version.document), loads(row.updateDescription or "{}")))
        except CannotApply as error:
            raise MirrorDiverged(f"the update of {row.documentKey} at {row.token}: {error}", row.token) from error
