"""Following one server or several: offsets, the ends of micro-batches, their partitions, and how workers read them."""
