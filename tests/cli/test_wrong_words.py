"""A command line that is wrong gets one line, which says what is wrong and what is meant."""

from __future__ import annotations

import pytest

from headrace.cli.main import main

HINTS: list[tuple[str, str]] = [
    ("serve --dbpth x", "headrace serve: there is no --dbpth; did you mean --dbpath? (headrace serve --help)"),
    ("serve --dbPath=x", "headrace serve: there is no --dbPath; did you mean --dbpath? (headrace serve --help)"),
    ("serve --zzzzzz", "headrace serve: there is no --zzzzzz (headrace serve --help)"),
    ("serve data", "headrace serve: too many arguments: 'data'; did you mean --dbpath data? (headrace serve --help)"),
    ("serve --port x", "headrace serve: argument --port: 'x' is not a port number (headrace serve --help)"),
    ("tail --fromm 1h", "headrace tail: there is no --fromm; did you mean --from? (headrace tail --help)"),
    ("import --colunmsHaveTypes", "headrace import: there is no --colunmsHaveTypes; did you mean --columnsHaveTypes? "),
    ("pipeline run --onc x.toml", "headrace pipeline run: there is no --onc; did you mean --once? "),
    ("pipeline rn x.toml", "headrace pipeline: there is no action 'rn'; did you mean 'run'? "),
    ("exprt shop", "headrace: there is no command 'exprt'; did you mean 'export'? (headrace --help)"),
    ("--verson", "headrace: there is no --verson; did you mean --version? (headrace --help)"),
    ("user add data --rol root", "headrace user add: there is no --rol; did you mean --role? "),
    ("export --format xml", "headrace export: argument --format: 'xml' is none of bson, csv, json"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message"), HINTS)
def test_a_wrong_word_is_one_line_and_suggests_the_nearest(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    printed = capsys.readouterr().err
    assert ended.value.code == 2 and printed.count("\n") == 1
    assert printed.startswith(message)


@pytest.mark.parametrize(
    "words",
    ["tail localhost:27017", "status localhost:27017", "export localhost:27017", "import localhost:27017 dump",
     "tail db.example:27017", "tail 10.0.0.7:27018/?tls=true", "tail ann:secret@db.example:27017", "oplog [::1]:27017",
     "top localhost:27017"],
)  # fmt: skip
def test_an_address_without_its_scheme_is_no_database(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    address = words.split()[1]
    try:
        status = main(words.split())
    except SystemExit as ended:
        status = int(ended.code or 0)
    printed = capsys.readouterr().err
    assert status == 2 and printed.count("\n") == 1
    shown = address.replace("ann:secret@", "***@")
    assert f"mongodb:// is missing: mongodb://{shown}" in printed


def test_a_collection_with_a_colon_and_a_number_is_no_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tail", "mongodb://localhost:1/?serverSelectionTimeoutMS=1", "shop.events:2024"]) == 4
    assert main(["import", "shop.events:2024", "/no/such/file"]) == 2
    assert "missing" not in capsys.readouterr().err
