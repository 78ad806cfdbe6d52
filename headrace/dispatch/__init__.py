"""From a message's body to a command's reply: the engine, requests, arguments, sessions, transactions, waits.

Privileges are checked in one place, `Engine.command`, and only with `--auth`: first that a user has logged in, then,
after the check of the fields, the privileges. A command without `requires` is a `TypeError` at import. Cursors
remember their user and what opening them required, which each getMore checks again. Sessions are identified by a
digest of `lsid.id` and the user (`sessions.py`), so that no user reaches another's transactions. A failed login takes
the same steps as a successful one, with invented credentials for an unknown user.
"""
