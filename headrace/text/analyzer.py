"""Texts as terms: divided at delimiters, without stop words, stemmed, in lower case and without diacritical marks.

    "The Cafés' waiters"   →   cafe, waiter

The order is MongoDB's. Stop words are recognised in lower case with their marks. The stemmer sees the marks. Then the
marks are removed. Case is folded character by character (Unicode's common and simple foldings, the special ones in
Turkish), so that no text becomes longer. In English, an apostrophe is part of a word: the stemmer and the stop words
know "don't".

In an index of a version before 3, only ASCII characters are delimiters and have a lower case, and marks are kept.

The languages have names and two-letter codes; `none` has no stems and no stop words. An index of version 1 takes names
as they are written, including three-letter codes. Only full names have stop words there, and an unknown language is
`none`.

Source: MongoDB's documentation of text indexes, and "Text Search Languages".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from sys import maxsize
from typing import Final
from unicodedata import normalize

from headrace.text.stop_words import stop_words

NONE: Final = "none"
_BY_CODE: Final = {
    "da": "danish", "de": "german", "en": "english", "es": "spanish", "fi": "finnish", "fr": "french",
    "hu": "hungarian", "it": "italian", "nb": "norwegian", "nl": "dutch", "pt": "portuguese", "ro": "romanian",
    "ru": "russian", "sv": "swedish", "tr": "turkish",
}  # fmt: skip
_NAMES: Final = frozenset(_BY_CODE.values()) | {NONE}


_OF_VERSION_1: Final = frozenset(
    "da dan danish de deu dut dutch en eng english es esl fi fin finnish fr fra fre french ger german hu hun hungarian "
    "it ita italian nl nld no nor norwegian por porter portuguese pt ro romanian ron ru rum rus russian spa spanish sv "
    "swe swedish tr tur turkish".split()
)
VERSIONS: Final = (1, 2, 3)
UNICODE_VERSION: Final = 3
"""The first version that folds letters beyond ASCII to lower case and ignores marks."""


def language_of(name: str, version: int = UNICODE_VERSION) -> str | None:
    """Return the full name of a language, given its name or two-letter code in any case; None if it is unknown.

    In an index of version 1, return the given name.
    """
    if version == 1:
        return name if name in _OF_VERSION_1 else NONE
    lower = name.lower()
    return lower if lower in _NAMES else _BY_CODE.get(lower)


def character_class(ranges: str) -> str:
    """Return ranges of hexadecimal code points as the inside of a character class of a regular expression."""
    pieces = []
    for piece in ranges.split():
        first, _, last = piece.partition("-")
        pieces.append(f"\\U{int(first, 16):08x}-\\U{int(last or first, 16):08x}")
    return "".join(pieces)


DELIMITERS: Final = """
    9-D 20-2F 3A-40 5B-5E 60 7B-7E 85 A0-A7 A9 AB-AE B0-B1 B6 BB BF D7 F7 37E 387 589-58A 5BE 5C3 60C 61B
    61D-61F 6D4 700-70A 70C 7F8-7F9 830-835 837-83E 85E 964-965 E5A-E5B F08 F0D-F12 104A-104B 1361-1368 1400
    166E 1680 16EB-16ED 1735-1736 17D4-17D6 17DA 1802-1806 1808-1809 1944-1945 1AA8-1AAB 1B4E-1B4F 1B5A-1B5B
    1B5D-1B5F 1B7D-1B7F 1C3B-1C3F 1C7E-1C7F 2000-200A 2010-2029 202F-203E 2041-2053 2055-205F 207B 208B
    2190-245F 2500-2775 2794-2BFF 2CF9-2CFB 2E00-2E7F 3000-3003 3008-3020 3030 30A0 30FB A4FE-A4FF A60D-A60F
    A6F3-A6F7 A876-A877 A8CE-A8CF A92F A9C7-A9C9 AA5D-AA5F AADF AAF0-AAF1 ABEB FD3E-FD3F FE12 FE15-FE16
    FE31-FE32 FE41-FE46 FE50-FE52 FE54-FE58 FE63 FF01-FF02 FF07 FF0C-FF0E FF1A-FF1B FF1F FF61-FF65 1039F 103D0
    10857 1091F 10A56-10A57 10AF0-10AF5 10B3A-10B3F 10B99-10B9C 10D6E 10EAD 10F55-10F59 10F86-10F89 11047-1104D
    110BE-110C1 11141-11143 111C5-111C6 111CD 111DE-111DF 11238-1123C 112A9 113D4-113D5 1144B-1144D 1145A-1145B
    115C2-115C5 115C9-115D7 11641-11642 1173C-1173E 11944 11946 11A42-11A43 11A9B-11A9C 11AA1-11AA2 11C41-11C43
    11C71 11EF7-11EF8 11F43-11F44 12470-12474 16A6E-16A6F 16AF5 16B37-16B39 16B44 16D6E-16D6F 16E97-16E98 1BC9F
    1DA87-1DA8A
"""
"""Characters with one of Unicode's properties Dash, Hyphen, Pattern_Syntax, Quotation_Mark, Terminal_Punctuation and
White_Space: the definition of version 3 in MongoDB's documentation of text indexes."""

DIACRITICS: Final = """
    5E 60 A8 AF B4 B7-B8 2B0-34E 350-357 35D-362 374-375 37A 384-385 483-487 559 591-5A1 5A3-5BD 5BF 5C1-5C2 5C4
    64B-652 657-658 6DF-6E0 6E5-6E6 6EA-6EC 730-74A 7A6-7B0 7EB-7F5 818-819 898-89F 8C9-8D2 8E3-8FE 93C 94D
    951-954 971 9BC 9CD A3C A4D ABC ACD AFD-AFF B3C B4D B55 BCD C3C C4D CBC CCD D3B-D3C D4D DCA E3A E47-E4C E4E
    EBA EC8-ECC F18-F19 F35 F37 F39 F3E-F3F F82-F84 F86-F87 FC6 1037 1039-103A 1063-1064 1069-106D 1087-108D
    108F 109A-109B 135D-135F 1714-1715 1734 17C9-17D3 17DD 1939-193B 1A60 1A75-1A7C 1A7F 1AB0-1ABE 1AC1-1ACB
    1B34 1B44 1B6B-1B73 1BAA-1BAB 1BE6 1BF2-1BF3 1C36-1C37 1C78-1C7D 1CD0-1CE8 1CED 1CF4 1CF7-1CF9 1D2C-1D6A
    1DC4-1DCF 1DF5-1DFF 1FBD 1FBF-1FC1 1FCD-1FCF 1FDD-1FDF 1FED-1FEF 1FFD-1FFE 2CEF-2CF1 2E2F 302A-302F
    3099-309C 30FC A66F A67C-A67D A67F A69C-A69D A6F0-A6F1 A700-A721 A788-A78A A7F8-A7F9 A806 A82C A8C4
    A8E0-A8F1 A92B-A92E A953 A9B3 A9C0 A9E5 AA7B-AA7D AABF-AAC2 AAF6 AB5B-AB5F AB69-AB6B ABEC-ABED FB1E
    FE20-FE2F FF3E FF40 FF70 FF9E-FF9F FFE3 102E0 10780-10785 10787-107B0 107B2-107BA 10A38-10A3A 10A3F
    10AE5-10AE6 10D22-10D27 10D4E 10D69-10D6D 10EFD-10EFF 10F46-10F50 10F82-10F85 11046 11070 110B9-110BA
    11133-11134 11173 111C0 111CA-111CC 11235-11236 112E9-112EA 1133B-1133C 1134D 11366-1136C 11370-11374
    113CE-113D0 113D2-113D3 113E1-113E2 11442 11446 114C2-114C3 115BF-115C0 1163F 116B6-116B7 1172B 11839-1183A
    1193D-1193E 11943 119E0 11A34 11A47 11A99 11C3F 11D42 11D44-11D45 11D97 11F41-11F42 11F5A 13447-13455 1612F
    16AF0-16AF4 16B30-16B36 16D6B-16D6C 16F8F-16F9F 16FF0-16FF1 1AFF0-1AFF3 1AFF5-1AFFB 1AFFD-1AFFE 1CF00-1CF2D
    1CF30-1CF46 1D167-1D169 1D16D-1D172 1D17B-1D182 1D185-1D18B 1D1AA-1D1AD 1E030-1E06D 1E130-1E136 1E2AE
    1E2EC-1E2EF 1E5EE-1E5EF 1E8D0-1E8D6 1E944-1E946 1E948-1E94A
"""
"""Characters with the property Diacritic."""


_FOLDED_COUNT_MAX: Final = 10_000
"""Characters whose folding is cached."""
_KNOWN_COUNT_MAX: Final = 20_000
_KNOWN_LENGTH_MAX: Final = 40
"""Words whose terms are cached, and the length of the longest: most texts share words."""
_PIECE_LENGTH: Final = 100_000
"""Characters of a text that are divided into words at once, to bound memory."""


@cache
def analyzer(language: str, version: int = UNICODE_VERSION) -> Analyzer:
    """Return the analyzer of a language, as `language_of` names it, in an index of a version."""
    return Analyzer(language, version)


class Analyzer:
    """Divides texts of one language into terms."""

    __slots__ = ("_as_written", "_in_lower_case", "_known", "_stem", "_stop_words", "folded", "without_marks")

    def __init__(self, language: str, version: int) -> None:
        is_ascii = version < UNICODE_VERSION
        self.folded: Callable[[str], str] = (
            _ascii_folded if is_ascii else partial(folded, turkish=True) if language == "turkish" else folded
        )
        """The function that folds a text to lower case."""
        self.without_marks: Callable[[str], str] = str if is_ascii else without_marks
        """The function that removes the marks that comparisons ignore."""
        self._stop_words = stop_words(language)
        self._stem = _stemmer(language)
        delimiter = _delimiter(with_apostrophe=language != "english", is_ascii=is_ascii)
        lower = _ascii_folded if is_ascii else _turkish_lower if language == "turkish" else _lower
        self._in_lower_case = _Table(lambda piece: " " if delimiter.match(piece) else lower(piece))
        self._as_written = _Table(lambda piece: " " if delimiter.match(piece) else piece)
        self._known: dict[str, str] = {"": ""}

    def counts(self, text: str, count_max: int = maxsize) -> Counter[str]:
        """Return the number of times that each term occurs in a text. Only some terms are counted if there are more
        than `count_max`."""
        counted: Counter[str] = Counter()
        known = self._known
        for words in _words(text.translate(self._in_lower_case)):
            for word, count in Counter(words).items():
                term = known.get(word)
                if term is None:
                    term = self._remembered(word)
                if term:
                    counted[term] += count
            if len(counted) > count_max:
                break
        return counted

    def terms(self, text: str, *, with_case: bool, with_marks: bool) -> set[str]:
        """Return the terms of a text, with their case (`with_case`) and their marks (`with_marks`) if requested."""
        if not with_case and not with_marks:
            return set(self.counts(text))
        made = set()
        for words in _words(text.translate(self._as_written if with_case else self._in_lower_case)):
            for word in set(words):
                if self.folded(word) not in self._stop_words:
                    stem = self._stem(word)
                    made.add(stem if with_marks else self.without_marks(stem))
        return made - {""}

    def _remembered(self, word: str) -> str:
        """The cached term of a word in lower case; empty for a stop word."""
        term = "" if not word or word in self._stop_words else self.without_marks(self._stem(word))
        if len(word) <= _KNOWN_LENGTH_MAX:
            if len(self._known) >= _KNOWN_COUNT_MAX:
                self._known.clear()
            self._known[word] = term
        return term


def _words(text: str) -> Iterator[list[str]]:
    """Yield lists of the words between spaces, a bounded number at a time. A word may be empty."""
    start = 0
    while len(text) - start > _PIECE_LENGTH:
        end = text.find(" ", start + _PIECE_LENGTH)
        if end < 0:
            break
        yield text[start:end].split(" ")
        start = end + 1
    yield text[start:].split(" ")


def stemmer_version() -> str:
    """Return the version of the stemmers. The terms in an index depend on it."""
    from Stemmer import version

    return str(version())


def _stemmer(language: str) -> Callable[[str], str]:
    if language == NONE:
        return lambda word: word
    from Stemmer import Stemmer

    stem: Callable[[str], str] = Stemmer(language, 0).stemWord
    return stem


@cache
def _delimiter(*, with_apostrophe: bool, is_ascii: bool) -> re.Pattern[str]:
    exception = ("" if with_apostrophe else "(?!')") + ("(?=[\\x00-\\x7f])" if is_ascii else "")
    return re.compile(f"{exception}[{character_class(DELIMITERS)}]")


def _ascii_folded(text: str) -> str:
    """A text with its ASCII letters in lower case."""
    return text.lower() if text.isascii() else text.translate(_ASCII)


def folded(text: str, *, turkish: bool = False) -> str:
    """Return a text in lower case."""
    if turkish:
        return text.translate(_TURKISH)
    return text.lower() if text.isascii() else text.translate(_LOWER)


def without_marks(text: str) -> str:
    """Return a text without diacritical marks."""
    if text.isascii() and "^" not in text and "`" not in text:
        return text
    return text.translate(_UNMARKED)


class _Table(dict[int, str]):
    """A table for `str.translate` that adds characters as they occur."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[str], str]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, code: int) -> str:
        if len(self) >= _FOLDED_COUNT_MAX:
            self.clear()
        made = self[code] = self._make(chr(code))
        return made


def _lower(character: str) -> str:
    for made in (character.casefold(), character.lower()):
        if len(made) == 1:
            return made
    return character


def _turkish_lower(character: str) -> str:
    return {"I": "ı", "İ": "i"}.get(character) or _lower(character)


def _unmarked(character: str) -> str:
    pieces = normalize("NFD", character)
    return normalize("NFC", "".join([piece for piece in pieces if not _mark().match(piece)]))


@cache
def _mark() -> re.Pattern[str]:
    return re.compile(f"[{character_class(DIACRITICS)}]")


_ASCII: Final = {code: code + 32 for code in range(65, 91)}
_LOWER: Final = _Table(_lower)
_TURKISH: Final = _Table(_turkish_lower)
_UNMARKED: Final = _Table(_unmarked)
