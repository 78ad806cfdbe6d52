"""Indexes: the keys of documents, their entries in the tables, and the upgrade of older directories.

An entry is written with its document, in the same KV transaction or overlay. An index notes the *traits* of its
documents: the paths at which one has had an array, and whether a key was cut to LMDB's length. Traits only grow. They
are part of the catalog, so that a plan knows the traits of all entries that it reads. With a collation, strings are
stored as ICU's sort keys, which depend on ICU's version. The version is stored with the index, and a new version
rebuilds the index.
"""
