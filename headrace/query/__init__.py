"""The language: match, update, projection, sort, expressions, stages. Pure functions over documents.

Everything is parsed once into closures: `parse_filter` returns a predicate, `parse_update` an update,
`parse_expression` an expression, `parse_pipeline` frozen stages. Each family of operators is a file with a sorted
table. Unsupported ones are in a table, too, with their errors. Equality and order are defined once, in
`values/order.py`.

An update's oplog entry is MongoDB's `$v: 2` diff, made by the operators (`update/diff_log.py`) or, for pipelines, by
comparison (`diff.py`). Applied to the document before, it gives the document after.

A stage that collects documents counts them (`operation_memory.py`). Above 100 MB a sort writes runs to a file
(`external_sort.py`), and a group writes partitions of its keys (`stages/group_spill.py`).
"""
