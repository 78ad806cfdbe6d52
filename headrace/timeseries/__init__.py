"""Time series: buckets of measurements as documents and back, compressed by column; the buckets that a filter needs.

Rule: pure functions of bytes and values. A bucket is an ordinary document of the collection `system.buckets.X`, and `X`
is a view of it, whose one stage unpacks the buckets.
"""
