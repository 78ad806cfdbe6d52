"""Messages about a connection string that cannot be used have no password in them."""

from __future__ import annotations

import pytest

from headrace.cli.main import main
from headrace.spark.mirror import main as mirror

SECRET = "CANARY"
LOGIN = f"root:{SECRET}@127.0.0.1:1"


@pytest.mark.parametrize(
    "words",
    [
        ["status", f"mongodbx://{LOGIN}/"],
        ["status", LOGIN],
        ["status", "--uri", f"mongodb://{LOGIN}/"],
        ["status", f"mongodb://{LOGIN}/", f"mongodb://{LOGIN}/"],
        ["status", f"mongodb://root:{SECRET}/x@127.0.0.1:1/"],
        ["status", f"mongodb://root:{SECRET}:x@127.0.0.1:1/"],
        ["status", f"mongodb://root:{SECRET}%zz@127.0.0.1:1/"],
        [
            "status",
            f"mongodb://127.0.0.1:1/?tls=true&tlsCertificateKeyFile=/none&tlsCertificateKeyFilePassword={SECRET}",
        ],
        ["export", "shop.orders", "--uri", f"mongodb://{LOGIN}/"],
        ["export", "shop.orders", f"mongodb://{LOGIN}/"],
        ["tail", f"mongodb://{LOGIN}/", "shop", "more", f"mongodb://{LOGIN}/"],
        [f"mongodb://{LOGIN}/"],
    ],
    ids=str,
)
def test_the_command_line_quotes_no_password(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(words)
    except SystemExit as ended:
        status = int(str(ended.code))
    said = capsys.readouterr()
    assert status in (1, 2) and said.err and SECRET not in said.out + said.err


def test_a_mirror_quotes_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        mirror(["--url", f"mongodb://{LOGIN}/"])
    assert SECRET not in capsys.readouterr().err
