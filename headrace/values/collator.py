"""ICU's collators: sort keys of strings, by the tables of a language.

    Collator("sv", {"strength": 2}).sort_key("å")  → bytes that sort as the language does, equal for equal strings

The package icu4py brings ICU's libraries. Its own Python interface has no collation, so the libraries are called
through ctypes. Keys depend on ICU's version: code that stores keys also stores `version()`, and remakes the keys when
it changes.

Rule: a collator does not change once it is made, so that any thread may use it.
Source: ICU's ucol.h; MongoDB's collation options, which are ICU's attributes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from headrace.errors import CommandError

_ON, _OFF = 17, 16
_FLAGS: Final = {_ON: True, _OFF: False}
_ATTRIBUTES: Final[dict[str, tuple[int, dict[int, Any]]]] = {
    "alternate": (1, {20: "shifted", 21: "non-ignorable"}),
    "backwards": (0, _FLAGS),
    "caseFirst": (2, {24: "lower", _OFF: "off", 25: "upper"}),
    "caseLevel": (3, _FLAGS),
    "normalization": (4, _FLAGS),
    "numericOrdering": (7, _FLAGS),
    "strength": (5, {0: 1, 1: 2, 2: 3, 3: 4, 15: 5}),
}
"""ICU's attribute and its values, by MongoDB's option."""
_MAX_VARIABLE: Final = {0x1000: "space", 0x1001: "punct"}
_VALID_LOCALE: Final = 1  # the locale that ICU has data for
_USING_DEFAULT: Final = -127  # the warning that ICU has no data for the requested locale

_SMALL_LENGTH: Final = 64
_SMALL_BYTES: Final = 512
_Buffer: Final = ctypes.c_char * _SMALL_BYTES


class _Icu:
    """ICU's functions, whose names end with its version."""

    def __init__(self, library: ctypes.PyDLL, version: str) -> None:
        def function(name: str, result: Any, *arguments: Any) -> Any:
            made = getattr(library, f"{name}_{version}")
            made.restype, made.argtypes = result, arguments
            return made

        status = ctypes.POINTER(ctypes.c_int)
        text, number, pointer = ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p
        self.open = function("ucol_open", pointer, text, status)
        self.close = function("ucol_close", None, pointer)
        self.get = function("ucol_getAttribute", number, pointer, number, status)
        self.set = function("ucol_setAttribute", None, pointer, number, number, status)
        self.get_max_variable = function("ucol_getMaxVariable", number, pointer)
        self.set_max_variable = function("ucol_setMaxVariable", None, pointer, number, status)
        self.locale = function("ucol_getLocaleByType", text, pointer, number, status)
        self.sort_key = function("ucol_getSortKey", number, pointer, text, number, pointer, number)
        self.version = function("ucol_getVersion", None, pointer, pointer)


def _libraries(name: str) -> list[Path]:
    """The paths of a library of the package icu4py, given how its name begins; none if the package is not installed."""
    spec = find_spec("icu4py")
    if spec is None or spec.origin is None:
        return []
    package = Path(spec.origin).parent
    folder, pattern = (package / ".dylibs", f"{name}.*.dylib") if sys.platform == "darwin" else (
        package.parent / "icu4py.libs", f"{name}-*.so.*")  # fmt: skip
    return sorted(folder.glob(pattern))


def read_ahead() -> None:
    """Ask the system to read the libraries from disk (40 MB). Otherwise the first user may wait for a quarter of a
    second. Returns at once."""
    if sys.platform == "linux":
        for path in _libraries("libicu*"):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


@cache
def _icu() -> _Icu:
    """Load the library. Raises 115 if the package or its library is missing."""
    for path in _libraries("libicui18n"):
        version = path.name.split(".dylib")[0].split(".", 1)[1].removeprefix("so.").split(".")[0]
        # Calls keep the interpreter's lock: a sort key takes less time than releasing and acquiring it.
        return _Icu(ctypes.PyDLL(str(path)), version)
    raise CommandError(115, "Collations need ICU's library, which the package icu4py has: it is not installed")


@cache
def version() -> str:
    """The version of the tables. Keys of different versions must not be compared."""
    collator, number = Collator("en", {}), (ctypes.c_uint8 * 4)()
    _icu().version(collator.handle, ctypes.byref(number))
    return ".".join(map(str, number))


class Collator:
    """One locale's collation with MongoDB's options (`strength`, `caseLevel` and so on)."""

    __slots__ = ("_sort_key", "handle")

    def __init__(self, locale: str, options: dict[str, Any]) -> None:
        """Open a locale's collator. `options` override the locale's. Raises `UnknownLocale`; 115 without ICU."""
        icu, status = _icu(), ctypes.c_int(0)
        self._sort_key = icu.sort_key
        self.handle = icu.open(locale.encode(), ctypes.byref(status))
        if not self.handle or status.value > 0:
            raise UnknownLocale
        valid = icu.locale(self.handle, _VALID_LOCALE, ctypes.byref(ctypes.c_int(0)))
        plain, _, variant = locale.partition("@")
        if valid is None or valid.decode().partition("@")[0] != plain or (variant and status.value == _USING_DEFAULT):
            raise UnknownLocale
        for name, (attribute, values) in _ATTRIBUTES.items():
            if name in options:
                value = next(number for number, shown in values.items() if shown == options[name])
                icu.set(self.handle, attribute, value, ctypes.byref(status))
        if "maxVariable" in options:
            group = next(number for number, shown in _MAX_VARIABLE.items() if shown == options["maxVariable"])
            icu.set_max_variable(self.handle, group, ctypes.byref(status))
        if status.value > 0:
            raise UnknownLocale

    def __del__(self) -> None:
        handle = getattr(self, "handle", None)
        if handle:
            _icu().close(handle)

    def options(self) -> dict[str, Any]:
        """Every option, including the locale's defaults."""
        icu, status = _icu(), ctypes.c_int(0)
        made = {
            name: values[icu.get(self.handle, attribute, ctypes.byref(status))]
            for name, (attribute, values) in _ATTRIBUTES.items()
        }
        return {**made, "maxVariable": _MAX_VARIABLE.get(icu.get_max_variable(self.handle), "punct")}

    def sort_key(self, text: str) -> bytes:
        """The sort key of a text, without zero bytes. Takes about 30 ns for each character."""
        raw = text.encode("utf-16-le", "surrogatepass")
        length = len(raw) >> 1
        if length <= _SMALL_LENGTH:
            buffer = _Buffer()
            size = self._sort_key(self.handle, raw, length, buffer, _SMALL_BYTES)
            if size <= _SMALL_BYTES:
                return buffer.raw[: size - 1]
        size = 4 * length + _SMALL_BYTES
        while True:
            large = ctypes.create_string_buffer(size)
            needed = self._sort_key(self.handle, raw, length, large, size)
            if needed <= size:
                return large.raw[: needed - 1]
            size = needed


class UnknownLocale(Exception):
    """ICU has no collation for a locale."""
