"""The language: match, update, projection, sort, expressions, stages. Pure functions over documents.

Everything is parsed once into closures: `parse_filter` returns a predicate, `parse_update` an update,
`parse_expression` an expression, `parse_pipeline` frozen stages. Each family of operators is a file with a sorted
table. Another table has the unsupported operators with their errors. Equality and order are defined once, in
`values/order.py`.

An update's oplog entry is MongoDB's `$v: 2` diff. Update operators record the diff (`update/walk.py`); for
pipelines it is computed by comparison (`diff.py`). The diff applied to the old document gives the new document.

A stage that collects documents counts their memory (`operation_memory.py`). Above 100 MB a sort writes runs to a file
(`sort.py`), and so does a group, which is then sorted by key (`stages/group_spill.py`).
"""
