"""The shell: sockets, group commit, waiting and background jobs. The only package that awaits.

- **Writes** (`writer.py`, rules in `group_commit.py`). The writes that arrive in one iteration of the loop run in
  one LMDB transaction: commands change documents and stage their oplog entries, `Store.prepare` puts the entries into
  the transaction, `sync` commits it (the only slow step), `publish` notifies the listeners, then clients are answered.
  A command that fails with a `CommandError` has changed nothing. Any other exception abandons the transaction, and the
  other writes run again. A group runs for 10 ms, and one paused write continues at its end. While commits take less
  than 3 ms they are done on the loop, otherwise in a thread. A store that cannot begin or publish a transaction, or a
  commit that takes a minute, ends the process with status 14. A restart has everything that was acknowledged.
- **Turns** (`scheduler.py`). Each iteration of the loop resumes one paused command, so that a short command waits for
  one turn of 5 ms at most. A client that sends many messages at once is served in slices of 5 ms.
- **Reads** hold one state for an hour, or until the file has grown by 16 GiB, and then end with error 239. A write has
  a newer view after each pause, and reads a document again before it changes it. A paused write is committed with its
  group, as on MongoDB.
- **TLS** (`tls/`). A connection's first byte tells TLS from plain, so that one port takes clients with and without it.
  The event loop decrypts and encrypts. None of its iterations begins more than one handshake, which has ten seconds.
- **Memory** (`measured_memory.py`). Where long commands pause, the memory of the process is measured, which includes
  memory that no account counts.
"""
