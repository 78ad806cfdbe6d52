"""Reader processes: long reads on other cores than the server's.

    server ──socket──▶ reader     {start}, then for each command {run: 7, leftMs, position, client} and the raw message;
                                  {kill: 7, isLate}, {close: a cursor's id}, {reopen: number base, files}
    server ◀─socket─── reader     {ready}, then {answer: 7, commit, cursor, count, work, metrics} and the raw reply

- A read begins in the server. When it has used up its first turn, the server gives it up, and it begins again in the
  least busy reader (`pool.py`). The reader is an engine without listener and writer over the same data file
  (`reader_process.py`, `store/reader_store.py`), so nothing is implemented twice.
- A write, a change stream far behind, and `validate` stay in the server, and let a reader do their long reads (`ask`).
- The server has checked the client's privileges. It forwards a reader's answer unchanged, after it has published the
  commit that was read.
- A cursor stays in the reader that opened it. The server's registry has a `ReaderCursor` for it.
- When a command is ended (its deadline, killOp, a client that leaves) the server answers at once. The reader has a
  second of CPU time to end the command, too, and is killed otherwise.
- After the data file is replaced (`store/compaction.py`), a reader opens the new file. Running commands read the old.
  If the file was replaced again meanwhile, the reader begins no command before the message about the newest file.
- A reader that dies loses its cursors (error 43). Its other commands begin again in another reader, once. A command
  that has lost two readers ends with error 175.
- Readers start when they are needed. They end after a minute without work, or with the server.
"""
