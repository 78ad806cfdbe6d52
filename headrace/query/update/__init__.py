"""Updates: parsed once, then applied to documents.

    update = parse_update({"$set": {"a": 1}})
    applied = update.apply({"_id": 1}, UpdateContext(now_ms=0, timestamp=Timestamp(1, 1)))
    applied.document, applied.change      # {"_id": 1, "a": 1}, Diff({"$v": 2, "diff": {"i": {"a": 1}}})

Pure functions: nothing here reads a clock, writes an oplog entry or reads a collection.
"""
