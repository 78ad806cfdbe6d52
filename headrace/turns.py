"""Turns: a command that has run for some milliseconds pauses, and goes on when others have had their turn.

    turns.run(function, *arguments)     → what it returns, or the `Turn` in which it has paused
    turns.resume(turn)                  → likewise
    tick()                              called by every loop over what a client sent or stored

A turn is a greenlet: `tick` can pause any walk, however deep in a filter or an expression, without that walk being
written for it (a generator would have to be passed through every function in between, at a cost for each). Whoever
calls `tick` must be ready for anything else to have happened when it returns: it holds no view of the store and no
cursor of LMDB. Outside a turn (a test that calls a command, the server's own jobs) `tick` does nothing.

Rule: an interruption is no `CommandError`, `TurnAbandoned` no `Exception`: both pass through the command.

Source: MongoDB's query yielding, `internalQueryExecYieldPeriodMS` (10 ms).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from gc import get_referents, is_tracked
from heapq import merge
from itertools import chain, islice
from math import inf
from sys import getrefcount
from types import GeneratorType, MethodWrapperType
from typing import Any, Final, TypeVar

from greenlet import getcurrent, greenlet

from headrace.clock import monotonic, thread_time
from headrace.errors import CommandError

TURN_SECONDS: Final = 0.005  # how long a command runs before others have their turn
TICK_COUNT: Final = 64  # steps of a cheap loop (an element of an array, a line of a cross product) between two ticks
PIECE_COUNT: Final = 4096  # elements that are copied, sorted or freed at once: some milliseconds at most
FIRST_COUNT: Final = 128  # elements sorted at first, while it is not known how quickly their keys compare
LARGE_COUNT: Final = 32_768  # elements from which on an array is freed in pieces
HELD_DEPTH: Final = 6  # how far from its frames it is looked for what a failed command held
HELD_COUNT_MAX: Final = 1000  # values that are looked at for it at each of these steps
_CONTAINERS: Final = frozenset({dict, list, tuple})
_ITERATORS: Final = frozenset({
    GeneratorType, MethodWrapperType, chain, enumerate, filter, islice, map, zip, type(iter([])),
})  # fmt: skip
"""What commands hold their values through."""


class Work:
    """What the scans of a command have examined, for the log."""

    __slots__ = ("documents", "keys", "plan")

    def __init__(self, plan: str) -> None:
        self.plan = plan
        """`COLLSCAN`, or `IXSCAN { a: 1 }`: of its first scan."""
        self.documents = 0
        self.keys = 0


class Turn(greenlet):
    """A command that is running, or has paused."""

    paused_at: float | None = None
    """When it has first paused, in seconds of the monotonic clock."""
    pause_count = 0
    """How often it has."""
    work: Work | None = None
    """What it has examined; None: nothing that is counted."""

    answer: Any = None
    """What the command has answered, if it has paused, for the log."""
    before_pause: Callable[[], None] | None = None
    """Called as the command pauses: lets go of what must not outlive the turn."""
    after_pause: Callable[[Any], None] | None = None
    """Called as it goes on, with what `Turns.resume` was given: a write's next transaction."""
    ends: float = 0.0
    """When the turn is over, in seconds of the monotonic clock."""
    interruption: BaseException | None = None
    """Raised in the command when it goes on: its time is up, its client has gone, somebody has killed it."""
    interruptible: bool = True
    """Whether an `interruption` is raised; otherwise the command goes on to its end, as a commit must."""
    goes_first: bool = False
    """It goes on before all others until it has ended: it holds much, which the others would have to hold meanwhile."""
    scan_bytes: int = 0
    batch_bytes: int = 0
    decoded_bytes: int = 0
    """About what its scan has last read at once, its batch, and the long document that it has last decoded take."""
    grown_bytes: int = 0  # by which the process has grown during its turns, where the shell measures that
    returned_count: int | None = None
    """How many documents are in its batch, where these are many, for the log."""
    account: Any = None
    """The shell's, which counts them while the command has paused, if they are many. Closed when it has ended."""
    keeps_transaction: bool = False
    """It pauses in the middle of a change: the write transaction stays open, and others write when that is made."""
    paused_in_change: bool = False
    """It has, so that its turn is over when the change is made."""
    waits_for: Any = None
    """What it waits for before it can go on, as the shell understands it; None: only for its next turn."""

    result: Any = None
    """What the command has returned, or `_Raised`, until it is handed on."""

    def __init__(
        self, run: Callable[..., Any], large: list[list[Any] | dict[Any, Any]], *, can_keep: bool = False
    ) -> None:
        super().__init__(run)
        self.can_keep = can_keep
        """Whoever resumes it knows `keeps_transaction`."""
        self.large = large
        """What `freed_in_pieces` was given in any of the turns."""
        self.held: list[list[Any] | dict[Any, Any]] = []
        """What the frames of the command held when it failed."""

    def pause(self, waits_for: Any = None) -> None:
        """Let others run; returns, or raises the `interruption`, when it is this command's turn again."""
        if self.keeps_transaction:
            self._pause_in_change()
            return
        if self.before_pause is not None:
            self.before_pause()
        if self.paused_at is None:
            self.paused_at = monotonic()
        self.pause_count += 1
        assert self.parent is not None
        self.waits_for = waits_for
        given = self.parent.switch(self)
        self.waits_for = None
        if self.after_pause is not None:
            self.after_pause(given)
        if self.interruption is not None and (self.interruptible or type(self.interruption) is TurnAbandoned):
            error, self.interruption = self.interruption, None
            try:
                raise error
            finally:
                del error  # whose traceback has this frame: a cycle would keep what the command holds

    def _pause_in_change(self) -> None:
        self.paused_in_change = True
        assert self.parent is not None
        self.parent.switch(self)
        if type(self.interruption) is TurnAbandoned:
            self.interruption = None
            raise TurnAbandoned


_running: Final[set[Turn]] = set()
"""The turns that run: one on the thread of each server."""
_time_limits: Final[dict[greenlet, TimeLimit]] = {}
"""Those of what runs uninterrupted."""
_first_end = inf
"""No later than the end of any of them. Until then a tick does no more than compare: it takes 0.1 µs."""


def tick() -> None:
    """Pause the command that runs if its turn is over; raises what interrupts it, and 50 for a spent `TimeLimit`."""
    if monotonic() >= _first_end:
        turn = getcurrent()
        if _time_limits and (limit := _time_limits.get(turn)) is not None:
            limit.check()
        if type(turn) is Turn and monotonic() >= turn.ends:
            turn.pause()


def _look_at_running() -> None:
    """Set `_first_end` where turns run on other threads. No lock: each thread looks again behind its own change."""
    global _first_end  # noqa: PLW0603  (as below)
    while True:
        running: tuple[Turn | TimeLimit, ...] = (*_running, *_time_limits.values())
        _first_end = min((other.ends for other in running), default=inf)
        if running == (*_running, *_time_limits.values()):
            return


def examined(plan: str, documents: int, keys: int = 0) -> None:
    """Count what a scan of the command that runs has read at once."""
    turn = getcurrent()
    if type(turn) is Turn:
        work = turn.work
        if work is None:
            work = turn.work = Work(plan)
        work.documents += documents
        work.keys += keys


def holds_chunk(size: int) -> None:
    """A scan of the command that runs has read so many bytes from a view at once."""
    turn = getcurrent()
    if type(turn) is Turn:
        turn.scan_bytes = size


def holds_batch(size: int) -> None:
    """The batch that the command makes has come to so many bytes."""
    turn = getcurrent()
    if type(turn) is Turn:
        turn.batch_bytes = size


def current_turn() -> Turn | None:
    """The turn in which the caller runs."""
    turn = getcurrent()
    return turn if type(turn) is Turn else None


Item = TypeVar("Item")


def ticking(items: Collection[Item]) -> Iterable[Item]:
    """The items of an array, for a loop over them: a tick before it, and one every `TICK_COUNT` items."""
    tick()
    return items if len(items) < TICK_COUNT else ticking_all(items)


def ticking_if_many(items: Collection[Item]) -> Iterable[Item]:
    """As `ticking`, without the tick before few items."""
    return items if len(items) < TICK_COUNT else ticking_all(items)


class _TickingEachTime:
    """Items that are ticked over in each loop over them."""

    __slots__ = ("_items",)

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return ticking_all(self._items)


def ticking_each_time(items: Sequence[Item]) -> Iterable[Item]:
    """As `ticking_if_many`, for loops over the same items again and again: those over few cost nothing more."""
    return items if len(items) < TICK_COUNT else _TickingEachTime(items)


def ticking_all(items: Iterable[Item]) -> Iterator[Item]:
    """As `ticking`, for items whose number is not known."""
    for index, item in enumerate(items):
        if not index % TICK_COUNT:
            tick()
        yield item


def gathered(items: Iterable[Item]) -> list[Item]:
    """As `list`, of items that come with ticks: freed in pieces also where coming to them fails."""
    made: list[Item] = []
    for item in items:
        made.append(item)
    return freed_in_pieces(made)


def in_pieces(items: Any, count: int = PIECE_COUNT) -> Iterator[Any]:
    """Slices of a list, a range or a text, for what is done to many items at once, with a tick before each."""
    for start in range(0, len(items), count):
        tick()
        yield items if len(items) <= count else items[start : start + count]


def pieces_if_many(items: Any) -> Iterable[Any]:
    """As `in_pieces`, without the tick before few items."""
    return (items,) if len(items) <= PIECE_COUNT else in_pieces(items)


def sorted_in_pieces(items: list[Item], key: Callable[[Item], Any], *, reverse: bool = False) -> list[Item]:
    """As `sorted`, with ticks: pieces are sorted and then merged, which takes up to four times as long."""
    if len(items) <= FIRST_COUNT:
        tick()
        return sorted(items, key=key, reverse=reverse)
    pieces: list[list[Item]] = []
    start, count = 0, FIRST_COUNT
    while start < len(items):
        tick()
        begun = monotonic()
        pieces.append(sorted(items[start : start + count], key=key, reverse=reverse))
        start += count
        count = next_count(count, monotonic() - begun)
    return list(ticking_all(merge(*pieces, key=key, reverse=reverse)))


def next_count(count: int, seconds: float) -> int:
    """How many elements to sort next, when so many took so long: keys may be a hundred times as slow to compare."""
    if seconds > TURN_SECONDS:
        return max(count // 4, TICK_COUNT)
    return min(count * 2, PIECE_COUNT) if seconds < TURN_SECONDS / 4 else count


Container = TypeVar("Container", list[Any], dict[Any, Any])


def freed_in_pieces(container: Container, count: int | None = None) -> Container:
    """The container itself, which a command has made. If it is large, a turn frees it, piece by piece, once nothing
    else refers to it: freeing a million elements at once takes up to 100 ms. `count`: of values in it at any depth."""
    turn = getcurrent()
    if (len(container) if count is None else count) >= LARGE_COUNT and type(turn) is Turn:
        free(turn.large)
        if not any(container is other for other in turn.large):
            turn.large.append(container)
    return container


def free_held(error: BaseException) -> None:
    """The command that runs has failed with `error`: what its frames hold is freed in pieces when it has ended."""
    turn = getcurrent()
    if type(turn) is not Turn or not turn.pause_count or error.__traceback__ is None:
        return
    trace = error.__traceback__.tb_next  # not the caller's own frame, which will refer to the error
    level: list[Any] = []
    while trace is not None:
        level += trace.tb_frame.f_locals.values()
        trace = trace.tb_next
    seen = set(map(id, turn.large))
    for _ in range(HELD_DEPTH):
        level = list({id(value): value for value in level if id(value) not in seen}.values())[:HELD_COUNT_MAX]
        seen.update(map(id, level))
        turn.held += [value for value in level if type(value) in (dict, list) and len(value) >= TICK_COUNT]
        level = [inner for value in level for inner in _inside(value) if is_tracked(inner)]


def _inside(value: Any) -> Iterable[Any]:
    """Some of what a value refers to, if it is one that commands make."""
    kind = type(value)
    if kind is dict:
        return islice(value.values(), TICK_COUNT)
    if kind is list or kind is tuple:
        return islice(value, TICK_COUNT)
    return get_referents(value) if kind in _ITERATORS or kind.__module__.startswith("headrace.query.") else ()


def free(containers: list[list[Any] | dict[Any, Any]]) -> None:
    """Empty the containers that nothing else refers to, with ticks, and forget them."""
    for _ in range(len(containers)):
        if not containers:
            return  # another turn does the same
        container = containers.pop(0)
        if getrefcount(container) > 2:  # this name, and the argument
            containers.append(container)
            continue
        try:
            _empty(container)
        except BaseException:
            containers.append(container)
            raise


def _empty(container: list[Any] | dict[Any, Any], depth: int = HELD_DEPTH) -> None:
    """Empty a container, and the large ones in it, so many levels deep."""
    count = 1  # more, as long as that is quick: elements may be large, too
    while container:
        begun = monotonic()
        if isinstance(container, list):
            taken = container[-count:]
            del container[-count:]
        else:
            pairs = [container.popitem() for _ in range(min(count, len(container)))]  # which does not hash the key anew
            taken = [value for _, value in pairs] if count > 1 else [*pairs.pop()]
            del pairs
        if count > 1:
            taken = _large(taken) if type(taken[0]) in _CONTAINERS else []
        if taken and depth:
            _empty_inside(taken, depth - 1)
        del taken
        seconds = monotonic() - begun
        tick()
        if seconds > TURN_SECONDS / 2:
            count = max(count // 4, 1)
        elif seconds < TURN_SECONDS / 8 and len(container) >= TICK_COUNT:
            count = min(count * 2, PIECE_COUNT)


def _large(items: list[Any]) -> list[Any]:
    return [item for item in items if _is_container(item) and len(item) >= LARGE_COUNT]


def _is_container(item: Any) -> bool:
    return type(item) in _CONTAINERS or isinstance(item, tuple)


def _empty_inside(items: list[Any], depth: int) -> None:
    """Empty what nothing else refers to. A tuple is copied for it, which is quick."""
    while items:
        item = items.pop()
        if _is_container(item) and item and getrefcount(item) == 2:  # this name, and the argument
            inner = list(item) if isinstance(item, tuple) else item
            del item
            _empty(inner, depth)


@contextmanager
def keeping_transaction() -> Iterator[None]:
    """What runs in the `with` is one change of the write transaction, which is kept where it pauses: others read, and
    do not see it. Where nobody knows how to go on with that, it does not pause."""
    turn = getcurrent()
    if type(turn) is not Turn or turn.keeps_transaction:
        yield
        return
    if not turn.can_keep:
        with uninterrupted():
            yield
        return
    turn.keeps_transaction, turn.paused_in_change = True, False
    try:
        yield
    finally:
        turn.keeps_transaction = False
        if turn.paused_in_change:  # others have waited to write
            end_turn()


class uninterrupted(AbstractContextManager[None]):
    """What runs in the `with` does not pause: it works on what commands share, a feed or a client's transaction. As a
    generator it would take three times as long, for each change event."""

    def __enter__(self) -> None:
        self._turn = turn = current_turn()
        if turn is not None:
            self._ends, turn.ends = turn.ends, inf

    def __exit__(self, *failure: object) -> None:
        if self._turn is not None:
            global _first_end  # noqa: PLW0603  (as below)
            self._turn.ends = self._ends
            _first_end = min(_first_end, self._ends)


def end_turn() -> None:
    """The command that runs is to pause at its next tick."""
    turn = getcurrent()
    if type(turn) is Turn and turn.ends != inf:
        global _first_end  # noqa: PLW0603  (as below)
        turn.ends = _first_end = 0.0


class TimeLimit:
    """How long what cannot pause may take in one go: the stages of one event, which many streams may share.

    `begin` and `end` around each go take 0.3 µs. Counted is the thread's own time, so that nothing is spent while the
    process is stopped: at the end of the first such time that begins to be measured, at the end of a second it is over.
    """

    __slots__ = ("_first_look", "_seconds", "_spent_from", "_time_ends", "_what", "ends")

    memory_is_exceeded: Callable[[], bool] = staticmethod(lambda: False)
    """Whether the process has too much memory: then what runs ends with error 146. One for all limits."""

    def __init__(self, seconds: float, what: str) -> None:
        """`what`: of the error's message."""
        self._seconds = seconds
        self._first_look = min(seconds, TURN_SECONDS)
        self._what = what
        self._spent_from: float | None = None
        self.ends = self._time_ends = inf
        """When it is looked at, and when the time is, in seconds of the monotonic clock."""

    def begin(self) -> None:
        """From here on ticks raise 50 when the time is spent, and 146 while memory is exceeded."""
        global _first_end  # noqa: PLW0603  (as below)
        self._spent_from, now = None, monotonic()
        self._time_ends, self.ends = now + self._seconds, now + self._first_look
        _time_limits[getcurrent()] = self
        if self.ends < _first_end:  # noqa: PLR1730  (as below)
            _first_end = self.ends

    def end(self) -> None:
        """What was limited has ended."""
        global _first_end  # noqa: PLW0603  (as below)
        _time_limits.pop(getcurrent(), None)
        if self.ends <= _first_end:
            _first_end = inf
            if _running or _time_limits:
                _look_at_running()

    def check(self) -> None:
        """Raises 50 when the time is spent, 146 while the process has too much memory."""
        now = monotonic()
        if now < self.ends:
            return
        if self.memory_is_exceeded():
            del _time_limits[getcurrent()]  # whoever handles the error may tick
            raise CommandError(146, f"operation exceeded the server's memory limit: {self._what}")
        if now >= self._time_ends:
            if self._spent_from is not None and thread_time() - self._spent_from >= self._seconds / 2:
                del _time_limits[getcurrent()]  # as above
                raise CommandError(50, f"operation exceeded time limit: {self._what}")
            self._spent_from, self._time_ends = thread_time(), now + self._seconds
        self.ends = now + self._first_look
        _look_at_running()


class TurnAbandoned(BaseException):
    """Unwinds a command whose transaction is gone; whoever resumed it runs it anew. No handler of errors catches it."""


class _Raised:
    """An exception on its way out of a turn."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Turns:
    """Runs commands in turns, on one thread. Greenlets that have done their work are used again."""

    def __init__(self, seconds: float = TURN_SECONDS) -> None:
        """`seconds`: how long a turn lasts; 0 makes every tick a pause (for tests)."""
        self.seconds = seconds
        self.can_keep = False
        """Whoever runs commands in them knows `Turn.keeps_transaction`."""
        self.pause_count = 0
        """How often anything has paused in them."""
        self.large: list[list[Any] | dict[Any, Any]] = []
        self._idle: list[Turn] = []

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What `function` returns or raises; or the `Turn`, if it has paused."""
        if self._idle:
            turn = self._idle.pop()
        else:
            turn = Turn(_work, self.large, can_keep=self.can_keep)
            turn.switch()
        return self._switch(turn, (function, arguments))

    def resume(self, turn: Turn, given: Any = None) -> Any:
        """Let a paused command go on: as `run`. `given` is handed to its `after_pause`."""
        return self._switch(turn, given)

    def abandon(self, turn: Turn) -> None:
        """End a paused command without letting it do anything more."""
        turn.after_pause = None
        result: Any = turn
        while result is turn:
            turn.interruption = TurnAbandoned()
            try:
                result = self.resume(turn)
            except TurnAbandoned:
                return

    def _switch(self, turn: Turn, call: Any) -> Any:
        global _first_end  # noqa: PLW0603  (nothing is read sooner than a name of the module)
        turn.ends = ends = monotonic() + self.seconds
        _running.add(turn)
        if ends < _first_end:  # noqa: PLR1730  (a call of `min` takes longer)
            _first_end = ends
        try:
            if turn.switch(call) is turn:
                self.pause_count += 1
                return turn
        finally:
            _running.discard(turn)
            _first_end = inf
            if _running or _time_limits:
                _look_at_running()
        result, turn.result = turn.result, None
        turn.before_pause = turn.after_pause = turn.interruption = turn.work = None
        if turn.pause_count:
            turn.paused_at, turn.pause_count = None, 0
        turn.goes_first, turn.interruptible = False, True
        turn.scan_bytes = turn.batch_bytes = turn.decoded_bytes = turn.grown_bytes = 0
        turn.returned_count = None
        if turn.account is not None:
            turn.account.close()
            turn.account = None
        self._idle.append(turn)
        if type(result) is _Raised:
            error, result = result.error, None
            try:
                raise error
            finally:
                del error  # whose traceback has this frame: a cycle would stay until garbage is collected
        return result


def _work() -> None:
    """The body of a turn's greenlet: one call after the other. An idle one refers to nothing of the last."""
    turn = getcurrent()
    assert type(turn) is Turn and turn.parent is not None
    parent = turn.parent
    while True:
        function, arguments = parent.switch(None)
        try:
            turn.result = function(*arguments)
        except BaseException as error:
            turn.result = _Raised(error)
        del function, arguments
        if turn.large or turn.held:
            _free_all(turn)


def _free_all(turn: Turn) -> None:
    """The command has ended: free what it made. An interruption comes too late."""
    turn.before_pause = turn.after_pause = None
    held, turn.held = turn.held, []
    for containers in (turn.large, held):  # the outer ones first; what is in use of those held is not the command's
        with suppress(Exception):
            free(containers)
    held.clear()
    with suppress(Exception):
        free(turn.large)
