"""From a message's body to a command's reply: the engine, requests, arguments, sessions, transactions, waits.

`Engine.command` alone checks privileges, and only with `--auth`. It first requires a login, then checks the fields,
then the privileges. A command without `requires` is a `TypeError` at import. A cursor remembers its user and the
privileges that opening it required, and each getMore checks them again. A digest of `lsid.id` and the user identifies
a session (`sessions.py`), so no user reaches another user's transactions. A failed login takes the same steps as a
successful one, with invented credentials for an unknown user.
"""
