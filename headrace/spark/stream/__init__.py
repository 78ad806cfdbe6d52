"""Following one server or many: offsets, how far a micro-batch reaches, the partitions of it, and reading one."""
