"""Indexes: the keys of documents, their entries in the tables, and those that older directories lack.

An entry is written with its document, in the same KV transaction or overlay. An index notes the *traits* of its
documents: the paths at which one has had an array, and whether a key was cut to LMDB's length. Traits only grow, and
are part of the catalog, so that a plan knows the traits of all entries that it reads. Strings of a collation are ICU's
sort keys, which depend on its version: the version is stored with the index, which is rebuilt when it changes.
"""
