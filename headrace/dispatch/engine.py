"""The engine: the state that commands share, and the code that runs a command, without sockets or an event loop.

    engine.run(command, request)        → reply bytes, or a Wait
    engine.run(command, request, txn)   → the same for a write, valid once `txn` is committed

A read sees the last commit. Writes of several clients share one KV transaction. A command that fails with a
`CommandError` has changed nothing. After any other exception the shell abandons the transaction and runs the other
commands again.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bson import ObjectId, Timestamp
from bson.errors import BSONError

from headrace import limits
from headrace.changes import split
from headrace.clock import Clock, monotonic
from headrace.cursors.feed import Feeds
from headrace.cursors.registry import Cursors
from headrace.dispatch import (
    api_version,
    cluster_wide,
    fail_points,
    generic_arguments,
    lock_waits,
    primacy,
    repeated_getmore,
    reply,
    retryable_writes,
    transactions,
)
from headrace.dispatch.access import Access
from headrace.dispatch.command import Command
from headrace.dispatch.concerns import read_concern, write_concern
from headrace.dispatch.context import CommandContext
from headrace.dispatch.duplicate_names import COMMANDS as NAMING_COMMANDS
from headrace.dispatch.duplicate_names import with_every_name
from headrace.dispatch.namespaces import COLLECTION_UUID, with_expected_uuid
from headrace.dispatch.options import ServerOptions
from headrace.dispatch.profiling.profiler import Profiler
from headrace.dispatch.profiling.usage import GET_MORE, Usage
from headrace.dispatch.request import ClientInfo, Request
from headrace.dispatch.server_info import first_history_id
from headrace.dispatch.sessions import checked_out_key
from headrace.dispatch.shell import Shell
from headrace.dispatch.wait import Wait
from headrace.errors import AnsweredError, CommandError, HandedOver
from headrace.memory_budget import default_bytes_max
from headrace.running_command import running_command
from headrace.store.lmdb import LmdbError
from headrace.values.bson import encode
from headrace.values.position import to_timestamp

if TYPE_CHECKING:
    from headrace.store.client_transaction import ClientTransaction
    from headrace.store.store import Store
    from headrace.store.write_transaction import WriteTransaction


class Engine:
    """The state that all commands of a server share. One thread uses it."""

    def __init__(
        self, store: Store, options: ServerOptions, commands: Mapping[str, Command], parameters: dict[str, Any],
        shell: Shell | None = None, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        """`commands`: by every spelling. `parameters`: the initial values, which setParameter changes in place.

        `shell`: the server around the engine, if any.
        """
        sys.setrecursionlimit(max(sys.getrecursionlimit(), limits.RECURSION_DEPTH_MAX))
        self.store = store
        if store.history_id is None and store.oplog_enabled and not store.is_beside:
            store.keep_history_id(first_history_id(options))
        self.options = options
        self.clock = clock or store.clock
        self.commands = commands
        self.feeds = Feeds(store)
        self.shell = shell or Shell()
        self.cursors = Cursors(self.clock, self.shell.cursor_killed, store.memory)
        self.parameters = parameters
        """Current values of the parameters; `commands/server_info/parameters.py` has the table and the first values."""
        self.oplog_bytes_max: int | None = None  # set by the server, from a parameter or the size of the disk
        self.access = Access(store, authorizes=options.auth, localhost_exception=options.localhost_exception)
        self.authorizes = options.auth
        """Whether commands require a user with privileges. See `restricts`."""
        self.access.changed = self._end_cursors
        self.memory = store.memory
        self.memory.bytes_max = options.memory_bytes_max or default_bytes_max()
        self.fail_points = fail_points.FailPoints()
        self.primacy = primacy.Primacy(self.clock)
        self.write_lock = cluster_wide.WriteLock(self.shell.wake)
        self.profiler = Profiler(options.slow_ms, options.slow_share, options.profile_level)
        self.snapshots = read_concern.Snapshots(store)
        self.checked_out: set[bytes] = set()
        """The sessions whose command has paused. Another command of the same session waits until it ends."""
        self.builds_of_commands: set[bytes] = set()
        """The UUIDs of the index builds that a command runs. The server runs the other builds itself."""
        self.temporary: set[str] = set()
        """The collections that an `$out` is filling."""
        self.compaction_target_mb: int | None = None
        """`freeSpaceTargetMB` of an `autoCompact` that has not been turned off."""
        first_metrics = (split.EVENTS_FAILED, split.EVENTS_SPLIT, "network.bytesIn", "network.bytesOut")
        self.metrics: dict[str, int] = defaultdict(int, dict.fromkeys(first_metrics, 0))
        """Counters since the start by dotted name: `commands.find.total`, `document.inserted`, `network.bytesIn`."""
        self.usage = Usage(lambda namespace: namespace in store.catalog.collections)
        self.process_id = ObjectId()
        """`topologyVersion.processId`, new at each start, so that drivers recognize a restarted server."""
        self.started_ms = self.clock.now_ms()
        self.connections_open = 0
        self.connections_created = 0
        store.listeners.append(self.feeds.publish)
        store.transactions.listeners.append(self._transaction_ended)
        store.transactions.wake_listeners.append(self.shell.wake)

    def set_authorization(self, authorizes: bool) -> None:
        """Require users from now on, or not, as `--auth` does at a server's start. No client may be connected."""
        self.authorizes = self.access.authorizes = authorizes

    # For commands.

    def restricts(self, client: ClientInfo) -> bool:
        """Whether a client is limited to its user's privileges; otherwise the client may do everything."""
        return self.authorizes and not client.is_program

    def end_sessions(self, sessions: list[bytes] | None) -> None:
        """Abort the transactions and close the cursors of ended sessions, given by `lsid.id`; None: of all sessions."""
        transactions.abort_of_sessions(self, sessions)
        self.cursors.remove_of_sessions(self.cursors.sessions() if sessions is None else sessions)

    def _transaction_ended(self, transaction: ClientTransaction) -> None:
        for cursor_id in transaction.cursors:
            self.cursors.remove(cursor_id)

    def _end_cursors(self) -> None:
        """Interrupt waiting cursors that their users may no longer open, because users or roles have changed."""
        users: dict[Any, Any] = {}
        for cursor_id, owner in list(self.cursors.owners.items()):
            cursor = self.cursors.peek(cursor_id)
            if cursor.is_change_stream and cursor.repeated_getmore is not None:
                cursor.repeated_getmore.grants = repeated_getmore.CHANGED
            if not self.access.may_still(owner, users):
                self.shell.cursor_killed(cursor)
            if users[owner.name] is None:
                self.cursors.remove(cursor_id)

    def return_session(self, session: bytes) -> None:
        """Return a session whose command has ended, and wake the requests that wait for it."""
        self.checked_out.discard(session)
        self.shell.wake(checked_out_key(session))

    def last_write(self) -> tuple[Timestamp, int]:
        """Return (cluster time, wall-clock ms) of the newest committed entry."""
        position = self.store.last_position
        return to_timestamp(position), self.store.last_wall_ms

    def count(self, metric: str, by: int = 1) -> None:
        """Add to a counter of `serverStatus`, by its dotted name."""
        self.metrics[metric] += by

    # Running.

    def command(self, request: Request) -> Command:
        """Return the command that a request names, as it runs for this request.

        Raise 59 for an unknown command, 13 for an admin-only command on another database, 76 if it needs an oplog and
        the server has none, and the errors of the declared fields.
        """
        repeated, profiler = request.repeated, self.profiler
        command = self.commands.get(request.name)
        if command is None:
            raise CommandError(59, f"no such command: '{request.name}'")
        restricts = self.authorizes and not request.client.is_program
        if restricts:
            self.access.require_login(command, request)
        if command.admin_only and request.db != "admin":
            raise CommandError(13, f"{command.name} may only be run against the admin database.")
        if command.needs_oplog and not self.store.oplog_enabled:
            raise CommandError(76, "not running with --replSet")
        body = request.body if repeated is None else repeated.body  # has the same fields, except for those that vary
        if body.get("apiStrict") is True:
            api_version.check_name(request)
        if repeated is None:
            if request.raw and request.name in NAMING_COMMANDS:
                body = request.body = with_every_name(request.raw, body)
            command.arguments.check(command.name, body)
        if "writeConcern" in body and not self.store.oplog_enabled:
            write_concern.require_members(body["writeConcern"] or {})
        if restricts:
            self.access.require_privileges(self, command, request)
        if self.primacy.ends_ms is not None:
            primacy.require_primary(self, command, request)
        if self.store.state.cluster_parameters:  # usually empty
            request.is_special = True
            command = cluster_wide.unless_blocked(self, command, request)
            cluster_wide.apply_default(self, command, request)
            command = cluster_wide.with_settings(self, command, request)
        if not body.keys().isdisjoint(generic_arguments.ACTED_UPON):
            request.is_special = True
            command = self._as_asked(command, request, body)
        if profiler.stored_count < profiler.recorded_count or profiler.active:
            request.is_special = True
            if profiler.stored_count < profiler.recorded_count:
                command = profiler.reading(command, request)
            return profiler.profiled(command, request) if profiler.active else command
        return command

    def run_again(self, command: Command, request: Request, txn: WriteTransaction | None = None) -> bytes | None:
        """Answer a request whose body is known with `Command.again`, which never pauses.

        None: nothing was done, and the command must be run.
        """
        if command.again is None or request.repeated is None or request.is_special or self.write_lock.count:
            return None
        return command.again(self, request, txn)

    def _unsatisfied(self, request: Request) -> bytes:
        """Return the raw `writeConcernError` of a finished write if its write concern or the default is not met."""
        if concern := request.body.get("writeConcern"):
            return write_concern.unsatisfied(concern)
        if (defaults := self.store.cluster_parameters.get(write_concern.DEFAULTS)) is None:
            return b""
        concern = defaults.get("defaultWriteConcern")
        return b"" if concern is None else write_concern.unsatisfied(concern, "customDefault")

    def _as_asked(self, command: Command, request: Request, body: dict[str, Any]) -> Command:
        """Return the command as it runs for a request with generic fields."""
        api_version.check(command.name, request)
        if body.get("apiStrict"):
            command = replace(command, run=api_version.strictly(command.run))
        if command.name != "getMore" and (limit_ms := generic_arguments.MAX_TIME_MS.of(body)):
            request.deadline_ms = self.clock.monotonic_ms() + limit_ms
        if COLLECTION_UUID.name in body and COLLECTION_UUID.name in command.arguments.by_name:
            command = replace(command, run=with_expected_uuid(command.run))
        if "autocommit" in body or "startTransaction" in body:
            return transactions.in_transaction(self, command, request)
        if "readConcern" in body:
            return read_concern.apply_read_concern(self, command, request)
        return command

    def run(self, command: Command, request: Request, txn: WriteTransaction | None = None) -> bytes | Wait:
        """Run a command. A write runs inside `txn`, and its reply is valid once `txn` is committed.

        Every `AnsweredError` becomes a reply. In a turn the command may pause. The finished part of a paused write is
        committed, and the write continues in another transaction.
        """
        began = monotonic() if command.usage else 0.0
        context = CommandContext(self, request.deadline_ms, txn)
        turn = running_command() if command.pauses else None
        if turn is not None:
            turn.before_pause = context.before_pause
            turn.after_pause = context.after_pause
            turn.read = (self, command, request) if txn is None else None
        try:
            if txn is None:
                answer = command.run(context, request)
            else:
                if self.write_lock.count and (waits := self.write_lock.wait(command, request)) is not None:
                    return waits
                transactions = self.store.transactions
                if transactions.open or transactions.locks:
                    waits = lock_waits.wait_for_locks(self, command, request, txn, in_turn=turn is not None)
                    if waits is not None:
                        return waits
                if "txnNumber" in request.body:
                    answer = retryable_writes.run_once(context, command, request)
                else:
                    answer = command.run(context, request)
            if self.fail_points.active:
                answer = self.fail_points.after_reply(self, command, request, answer)
            if type(answer) is Wait:
                return answer
            self.metrics[command.total] += 1
            if began:
                self.usage.note(command.usage, request, monotonic() - began)
            if turn is not None:
                turn.answer = answer
            if txn is None:
                return self.closed(answer, self.store.state.last_position)
            defaults = self.store.state.cluster_parameters  # usually empty
            if ("writeConcern" in request.body or defaults) and (error := self._unsatisfied(request)):
                answer = (answer if isinstance(answer, bytes) else encode(answer)[4:-1]) + error
            if context.pause_count:
                txn = context.txn  # another transaction
            return self.closed(answer, max(txn.clock_position, self.store.state.last_position))
        except AnsweredError as error:
            if began:
                self.usage.note(command.usage, request, monotonic() - began)
            return self.failure(error, request, concern=txn is not None)
        except HandedOver as moved:
            return self._handed_over(moved.call, context, command, request)
        except (BSONError, UnicodeDecodeError) as error:
            return self.failure(CommandError(22, f"invalid bson: {error}"), request)
        except LmdbError:
            if txn is None:
                self.store.forget_read()
            raise
        finally:
            context.close()
            if turn is not None and turn.pause_count:
                self.shell.has_paused(request, turn)

    def _handed_over(self, given: Any, context: CommandContext, command: Command, request: Request) -> bytes | Wait:
        """Return the reply to a command that another process runs; `given`: its call, if it has begun."""
        began = monotonic()
        context.close()
        call = given or self.shell.reader_call(request)
        try:
            answer: bytes = call.answer(context, request)
        except AnsweredError as error:
            turn = running_command()
            if given is None and call.is_unread and turn is not None:  # no reader could be started
                turn.stays = True
                return self.run(command, request)
            return self.failure(error, request)
        finally:
            if command.usage:
                self.usage.note(command.usage, request, monotonic() - began)
        self.count(command.total)
        if reply.has_failed(answer):
            self.count(command.failed)
        return answer

    run_read = run_write = run
    """`run`, for callers that know whether the command writes."""

    def run_stream(self, command: Command, request: Request) -> bytes | Wait:
        """Run the getMore of a change stream. Most are answered from the feed, without running the command."""
        began = monotonic()
        answer = repeated_getmore.from_feed(self, request)
        if type(answer) is bytes:
            self.metrics[command.total] += 1
            database, _, name = request.cursor.namespace.partition(".")
            self.usage.note_key((GET_MORE, database, name), monotonic() - began)
            return answer
        return self.run_read(command, request) if answer is None else answer

    def closed(self, answer: dict[str, Any] | bytes, position: int) -> bytes:
        """Return the reply of a successful command, with `position` as its operation time."""
        if type(answer) is bytes and self.store.oplog_enabled:
            return reply.answered(answer, position)
        end = reply.closing(position if self.store.oplog_enabled else None)
        if type(answer) is bytes:
            return reply.document(answer, end)
        assert isinstance(answer, dict)
        return reply.document(reply.answer_elements(answer), end if "ok" not in answer else end[len(reply.OK) :])

    def failure(
        self, error: AnsweredError, request: Request, labels: Sequence[str] | None = None, *, concern: bool = False
    ) -> bytes:  # fmt: skip
        """Return the reply to a failed command, with the error labels that drivers act on, or with `labels`.

        `concern`: the command has run, so the reply also has a `writeConcernError` if its write concern cannot be met.
        """
        command = self.commands.get(request.name)
        if command is not None:
            self.count(command.total)
            self.count(command.failed)
        if labels is None:
            all_labels = (*error.labels, *retryable_writes.labels_of(self, request, error))
            labels = tuple(dict.fromkeys(all_labels))
        element = self._unsatisfied(request) if concern else b""
        position = self.store.last_position if self.store.oplog_enabled else None
        return reply.error_reply(error, labels, position, element)
