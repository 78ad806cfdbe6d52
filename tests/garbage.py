"""Garbage for Python's collector: objects of the package that only refer to each other."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from types import CoroutineType, FrameType, FunctionType, GeneratorType

import headrace

_CODES = {CoroutineType: "cr_code", FrameType: "f_code", FunctionType: "__code__", GeneratorType: "gi_code"}
PACKAGE = str(Path(headrace.__file__).parent)


def name(thing: object) -> str:
    """The name of an object of the package, or nothing: other threads of this process have garbage of their own."""
    kind = type(thing)  # of a weak proxy, whose object may be gone: nothing is asked of the thing itself
    code = _CODES.get(kind)
    if code is None:
        return kind.__qualname__ if str(kind.__module__).startswith("headrace.") else ""
    file = getattr(thing, code).co_filename
    return getattr(thing, code).co_qualname if file.startswith(PACKAGE) else ""


def garbage(run: Callable[[], object]) -> list[str]:
    """The names of what is left to the collector by a second run; the first makes what is remembered of its form."""
    run()
    gc.disable()
    gc.freeze()  # what is there already is neither looked at, which would take most of the time, nor reported
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        run()
        gc.collect()
        return [named for thing in gc.garbage if (named := name(thing))]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()
