"""How far a batch may reach: bounds of rows and time, whole transactions, invalidates, quiet streams."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest
from bson import Timestamp

from headrace.spark.mongodb.source_options import BatchEnd, BatchLimits
from headrace.spark.rows.tokens import Token
from headrace.spark.stream.event_marks import EventMark, RunBounds
from headrace.spark.stream.read_ahead import ReadAhead


def token(time: int, nth: int = 1) -> Token:
    """An event's token; nth 0 is the high-water mark of that time."""
    return Token(f"82{time:08X}00000001{nth:02X}")


class Server:
    """Tokens in order, told as a server tells them: in batches, then where it stands."""

    def __init__(self, tokens: list[Token], *, invalidates: frozenset[Token] = frozenset(), batch: int = 2) -> None:
        self.tokens = tokens
        self.invalidates = invalidates
        self.batch = batch
        self.quiet_until = token(0, 0)
        self.opened = 0
        self.bytes = 0
        self.coming: list[Token] = []
        """What comes as soon as somebody waits for it."""
        self.waits: list[int] = []
        self.counts = False
        self.runs: list[int] = []
        self.threads: list[threading.Thread] = []
        """The threads that have asked."""
        self.failure: Exception | None = None

    def now(self) -> Timestamp:
        return max(self.quiet_until, self.tokens[-1] if self.tokens else self.quiet_until).time

    def open(self, start: Token) -> Cursor:
        self.opened += 1
        return Cursor(self, start)


class Cursor:
    def __init__(self, server: Server, start: Token) -> None:
        self.server, self.token = server, start
        self.drained = self.closed = False

    def next_batch(self, *, wait_ms: int, run: RunBounds | None = None) -> list[EventMark]:
        assert wait_ms > 0
        self.server.threads.append(threading.current_thread())
        if self.server.failure:
            raise self.server.failure
        if run and run.rows > 1 and self.server.counts:
            return self._run(run)
        self.server.waits.append(wait_ms)
        if not [each for each in self.server.tokens if each > self.token]:
            self.server.tokens += self.server.coming
            self.server.coming = []
        batch = [each for each in self.server.tokens if each > self.token][: self.server.batch]
        ends = [number for number, each in enumerate(batch) if each in self.server.invalidates]
        if ends:
            batch = batch[: ends[0] + 1]
        self.closed, self.drained = bool(ends), not batch
        self.token = batch[-1] if batch else max(self.token, self.server.quiet_until)
        return [EventMark(each, self.server.bytes) for each in batch]

    def _run(self, run: RunBounds) -> list[EventMark]:
        """As a Headrace counts: up to the last event, or to a position behind it when there is no more."""
        events = [each for each in self.server.tokens if each > self.token]
        wanted = [each for each in events if run.until is None or each.time <= run.until][: run.rows]
        self.server.runs.append(len(wanted))
        self.drained = not wanted
        if wanted:
            self.token = wanted[-1]
        if len(wanted) < run.rows:
            until = Token(f"82{(run.until or self.server.now()).time:08X}0000000200")
            self.token = max(self.token, until)
        return [EventMark(self.token, 0, len(wanted), self.token.text.endswith("00"))] if wanted else []

    def close(self) -> None:
        pass


def ahead_of(server: Server) -> ReadAhead:
    return ReadAhead(server, server.open)


def test_a_bound_of_rows_holds_and_the_next_batch_uses_the_open_cursor() -> None:
    server = Server([token(time) for time in range(1, 8)])
    ahead = ahead_of(server)
    start, ends = token(0, 0), []
    for _ in range(3):
        reach = ahead.advance(start, BatchLimits(3), until=None, wait_ms=5)
        ends.append((reach.token, reach.rows))
        start = reach.token
    assert ends == [(token(3), 3), (token(6), 3), (token(7), 1)]
    assert server.opened == 1


def test_a_transaction_is_never_cut() -> None:
    server = Server([token(1), token(2, 1), token(2, 2), token(2, 3), token(3)], batch=1)
    ahead = ahead_of(server)
    first = ahead.advance(token(0, 0), BatchLimits(2), until=None, wait_ms=5)
    assert (first.token, first.rows) == (token(2, 3), 4)
    assert ahead.advance(first.token, BatchLimits(2), until=None, wait_ms=5) == BatchEnd(token(3), 1)


def test_without_a_bound_of_rows_a_batch_reaches_to_now() -> None:
    server = Server([token(time) for time in range(1, 100)])
    reach = ahead_of(server).advance(token(0, 0), BatchLimits(), until=None, wait_ms=5)
    assert reach.token == token(99)


@pytest.mark.parametrize("bounds", [BatchLimits(), BatchLimits(5), BatchLimits(bytes=5)])
def test_where_nothing_is_there_it_waits_and_gives_what_came_meanwhile(bounds: BatchLimits) -> None:
    server = Server([token(1)])
    ahead = ahead_of(server)
    assert ahead.advance(token(0, 0), bounds, until=None, wait_ms=5) == BatchEnd(token(1), 1)
    server.waits.clear()
    assert ahead.advance(token(1), bounds, until=None, wait_ms=5) == BatchEnd(token(1), 0)
    assert server.waits == [5], "it waits, and once"
    server.coming = [token(2), token(3)]
    assert ahead.advance(token(1), bounds, until=None, wait_ms=5) == BatchEnd(token(3), 2)


def test_a_bound_of_time_leaves_what_came_later() -> None:
    server = Server([token(1), token(2), token(3, 1), token(3, 2), token(4), token(5)])
    ahead = ahead_of(server)
    reach = ahead.advance(token(0, 0), BatchLimits(), until=token(3).time, wait_ms=5)
    assert reach.token == token(3, 2)
    assert ahead.advance(reach.token, BatchLimits(), until=token(3).time, wait_ms=5).rows == 0


def test_a_quiet_stream_moves_on_with_the_servers_mark() -> None:
    server = Server([token(1)])
    ahead = ahead_of(server)
    assert ahead.advance(token(0, 0), BatchLimits(5), until=None, wait_ms=5) == BatchEnd(token(1), 1)
    server.quiet_until = token(9, 0)
    assert ahead.advance(token(1), BatchLimits(5), until=None, wait_ms=5) == BatchEnd(token(9, 0), 0)


def test_an_invalidate_ends_a_batch() -> None:
    server = Server([token(time) for time in range(1, 6)], invalidates=frozenset({token(3)}), batch=10)
    ahead = ahead_of(server)
    assert ahead.advance(token(0, 0), BatchLimits(10), until=None, wait_ms=5) == BatchEnd(token(3), 3, True)
    assert ahead.advance(token(3), BatchLimits(10), until=None, wait_ms=5) == BatchEnd(token(5), 2)


def test_an_invalidate_after_the_bound_is_reported_with_its_batch() -> None:
    server = Server([token(time) for time in range(1, 6)], invalidates=frozenset({token(3)}), batch=10)
    ahead = ahead_of(server)
    assert ahead.advance(token(0, 0), BatchLimits(2), until=None, wait_ms=5) == BatchEnd(token(2), 2)
    assert ahead.advance(token(2), BatchLimits(2), until=None, wait_ms=5) == BatchEnd(token(3), 1, True)


def test_a_batch_from_another_position_opens_a_new_cursor() -> None:
    server = Server([token(time) for time in range(1, 6)])
    ahead = ahead_of(server)
    ahead.advance(token(0, 0), BatchLimits(4), until=None, wait_ms=5)
    assert ahead.advance(token(1), BatchLimits(2), until=None, wait_ms=5) == BatchEnd(token(3), 2)
    assert server.opened == 2


def test_a_bound_of_bytes_holds_but_one_event_is_always_returned() -> None:
    server = Server([token(time) for time in range(1, 8)], batch=10)
    server.bytes = 100
    ahead = ahead_of(server)
    assert ahead.advance(token(0, 0), BatchLimits(bytes=250), until=None, wait_ms=5) == BatchEnd(token(2), 2)
    assert ahead.advance(token(2), BatchLimits(bytes=99), until=None, wait_ms=5) == BatchEnd(token(3), 1)
    assert ahead.advance(token(3), BatchLimits(rows=3, bytes=1000), until=None, wait_ms=5) == BatchEnd(token(6), 3)
    assert server.opened == 1


def test_reachable_time_consumes_nothing_and_is_the_time_up_to_which_all_events_are_known() -> None:
    server = Server([token(1), token(2, 1), token(2, 2), token(3)], batch=10)
    ahead = ahead_of(server)
    assert ahead.reachable_time(token(0, 0), BatchLimits(2), wait_ms=5) == token(2).time
    assert ahead.advance(token(0, 0), BatchLimits(), until=token(2).time, wait_ms=5).token == token(2, 2)
    assert ahead.reachable_time(token(2, 2), BatchLimits(9), wait_ms=5) == token(3).time
    server.quiet_until = token(9, 0)
    assert ahead.reachable_time(token(2, 2), BatchLimits(9), wait_ms=5) == token(9).time
    assert server.opened == 1


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("until", [None, token(9).time])
def test_the_end_of_the_next_batch_is_read_while_spark_has_a_full_one(until: Timestamp | None, counts: bool) -> None:
    server = Server([token(time) for time in range(1, 10)])
    server.counts = counts
    ahead = ahead_of(server)
    start, ends = token(0, 0), []
    for _ in range(4):
        reach = ahead.advance(start, BatchLimits(4), until=until, wait_ms=5)
        ahead.read_on(BatchLimits(4), until=until)
        ends.append(reach.rows)
        start = reach.token
    ahead.close()
    assert ends == [4, 4, 1, 0]
    threads = [thread for thread in server.threads if thread is not threading.current_thread()]
    assert threads, "another thread has read"
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a closed stream leaves none"
    assert server.opened == 1


def test_what_failed_while_it_read_on_is_raised_by_the_next_call() -> None:
    server = Server([token(time) for time in range(1, 10)])
    ahead = ahead_of(server)
    first = ahead.advance(token(0, 0), BatchLimits(3), until=None, wait_ms=5)
    server.failure = ConnectionError("gone")
    ahead.read_on(BatchLimits(3), until=None)
    with pytest.raises(ConnectionError):
        ahead.advance(first.token, BatchLimits(3), until=None, wait_ms=5)
    server.failure = None
    assert ahead.advance(first.token, BatchLimits(3), until=None, wait_ms=5) == BatchEnd(token(6), 3)


def test_a_batch_that_was_not_full_is_not_read_on_from() -> None:
    server = Server([token(1)])
    ahead = ahead_of(server)
    ahead.advance(token(0, 0), BatchLimits(3), until=None, wait_ms=5)
    asked = len(server.threads)
    ahead.read_on(BatchLimits(3), until=None)
    ahead.close()
    assert len(server.threads) == asked


def test_a_batch_without_rows_can_be_repeated_from_the_same_position() -> None:
    server = Server([token(1)])
    ahead = ahead_of(server)
    for quiet in (5, 7, 9):
        server.quiet_until = token(quiet, 0)
        ahead.advance(token(1), BatchLimits(5), until=None, wait_ms=5)
    assert server.opened == 1


@pytest.mark.parametrize("rows_max", [1, 2, 3, 7, None])
def test_ranges_follow_one_another_without_a_gap(rows_max: int | None) -> None:
    tokens = [token(time, nth) for time in range(1, 9) for nth in range(1, 1 + time % 3)]
    ahead = ahead_of(Server(tokens, batch=3))
    start, covered = token(0, 0), 0
    while start < tokens[-1]:
        end = ahead.advance(start, BatchLimits(rows_max), until=None, wait_ms=5).token
        covered += sum(start < each <= end for each in tokens)
        start = end
    assert covered == len(tokens)


@pytest.mark.parametrize("rows_max", [3, 1200, 7000, None])
@pytest.mark.parametrize("counts", [True, False])
def test_counted_runs_give_the_same_batches_as_marks(rows_max: int | None, counts: bool) -> None:
    tokens = [token(time, nth) for time in range(1, 9001) for nth in range(1, 1 + time % 3)]
    server = Server(tokens, batch=400)
    server.counts = counts
    ahead, start, sizes = ahead_of(server), token(0, 0), []
    until = token(8500).time
    while start.time <= token(8499).time:
        end = ahead.advance(start, BatchLimits(rows_max), until=until, wait_ms=5)
        assert end.rows == sum(start < each <= end.token for each in tokens)
        assert end.rows <= (rows_max or len(tokens)) + 1, "a transaction is never split, and has two events here"
        sizes.append(end.rows)
        start = end.token
        if rows_max == 3 and len(sizes) > 200:
            return
    assert sum(sizes) == len([each for each in tokens if each.time <= until])
    assert bool(server.runs) == counts


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("rows_max", [20_000, None])
def test_a_large_batch_is_divided_into_like_ranges(rows_max: int | None, counts: bool) -> None:
    tokens = [token(time) for time in range(1, 21_001)]
    server = Server(tokens, batch=2000)
    server.counts = counts
    ahead = ahead_of(server)
    end = ahead.advance(token(0, 0), BatchLimits(rows_max), until=token(20_000).time, wait_ms=5)
    bounds = [token(0, 0), *ahead.splits(token(0, 0), end.token, 3), end.token]
    sizes = [sum(start < each <= end for each in tokens) for start, end in pairwise(bounds)]
    assert len(sizes) == 3
    assert sum(sizes) == 20_000
    assert max(sizes) < 1.5 * 20_000 / 3
    assert len(ahead.splits(token(0, 0), end.token, 99)) == 3, "a partition has enough rows to be worth a task"
    assert ahead.splits(token(1), end.token, 3) == [], "planned by another process"


def test_a_small_batch_is_not_divided() -> None:
    server = Server([token(time) for time in range(1, 8)])
    ahead = ahead_of(server)
    end = ahead.advance(token(0, 0), BatchLimits(), until=None, wait_ms=5)
    assert ahead.splits(token(0, 0), end.token, 2) == []
