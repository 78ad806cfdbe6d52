"""The server of one store: listener, peers, writer, notifier and the background jobs, on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from asyncio import Future
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace import limits
from headrace.clock import Clock, SystemClock, monotonic
from headrace.commands.server_info.parameters import first_parameters
from headrace.commands.table import commands_for
from headrace.commands.users import logging_in
from headrace.dispatch.command import Command
from headrace.dispatch.engine import Engine
from headrace.dispatch.options import ServerOptions
from headrace.dispatch.profiling.profiler import STORED
from headrace.dispatch.request import UNIX_SOCKET, ClientInfo, Request
from headrace.dispatch.shell import Shell
from headrace.errors import CommandError, Interrupted
from headrace.execution.reader_calls import ReaderCall, may_move
from headrace.log_lines import RepeatedLine, printable
from headrace.running_command import TURN_SECONDS, RunningCommand, Work
from headrace.server import logs
from headrace.server.audit import Audit
from headrace.server.background import Background
from headrace.server.clocks import RunningClock
from headrace.server.failures import log_failure, log_of_loop, shown
from headrace.server.listener import Listener, bound_sockets, bound_unix_socket, set_socket_options
from headrace.server.logs import LogTail
from headrace.server.notifier import Notifier
from headrace.server.peer import Peer
from headrace.server.protection import UnprotectedAddress, exposure_warning, make_directory_private, require_consent
from headrace.server.readers.pool import Readers
from headrace.server.scheduler import Scheduler
from headrace.server.tls.context import TlsError, expiry_warning, new_context, server_certificate
from headrace.server.tls.handshakes import Handshakes
from headrace.server.writer import SharedGate, Writer
from headrace.store.profiles import store_profiles
from headrace.store.store import Store
from headrace.store.write_transaction import WriteTransaction
from headrace.values.position import seconds

if TYPE_CHECKING:
    from headrace.server.daemon import BackupProcess
    from headrace.server.metrics.exposition import ScrapeListener


class ProfileWriter:
    """The profiler's documents that wait to be stored."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._waiting: list[tuple[str, bytes | None]] = []
        self._stored_count = 0  # waiting documents in the present transaction
        self._has_job = False

    def add(self, namespace: str, document: bytes | None) -> None:
        """Store a document in the collection. None: only create the collection."""
        if len(self._waiting) < limits.PROFILE_QUEUE_COUNT_MAX and not self._core.ending:
            self._waiting.append((namespace, document))
            self._core.engine.profiler.recorded_count += 1
            self._store()

    def _store(self) -> None:
        if not self._has_job:
            self._has_job = True
            self._core.writer.add_job(self._run).add_done_callback(self._done)

    def _run(self, txn: WriteTransaction) -> None:
        self._stored_count = len(self._waiting)
        store_profiles(txn, self._waiting)

    def _done(self, job: Future[None]) -> None:
        self._has_job = False
        if not job.cancelled() and job.exception() is not None:
            self._stored_count = len(self._waiting)
        del self._waiting[: self._stored_count]
        self._core.engine.profiler.stored_count += self._stored_count
        self._stored_count = 0
        self._core.wake(STORED)
        if self._waiting and not self._core.ending:
            self._store()


LOOK_SECONDS: Final = 1.0
"""The interval of the watchdog's checks."""


class Watchdog:
    """Measures how long the writer has been in the same step."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._looked_at = 0.0
        self._seconds = 0.0

    def is_stalled(self, busy_since: float | None, now: float) -> bool:
        """Return whether the step that began at `busy_since` (None: there is none) will not end. Must be called each
        second."""
        if busy_since is None or busy_since != self._since:
            self._since, self._seconds = busy_since, 0.0
        else:
            self._seconds += min(now - self._looked_at, 2 * LOOK_SECONDS)
        self._looked_at = now
        return self._seconds > limits.WRITER_STALL_SECONDS_MAX


LOG = logging.getLogger("headrace.server")


class Hosted(NamedTuple):
    """The arguments of a server for a store that a program has open."""

    engine: Engine
    gate: SharedGate
    """Lets one writer in at a time: the program's threads or the server."""


class Core(Shell):
    """A running server. It is created, started and stopped on its loop's thread."""

    backup: BackupProcess | None = None
    """The backup process that this server's process started, or None."""
    scrapes: ScrapeListener | None = None
    """The listener for monitors; None: there is none."""

    def __init__(
        self, options: ServerOptions, *, throw_away: bool = False, clock: Clock | None = None,
        shut_down: Callable[[], None] | None = None, failed: Callable[[str], None] | None = None,
        rotate_log: Callable[[], object] | None = None,
        hosted: Hosted | None = None,
    ) -> None:  # fmt: skip
        """Open the store. Raises `AuditError`, `DirectoryInUse`, `TlsError`.

        `hosted`: a store that is open already, whose engine has a shell and background jobs; `stop` leaves it open.

        `throw_away`: use a temporary directory, which `stop` removes.

        `shut_down` ends the process, for the command shutdown; None if the process decides that itself. `failed` is
        called with the reason after the server can no longer write; it has then dropped its clients. `rotate_log`
        begins a new log file; None if no file is written.
        """
        self.failure: str | None = None
        """Why the server ended by itself, or None."""
        self._when_failed = failed
        self._rotate_log = rotate_log
        self.options = options
        self._throw_away = throw_away
        self.shut_down = shut_down
        self.loop = asyncio.get_running_loop()
        self.loop.set_exception_handler(log_of_loop)
        clock = clock or RunningClock(SystemClock())
        context = None if options.tls is None else new_context(options.tls)
        self.audit = None if options.audit is None else Audit(options.audit, clock)
        self.hosted = hosted
        try:
            self.engine = hosted.engine if hosted is not None else self._new_engine(clock)
        except BaseException:
            if self.audit is not None:
                self.audit.close()
            raise
        self.store = self.engine.store
        self.engine.access.listeners.append(logs.access_event)
        if self.audit is not None:
            self.engine.access.listeners.append(self.audit.access)
        self.commit_thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-commit")
        self.writer = Writer(self, None if hosted is None else hosted.gate)
        self._profiles = ProfileWriter(self)
        self.notifier = Notifier(self)
        self.readers = Readers(self, options.readers) if options.readers and hosted is None else None
        """The reader processes; None if they are disabled."""
        self.scheduler = Scheduler(self)
        self._log = LogTail(options.log_format)
        logging.getLogger("headrace").addHandler(self._log)
        self.background = Background(self)
        self.peers: set[Peer] = set()
        self.ending = False
        self.port = options.port
        self._watchdog = Watchdog()
        self.tls_on_plain_socket, self.invalid_messages = RepeatedLine(), RepeatedLine()
        self._is_unprotected = False
        self._handshakes: Handshakes | None = None
        if options.tls is not None and context is not None:
            self._handshakes = Handshakes(self.loop, options.tls, context, self.engine.metrics)
        self._listener = Listener(self.loop, lambda: Peer(self), self._handshakes)
        self._socket_path: Path | None = None
        self.startup_warnings: list[str] = []
        self.certificate: tuple[str, float] | None = None

    def _new_engine(self, clock: Clock) -> Engine:
        options = self.options
        path = None if self._throw_away else options.dbpath
        store = Store(path, oplog=options.oplog, clock=clock, map_bytes=options.map_bytes)
        return Engine(store, options, commands_for(options), first_parameters(options), shell=self)

    async def start(self) -> None:
        """Listen. Raises OSError if an address is unavailable, `UnprotectedAddress` for an address that needs consent.

        After an error nothing is left open.
        """
        try:
            for address in self.options.bind_ips:
                self._listen(address)
            if self.options.unix_socket_prefix is not None:
                self._listen_unix(self.options.unix_socket_prefix)
            if self.options.metrics_port is not None:
                await self._listen_for_scrapes(self.options.metrics_address, self.options.metrics_port)
        except BaseException:
            await self.stop()
            raise
        warning = None if self.options.auth else exposure_warning(self._listener.sockets)
        self._is_unprotected = warning is not None
        self._warn(warning)
        if not self._throw_away:
            self._warn(make_directory_private(self.options.dbpath))
        self._warn_of_clock()
        self._warn(self._certificate_warning())
        if self.audit is not None:
            self.audit.databases = set(self.store.catalog.databases())
            parameters = [{"_id": name, **value} for name, value in self.store.cluster_parameters.items()]
            options = {"argv": list(self.options.argv)}
            self.audit.system("startup", {"startupOptions": options, "initialClusterServerParameters": parameters})
        if self.hosted is None:
            self.background.start(self.loop)
        self._watch()

    def _listen(self, address: str) -> None:
        taken = {listening.getsockname()[0] for listening in self._listener.sockets}
        sockets = bound_sockets(address, self.port, but=taken)  # localhost is 127.0.0.1, too
        try:
            require_consent(self.options, sockets)
        except UnprotectedAddress:
            for bound in sockets:
                bound.close()
            raise
        for bound in sockets:
            self.port = bound.getsockname()[1]  # the port picked for the first address is used for all
            self._listener.add(bound)

    async def _listen_for_scrapes(self, address: str, port: int) -> None:
        from headrace.server.metrics.exposition import ScrapeListener

        self.scrapes = ScrapeListener(self)
        await self.scrapes.listen(address, port)
        LOG.info("/metrics and /healthz are on port %d of %s", self.scrapes.port, address)

    def _warn(self, warning: str | None) -> None:
        if warning is not None:
            self.startup_warnings.append(warning)
            LOG.warning("%s", warning)

    def _warn_of_clock(self) -> None:
        """Warn if cluster times are ahead of the clock, because the clock was ahead once or is behind now."""
        ahead = seconds(self.store.last_position) - self.engine.clock.now_ms() // 1000
        if ahead > limits.CLOCK_AHEAD_SECONDS:
            self._warn(
                f"The cluster time is {ahead} s ahead of the clock, which was ahead once or is behind now. It never "
                "goes back: it stands still, but for its counter, until the clock has reached it"
            )

    def _listen_unix(self, prefix: Path) -> None:
        path = prefix / f"mongodb-{self.port}.sock"
        if path.is_socket() and not _answers(path):
            path.unlink()  # left by a killed server
        self._listener.add(bound_unix_socket(path, self.options.unix_socket_mode))
        self._socket_path = path

    async def stop(self) -> None:
        """Accept no more clients, finish the writes that were received, and close everything. Called once."""
        logging.getLogger("headrace").removeHandler(self._log)
        self.ending = True
        self._listener.close()
        if self.scrapes is not None:
            self.scrapes.close()
        for peer in self.peers:
            peer.stop_reading()
        self.background.stop()
        self.scheduler.interrupt_all(Interrupted(11600, "interrupted at shutdown"))
        self.writer.interrupt_all(Interrupted(11600, "interrupted at shutdown"))
        if self.failure is None:
            try:
                await asyncio.wait_for(self.writer.drained(), limits.STOP_SECONDS_MAX)
            except TimeoutError:
                LOG.error("writes did not end within %d s; the server stops without them", limits.STOP_SECONDS_MAX)
        for peer in list(self.peers):
            peer.drop()
        await asyncio.sleep(0)
        if self.readers is not None:
            await self.readers.stop()
        if self.hosted is None:
            self.engine.cursors.remove_all()
        self.commit_thread.shutdown()
        if self.audit is not None:
            self.audit.system("shutdown", {})
            self.audit.close()
        if self.hosted is None:
            self.store.close()
        else:
            self._leave_engine()
        if self._socket_path is not None:
            with contextlib.suppress(FileNotFoundError):
                self._socket_path.unlink()

    def _leave_engine(self) -> None:
        """Detach from the program's engine."""
        self.store.listeners.remove(self.notifier.committed)
        self.engine.access.listeners.remove(logs.access_event)
        if self.audit is not None:
            self.engine.access.listeners.remove(self.audit.access)

    @property
    def addresses(self) -> list[str]:
        """The addresses of the listening sockets, as drivers write them."""
        listed = []
        for bound in self._listener.sockets:
            name = bound.getsockname()
            if bound.family == socket.AF_UNIX:
                listed.append(str(name))
            else:
                listed.append(f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}")
        return listed

    def _watch(self) -> None:
        self.look_after_writer()
        if not self.ending:
            self.loop.call_later(LOOK_SECONDS, self._watch)

    def look_after_writer(self) -> None:
        """End the server if a group of writes neither ends nor fails, for example on a hanging disk. Called each
        second."""
        if self._watchdog.is_stalled(self.writer.busy_since, monotonic()):
            self.fail("no write has ended", TimeoutError(f"for {limits.WRITER_STALL_SECONDS_MAX} s"))

    def fail(self, what: str, error: BaseException) -> None:
        """End a server that can no longer write: no request is answered any more, and all connections are closed.

        Acknowledged writes are on disk, and a restart reads them.
        """
        if self.failure is not None:
            return
        self.failure = f"{what}: {shown(error)}"
        log_failure(f"the server ends: {what}", error, level=logging.CRITICAL)
        self.ending = True
        self._listener.close()
        for peer in list(self.peers):
            with contextlib.suppress(Exception):
                peer.drop()
        if self._when_failed is not None:
            self._when_failed(self.failure)

    # Called by the engine: `dispatch.shell.Shell`.

    def client_introduced(self, client: ClientInfo) -> None:
        logs.client_metadata(client, unprotected=self._is_unprotected)
        if self.audit is not None:
            self.audit.introduced(client)

    def has_paused(self, request: Request, turn: RunningCommand) -> None:
        if turn.paused_at is not None:
            duration_ms = (monotonic() - turn.paused_at + TURN_SECONDS) * 1000
            if self.engine.profiler.is_slow(duration_ms):
                logs.slow_operation(request, duration_ms, turn.pause_count, turn.work, turn.answer)

    def slow(self, request: Request, duration_ms: float, work: Work | None, answer: Any) -> None:
        logs.slow_operation(request, duration_ms, 0, work, answer)

    def profiled(self, namespace: str, document: bytes | None) -> None:
        self._profiles.add(namespace, document)

    def rotate_certificates(self, message: str | None = None) -> None:
        if self._handshakes is None:
            raise CommandError(140, "this server speaks no TLS (--tlsMode), so there are no certificates to read again")
        try:
            self._handshakes.rotate()
        except TlsError as error:
            LOG.error("the certificates are not replaced, and those from before stay in force: %s", printable(error))
            raise CommandError(140, f"the certificates are not replaced: {error}") from None
        LOG.info("Successfully rotated the certificates%s", "" if message is None else f": {printable(message)}")
        warning = self._certificate_warning()
        if warning is not None:
            LOG.warning("%s", warning)

    def _certificate_warning(self) -> str | None:
        """Return the warning for a certificate that expires soon, and note the certificate in force."""
        tls = self.options.tls
        self.certificate = None if tls is None else server_certificate(tls)
        if tls is None or self.certificate is None:
            return None
        return expiry_warning(tls.certificate_key_file, self.certificate[1], self.engine.clock.now_ms() / 1000)

    def rotate_logs(self, log: str | None = None, client: ClientInfo | None = None) -> None:
        try:
            if log != "audit" and self._rotate_log is not None:
                LOG.info("Log rotation initiated")
                self._rotate_log()
            if log != "server" and self.audit is not None:
                self.audit.rotate(client)
        except OSError as error:
            LOG.error("the log is not rotated: %s", printable(error))
            raise CommandError(37, f"Failed to rotate the log: {error}") from None

    @property
    def log_lines(self) -> Sequence[str]:  # type: ignore[override]
        """The last lines of the log."""
        return self._log.lines

    def waiting_requests(self) -> Sequence[Request]:
        """Return all unanswered commands of connections, and unacknowledged writes of clients that have left."""
        asked = [peer.request for peer in self.peers if peer.request is not None]
        return list(dict.fromkeys([*asked, *self.writer.requests()]))

    def interrupt(self, connection_id: int) -> None:
        self.notifier.interrupt(connection_id)
        error = Interrupted(11601, "operation was interrupted")
        self.scheduler.interrupt(connection_id, error)
        self.writer.interrupt(connection_id, error)
        self.writer.interrupt_queued(connection_id, error)
        for peer in self.peers:
            if peer.client.connection_id == connection_id:
                peer.interrupt(error)

    def has_reader(self) -> bool:
        return self.readers is not None and not self.ending and self.readers.have_room()

    def may_move(self, command: Command, request: Request) -> bool:
        readers = self.readers
        return readers is not None and not self.ending and readers.can_take and may_move(self.engine, command, request)

    def reader_call(self, request: Request) -> ReaderCall:
        return ReaderCall(request)

    def wake(self, key: str) -> None:
        self.notifier.wake_key(key)
        self.writer.wake(key)

    def cursor_killed(self, cursor: Any) -> None:
        self.notifier.cursor_killed(cursor)
        if self.engine.cursors.peek(cursor.id) is None:
            self.scheduler.cursor_killed(cursor.id)

    # Called by peers.

    def peer_connected(self, peer: Peer, transport: Any) -> ClientInfo:
        """Register a new client; return its description."""
        self.peers.add(peer)
        self.engine.connections_open += 1
        self.engine.connections_created += 1
        remote, local = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if isinstance(remote, tuple):
            set_socket_options(transport.get_extra_info("socket"))
            name = f"{remote[0]}:{remote[1]}"
            tls = None if self._handshakes is None else self._handshakes.session(transport.get_extra_info("ssl_object"))
            client = ClientInfo(self.engine.connections_created, name, (local[0], local[1]), tls)
        else:
            client = ClientInfo(self.engine.connections_created, UNIX_SOCKET, str(local))
        logs.connection_accepted(client, len(self.peers))
        return client

    def peer_disconnected(self, peer: Peer) -> None:
        """Handle a disconnected client: forget its wait, end its running command at the next turn, and close the cursor
        that it was reading, as MongoDB does. Its other cursors stay until they are idle for long, because another
        connection may read them.

        An unacknowledged write goes on: its client need not stay connected.
        """
        self.peers.discard(peer)
        self.engine.connections_open -= 1
        logs.connection_ended(peer.client, len(self.peers))
        logging_in.abandon(self.engine, peer.client)
        grants = peer.client.grants
        if grants is not None:
            reason = "Implicit logout due to client connection closure"
            self.engine.access.note_logout(peer.client, grants.name, reason)
        if self._listener.paused:
            self.loop.call_soon(self._listener.client_left)  # its socket is closed only after this call
        self.notifier.leave(peer)
        error = Interrupted(279, "the client has disconnected")
        self.scheduler.interrupt(peer.client.connection_id, error)
        if peer.is_acknowledged:
            self.writer.interrupt(peer.client.connection_id, error)
        request = peer.request
        if request is not None and request.name == "getMore":
            self.engine.cursors.kill(request.body["getMore"] if request.cursor is None else request.cursor.id)


def _answers(path: Path) -> bool:
    """Return whether a server listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True
