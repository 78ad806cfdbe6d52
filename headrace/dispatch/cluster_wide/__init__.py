"""Rules for every client: blocks of writes, the default time limit of reads, and query settings."""
