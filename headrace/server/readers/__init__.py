"""Reader processes: long reads on other cores than the server's.

    server ──socket──▶ reader     {start}, then for each command {run: 7, leftMs, position, client} and the raw message;
                                  {kill: 7, isLate}, {close: a cursor's id}, {reopen: number base}
    server ◀─socket─── reader     {ready}, then {answer: 7, commit, cursor, count, work, metrics} and the raw reply

- A read begins in the server. When it has used its first turn up, it is given up there and begins again in a reader,
  the least busy one (`pool.py`). The reader is an engine without listener and writer over the same data file
  (`reader_process.py`, `store/reader_store.py`), so there is no second implementation of anything.
- A write, a change stream far behind, and `validate` go on in the server, and `ask` a reader for what is long to read.
- The server has checked who asks and what for. What a reader answers is sent on as it is, once the server has published
  the commit that was read.
- A cursor stays in the reader that has opened it; the server's registry has a `ReaderCursor` for it.
- Who ends a command (its deadline, killOp, a client that leaves) has the answer at once. The reader has a second to end
  it, too, by its CPU time, and is killed otherwise.
- Where the data file is replaced (`store/compaction.py`), a reader opens the new one. What it has begun reads the old.
- A reader that dies costs its cursors (error 43). The other commands that it ran begin again in another one, once;
  those that have lost two readers end with error 175.
- Readers are started when they are needed and end when they have been idle for a minute, or with the server.
"""
