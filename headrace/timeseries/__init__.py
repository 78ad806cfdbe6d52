"""Time series: measurements packed into bucket documents and unpacked, compressed by column; the buckets that a filter
needs.

Rule: pure functions of bytes and values. A bucket is an ordinary document of the collection `system.buckets.X`. `X` is
a view of that collection, whose only stage unpacks the buckets.
"""
