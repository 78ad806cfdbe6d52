"""The store: documents, indexes, catalog, pre-images and the oplog, changed in one key-value transaction.

`store.py` describes a write, `view.py` the tables, `state.py` the state that a commit publishes, `indexes/` the keys.

- **LMDB** is one memory-mapped copy-on-write B+tree file: crash-safe without a recovery log. It has one writer at a
  time, which is why the server commits in groups. The size of the map is declared ahead (`--mapSize`), keys have at
  most 511 bytes (a longer `_id` gets a key of its first bytes and a digest), and the file does not shrink by itself.
- **One state.** `Store.publish` replaces the published `StoreState` by one assignment; `Store.begin_read` and
  `Store.state` always belong together. `Catalog`, `Collection`, `Index` and `IndexBuild` are immutable: a changed
  collection is another object with the same number. All readers of a state share one read transaction on its tables,
  which ends with the last of them. Only the writer needs the next record of a collection and the progress of a build,
  so neither is in the state.
- **Documents stay BSON bytes** from socket to disk to socket wherever no field of them is needed.
- **The oplog's index is made of runs.** A stream must not read entries outside its scope, but an index row per
  entry would cost every write another B-tree insert. Instead a run says that all entries from one position to another
  belong to one namespace. A batch of a thousand inserts adds one row. `View.entries_of` merges runs. The entries of
  commands belong to `<database>.$cmd`. Before each read of a stream, `pruned` shows whether it has lost entries.
- **Pruning** by time, size or number is a write of its own, in bounded pieces. The newest entry always stays, so that
  positions continue from it.
- **A client's transaction** touches no table before its commit. Its writes are in an overlay (`overlay.py`) with
  provisional numbers, and the keys that it writes are locked (`overlay.py`). So a commit has no conflicts
  (`transaction_commit.py`). A restart aborts open transactions.
"""
