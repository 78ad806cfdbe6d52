"""Every limit, with its reason. A client that exceeds one gets MongoDB's error.

Sizes are in bytes, and times in the unit of the name. If a parameter or a command line option can change a limit, the
value here is the default.
"""

from __future__ import annotations

from typing import Final

# Limits that MongoDB sets for clients. Drivers read the first three from `hello`.
DOCUMENT_BYTES_MAX: Final = 16 * 1024 * 1024
MESSAGE_BYTES_MAX: Final = 48_000_000
WRITE_BATCH_COUNT_MAX: Final = 100_000
INTERNAL_DOCUMENT_BYTES_MAX: Final = (
    DOCUMENT_BYTES_MAX + 16 * 1024
)  # an update's entry, an event: the headroom that MongoDB has, too
NESTING_MAX: Final = 180  # levels of a client's document; MongoDB reserves 20 of its 200 levels for itself
NAMESPACE_BYTES_MAX: Final = 255  # "database.collection"
DATABASE_NAME_BYTES_MAX: Final = 63
INDEX_COUNT_MAX: Final = 64  # indexes of a collection
INDEX_FIELD_COUNT_MAX: Final = 32  # fields of an index, as in MongoDB
VIOLATION_COUNT_MAX: Final = 1000  # duplicate keys that collMod lists: far from 16 MiB
SEARCH_LENGTH_MAX: Final = 256 * 1024  # characters of a $text's search, which is parsed without a pause
SEARCH_TERM_COUNT_MAX: Final = 10_000  # terms or phrases of a search: each has a range of keys, and 2 KB of a plan
WILDCARD_ARRAYS_MAX: Final = 200  # paths of a wildcard index that have had arrays; beyond, any path may
ARRAY_PADDING_MAX: Final = 1_500_000  # the largest index past the end of an array that an update may set
SORT_FIELD_COUNT_MAX: Final = 32
DENSIFY_COUNT_MAX: Final = 500_000  # documents that $densify may generate: internalQueryMaxAllowedDensifyDocs
VIEW_DEPTH_MAX: Final = 20  # views over views
PATH_COMPONENT_COUNT_MAX: Final = 200  # components of a dotted path: the deepest document that MongoDB allows
PIPELINE_STAGE_COUNT_MAX: Final = 1000  # internalPipelineLengthLimit
SUBPIPELINE_DEPTH_MAX: Final = 20  # nested pipelines of $lookup and the like: internalMaxSubPipelineViewDepth
RECURSION_DEPTH_MAX: Final = 5000  # nested calls in Python: two per stage, some 20 per level of a document
KEY_NESTING_MAX: Final = 200  # levels of a token's key: a key of only array bytes must not exhaust the stack

# Clients.
CLIENT_METADATA_BYTES_MAX: Final = 512  # size of hello's `client` document, as in MongoDB
APPLICATION_NAME_BYTES_MAX: Final = 128  # size of the application's name in it, as in MongoDB
LOGIN_DELAY_MS: Final = 100  # delay of the answer to a failed login: some ten guesses a second per connection
SASL_BYTES_MAX: Final = 16 * 1024  # one message of a login; a name and two nonces take some hundred
LISTEN_BACKLOG: Final = 4096  # connections the kernel queues until they are accepted; its own bound is lower
CONNECTION_BYTES_FREE: Final = 64 * 1024  # a connection's pending data that is not counted: most have less
WRITE_BUFFER_BYTES_MAX: Final = (
    1024 * 1024
)  # replies a client has not read; above that they count, and it is not read from
READ_AHEAD_BYTES_MAX: Final = 2 * MESSAGE_BYTES_MAX  # data that a client may send ahead while its command waits
REPLY_ID_MAX: Final = 2**31 - 1  # the highest reply id of a connection, an int32; then ids begin again at 0
COLLECTION_SECONDS: Final = 0.25  # between two checks for garbage
COLLECTION_PASS_COUNT_MAX: Final = 4  # passes over young objects (some 20,000) after which garbage is always collected
COLLECTION_PASS_COUNT_LONG: Final = 8  # passes after which a collection would block clients for up to 25 ms
COLLECTION_SECONDS_MAX: Final = 60  # between two collections, however busy the server is
QUIET_SECONDS: Final = 1.5  # time without a command after which the server is quiet
THAW_SECONDS: Final = 600  # between two collections of old objects, too, on a quiet server
THAW_SECONDS_MAX: Final = 3600  # and on any server
IDLE_SECONDS: Final = 5.0  # time with fewer than IDLE_BYTES from all clients after which the server is idle
IDLE_BYTES: Final = 16 * 1024  # monitors send some hundred bytes each ten seconds
IDLE_GROWTH_BYTES: Final = 16 * 1024 * 1024  # growth of an idle server's memory after which memory is returned again
FREED_BYTES_MAX: Final = 128 * 1024 * 1024  # freed memory at the end of the heap that a busy process keeps
BACKUP_STOP_SECONDS: Final = 10  # time for the backup to ship the rest after the server has ended
BACKUP_PAUSE_SECONDS_MAX: Final = 60.0  # the longest pause before an ended backup is restarted, first 1 s
STOP_SECONDS_MAX: Final = 30  # time for the received writes at the end; then the server stops without them
WRITER_STALL_SECONDS_MAX: Final = 60  # after a longer commit the server ends, because it will not finish
HEALTH_STALL_SECONDS: Final = 10  # a commit that takes longer makes `/healthz` fail
SCRAPE_SECONDS: Final = 10  # the duration of a connection to `--metricsPort`
SCRAPE_BYTES_MAX: Final = 8192  # size of a request to it
SCRAPE_SCOPE_COUNT_MAX: Final = 100  # scopes whose lag is shown: a monitor stores a series per scope
WOKEN_COUNT_MAX: Final = 64  # waiting commands that one iteration of the loop runs again: about a millisecond
LOG_LINE_COUNT_MAX: Final = 1024  # lines of the log that `getLog` shows, as many as mongod has
LOG_LINE_LENGTH_MAX: Final = 1024  # characters of such a line, so that all lines fit into a reply
LOG_FRAME_COUNT_MAX: Final = 12  # innermost frames of a logged failure: a recursion has a thousand equal frames
LOG_TEXT_LENGTH_MAX: Final = 500  # characters of a client's text in a log line
CONNECT_COUNT_MAX: Final = 16  # connections that one iteration of the loop accepts and begins to serve
ACCEPT_RETRY_SECONDS: Final = 1.0  # until the listener checks for free descriptors again
DESCRIPTOR_RESERVE: Final = 16  # descriptors reserved for the data file, the log and temporary files
HANDSHAKE_SECONDS: Final = 10.0  # from the beginning of a connection to the end of its TLS handshake
CERTIFICATE_WARNING_DAYS: Final = 30  # warn this long before the server's certificate expires, as mongod does
HANDSHAKE_CLOSE_SECONDS: Final = 1.0  # for a client's answer to the end of the TLS session
AUDIT_EVENT_COUNT_MAX: Final = 10_000  # audit events that wait to be written: some megabytes; others are dropped
AUDIT_CLOSE_SECONDS: Final = 5.0  # for writing these at the end of the server
REPEATED_LOG_SECONDS: Final = 10.0  # between two equal log lines that clients can cause as often as they like
KEEPALIVE_SECONDS_MAX: Final = 300  # time without data before the kernel probes a client, as on MongoDB
KEEPALIVE_ANSWER_SECONDS_MAX: Final = 10  # between probes: after nine without an answer the connection is closed
CONNECTION_COUNT_MAX: Final = 65536  # the available connections in serverStatus; the operating system's limit is lower
CLOCK_SKEW_SECONDS_MAX: Final = 1  # how far a client's time may be ahead of the clock; the oplog's may be, too
DECODED_BYTES_MAX: Final = 256 * 1024  # a longer message is opened and decoded in a turn of its own
PARSED_UPDATE_COUNT_MAX: Final = 1024  # memoized parsed updates; beyond, the memo is cleared
PARSED_UPDATE_BYTES_MAX: Final = 1024  # and the size of one: larger ones hardly repeat
VALIDATION_DETAIL_BYTES_MAX: Final = 12 * 1024 * 1024  # size of `errInfo.details` in one reply, as in mongod
VALIDATION_VALUES_MAX: Final = 10  # values of one field that `errInfo.details` shows, as in mongod
CAPPED_PIECE_COUNT: Final = 64  # documents of a capped collection that are measured or removed without a tick
ID_LOOKUP_COUNT_MAX: Final = 1000  # values of an $in on `_id` that are looked up one by one; more are found by a scan

# Cursors.
FIRST_BATCH_COUNT: Final = 101  # documents in a first batch when the client names no size
BATCH_BYTES_MAX: Final = DOCUMENT_BYTES_MAX  # documents in one reply
ARROW_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 64 * 1024  # an Arrow batch in one reply, with room for the other fields
CURSOR_IDLE_MS_MAX: Final = 10 * 60 * 1000  # an unread cursor is closed after MongoDB's ten minutes
DISTINCT_VALUE_COUNT: Final = 10_000  # values that a distinct by index remembers if documents have arrays: 1 MB
DEFINITION_BYTES_FREE: Final = 4 * 1024  # of a command that creates or changes a collection, a view or indexes
DEFINITIONS_SHARE: Final = 1 / 40  # of the memory limit: BSON of long definitions, ten times as large once decoded
VIEW_CHUNK_COUNT: Final = 64  # documents or entries that a scan reads from a view between two checks of the time
BUILD_COUNT: Final = 500  # entries that a build makes at once, one per document and index: some 5 ms
BUILD_BYTES: Final = 32 * 1024  # and the size of the documents, per index: arrays have a key per 8 bytes
BUILD_ENTRY_COUNT: Final = 1000  # entries that a build puts at once for one document: each may change a page of its own
VIEW_CHUNK_BYTES: Final = 1024 * 1024  # and their size
COLUMN_BYTES: Final = 64 * 1024  # size of documents read as columns between two checks of the time: 1 ms
DECODED_COUNT: Final = 128  # documents that a scan decodes as a whole before it makes a pattern for its fields: 0.4 ms
MEMORY_SHARE_DEFAULT: Final = 0.25  # of the machine's: Python's objects take several times the counted bytes
MEMORY_BYTES_LEAST: Final = 64 * 1024 * 1024  # the lowest --memoryLimit: a message of the greatest length must fit
MEMORY_BYTES_MIN: Final = 256 * 1024 * 1024  # the lowest default limit: a few operations of MongoDB's maximum size
MEMORY_EXCEEDED_SHARE: Final = 9 / 8  # resident memory over the limit at which the youngest long command ends
VERSION_BYTES: Final = 256  # counted per old value of a key or write of a transaction, besides its bytes
SHOWN_COMMAND_BYTES: Final = 2048  # a cursor's command in `$currentOp`; of a longer one only the name is shown
CURSOR_BYTES: Final = 16 * 1024  # counted per open cursor, besides the data that it has read ahead
STAGE_BYTES_MAX: Final = 100 * 1024 * 1024  # size of a sort, a group or another blocking stage, as in MongoDB
EXPRESSION_BYTES_MAX: Final = STAGE_BYTES_MAX  # size of a value that an expression or `$lookup` makes
# The documents that join with one document: internalLookupStageIntermediateDocumentMaxSizeBytes.
LOOKUP_BYTES_MAX: Final = 100 * 1024 * 1024
TEXT_BYTES_MAX: Final = 16 * 1024 * 1024 - 1  # of a text in an expression, in UTF-8, as in MongoDB
ACCUMULATOR_BYTES_MAX: Final = 100 * 1024 * 1024  # one accumulator of one group: internalQueryMaxPushBytes
SPILL_BLOCK_BYTES: Final = 64 * 1024  # records that are written to a temporary file at once; a group gathers 16 blocks
COMPACTION_KEY_COUNT: Final = 20_000  # changed keys in memory while a data file is compacted: some 4 MB
SNAPSHOT_COPY_COUNT: Final = 4  # copies of the data file that backups of other machines may read at the same time
SPILL_DISK_FREE_BYTES_MIN: Final = 500 * 1024 * 1024  # disk space reserved for writes, as in MongoDB
CONSTANT_LENGTH_MAX: Final = 10_000  # elements or characters of a constant that is computed once for all documents
EXPRESSION_ARRAY_LENGTH_MAX: Final = 4_000_000  # elements that $range may make: about MongoDB's limit of 100 MB
ARROW_ROW_COUNT_MAX: Final = 1 << 30  # rows that a client may request in one Arrow batch: its length is an int32
ARROW_SLICE_COUNT_MAX: Final = 1 << 16  # slices of events; more than Spark has tasks
AWAIT_MS_DEFAULT: Final = 1000  # how long a getMore on a tailing cursor waits by default
AWAIT_MS_MAX: Final = 2**31 - 1

# Change streams.
UNREAD_ENTRY_COUNT_MAX: Final = 8192  # entries that a feed holds until it builds their events
UNREAD_BYTES_MAX: Final = 32 * 1024 * 1024
UNREAD_ENTRY_BYTES: Final = 1024  # counted per entry besides its BSON: parsed fields, heads of events
COUNTED_STEP_BYTES: Final = 256 * 1024  # growth of a feed after which its account is updated
FEED_EVENT_COUNT_MAX: Final = 8192  # built events that are held for streams with the same share key
FEED_BYTES_MAX: Final = 64 * 1024 * 1024  # and their size; up to twice what remains after the oldest are dropped
FEED_MS: Final = (
    10_000  # how long entries and events are stored in any case, up to twice; slower watchers read the oplog
)
SCAN_ENTRY_COUNT_MAX: Final = 20_000  # entries that one getMore may read, so that other clients get a turn
LAG_MS: Final = 2.0  # a lagging stream's batch that took longer lets a reader process read the next one
SCAN_MS_MAX: Final = 8.0  # and the time of one getMore: about a turn, and long compared with a getMore's cost
DOCUMENT_SECONDS_MAX: Final = 0.18  # CPU time of one stage, filter or update for one document; then error 50
MOVED_DOCUMENT_SECONDS: Final = 0.04  # the same; then a reader process runs the command, if one can
MOVED_ARRAY_LENGTH: Final = 1_000_000  # elements made in one step, 30 ms: a longer array is left to a reader, too
MOVED_CHUNK_BYTES: Final = 4 * 1024 * 1024  # documents read at once, 30 ms to decode: more are left to a reader, too
FEED_MS_MAX: Final = 5.0  # how long events are built at once for caught-up streams
FEED_BATCH_COUNT_MAX: Final = 16  # encoded batches that a feed holds for watchers with the same request
FEED_BATCH_BYTES_MAX: Final = 1024 * 1024  # and the size of events in one; a larger batch is held alone
NAMESPACE_MEMO_COUNT_MAX: Final = 10_000  # memoized parsed namespaces of events; beyond, the memo is cleared
HEAD_COUNT_MAX: Final = 10_000  # memoized heads of entries (collections times operations); beyond, the memo is cleared
EVENT_SPLIT_BYTES: Final = INTERNAL_DOCUMENT_BYTES_MAX - 8 * 1024  # with its token; a larger event is sent in fragments

# Defaults of the oplog.
OPLOG_DISK_SHARE_DEFAULT: Final = 0.05
OPLOG_BYTES_MIN: Final = 1024**3
OPLOG_DISK_SHARE_MAX: Final = 0.25  # used if the disk is too small for OPLOG_BYTES_MIN
NOOP_INTERVAL_MS: Final = 10_000  # the interval of the "periodic noop" in a quiet oplog, as in mongod
RETENTION_PACE_MAX: Final = 2  # pace at which the retention clock follows a wall clock that jumped ahead

# Storage.
MAP_BYTES: Final = 1024**4  # address space of the data file, which is sparse: --mapSize; full, writes are refused
KEY_BYTES_MAX: Final = 500  # LMDB's keys hold 511; 11 are reserved for the number of a collection or index
CHECK_PROBLEM_COUNT_MAX: Final = 1000  # reported problems of a data directory; a summary counts all
GROUP_SECONDS: Final = 0.010  # how long a group of writes runs before it is committed, so that other clients get a turn
USAGE_COUNT_MAX: Final = 10_000  # collections times kinds of commands in `top`: 5 KiB each at most
COMMIT_COMMAND_COUNT_MAX: Final = 1024  # commands in one write transaction, so that the first does not wait for all
CONVERT_BYTES: Final = 16 * 1024 * 1024  # values that get checksums in one transaction of an upgrade
CONVERT_COUNT: Final = 50_000  # and their number: a few milliseconds per tenth of a second
COUNT_COUNT: Final = 5000  # documents that are counted at once: a millisecond
TRANSACTION_COUNT_COUNT: Final = 512  # and in a client's transaction, which looks up each document
ERROR_BYTES_MAX: Final = 1024 * 1024  # messages in a reply's writeErrors, as in MongoDB: later messages are empty
INDEX_KEY_COUNT_MAX: Final = 10_000  # keys of one document in all indexes: 0.25 s at worst (MongoDB: 100,000)
BUCKET_BYTES_MAX: Final = 125 * 1024  # uncompressed measurements in a time series' bucket
BUCKET_MEASUREMENT_COUNT_MAX: Final = 1000  # and their number: MongoDB's limits
MEASUREMENT_BYTES_MAX: Final = 4 * 1024 * 1024  # a longer measurement of a time series is refused, as by MongoDB
INSERT_COUNT: Final = 500  # documents that one command inserts between two checks of the time: a few ms
KEYS_BYTES: Final = 8 * 1024  # a longer document may take a turn to make its index keys
BATCH_ENTRY_COUNT_MAX: Final = 8192  # index entries of documents that are inserted at once: some milliseconds
INDEXED_INSERT_BYTES: Final = 128 * 1024  # size of documents that are inserted at once if there are indexes, likewise
RECENT_ROW_COUNT_MAX: Final = 1_000_000  # index rows of long documents that a check remembers before the next document
INSERT_BYTES: Final = 1024 * 1024  # size of documents that one command inserts between two checks of the time
PRUNE_COUNT_MAX: Final = 2000  # rows removed by one background transaction: writes wait for a few milliseconds
PRUNE_ROUND_COUNT_MAX: Final = 20_000  # entries that are counted to find how many to prune: some milliseconds
SESSIONS_SECONDS: Final = 60  # within which all session records are checked for unused ones
CLOCK_AHEAD_SECONDS: Final = 60  # cluster time ahead of the clock that is worth a warning at the start
STOPPED_SECONDS: Final = 10  # between two reads of the clock, due each second: the process was stopped
JUMP_SECONDS: Final = 600  # how long a forward jump of the clock must last before documents expire by it
APPLICATION_MESSAGE_LENGTH_MAX: Final = 16 * 1024  # a client's message for the audit log
PROFILE_BYTES: Final = 1024 * 1024  # size of a database's system.profile when the profiler creates it, as in MongoDB
PROFILE_COMMAND_BYTES_MAX: Final = 50 * 1024  # size of a command in it; of a longer command the beginning, as text
PROFILE_QUEUE_COUNT_MAX: Final = 10_000  # documents that wait to be stored; further ones are dropped
PROFILE_READ_BYTES_MAX: Final = 1024 * 1024  # size of a reply without a cursor that is read for its counts
PROFILE_STATEMENT_COUNT_MAX: Final = 100  # statements of one command that are shown
VALIDATE_LISTED_COUNT_MAX: Final = 1000  # records and rows listed in an answer of `validate`, which counts all of them
PLAN_CACHE_COUNT_MAX: Final = 200  # query shapes per collection with a remembered plan: some 2 KiB each
TTL_SECONDS: Final = 60  # between two rounds of the TTL monitor: ttlMonitorSleepSecs
TTL_COUNT_MAX: Final = 250  # documents that a TTL round reads before other clients get a turn

# Sessions.
SESSION_MINUTES: Final = 30  # logicalSessionTimeoutMinutes
SESSION_COUNT_MAX: Final = 1_000_000  # sessions with a stored record: maxSessions
ENDED_TRANSACTION_COUNT_MAX: Final = 10_000  # ended transactions whose outcome is remembered: 5 KB each
OPEN_TRANSACTION_BYTES: Final = 8 * 1024  # counted per open transaction of a client, besides its writes
READER_IDLE_SECONDS: Final = 60  # after which an idle reader process ends: starting another takes half a second
READER_START_SECONDS_MAX: Final = 60  # for a reader process to start, on any machine
READER_PATIENCE_SECONDS: Final = 1  # CPU time that a reader has to end a command: a document takes less
READER_SCAN_COUNT: Final = 100_000  # documents that a reader examines for a write at once: 0.3 s
READER_COUNT_MAX: Final = 8192  # states of the store that reads hold at the same time: 64 bytes of a table each
SNAPSHOT_SECONDS_MAX: Final = 3600  # how long a read may hold a state, because commits cannot reuse its pages
SNAPSHOT_GROWTH_BYTES_MAX: Final = 16 * 1024**3  # and how far the data file may grow meanwhile
SNAPSHOT_COUNT_MAX: Final = 64  # cluster times at which clients read; the oldest is released for a new one
TRANSACTION_SECONDS_MAX: Final = 60  # transactionLifetimeLimitSeconds
TRANSACTION_BYTES_MAX: Final = 64 * 1024 * 1024  # operations of one transaction, because its commit writes them at once
TRANSACTION_ENTRY_BYTES: Final = DOCUMENT_BYTES_MAX  # operations in one entry of the oplog; more make a chain
TRANSACTION_KEY_COUNT_MAX: Final = 100_000  # documents, `_id`s and index keys that one writes: 0.3 s of its commit

# Patterns.
PATTERN_BYTES_MAX: Final = 16384  # of a regular expression in UTF-8, as in MongoDB
PATTERN_STEPS_MAX: Final = 200_000  # how often PCRE2 may backtrack at one position of a text: MongoDB's
PATTERN_QUICK_STEPS_MAX: Final = 2000  # the same in a search that cannot pause: 10 µs for a position
PATTERN_QUICK_CHARACTERS_MAX: Final = 2048  # characters of a text that is searched without a pause: 20 ms at worst

# The pipeline.
BUCKET_COUNT_MAX: Final = 1000  # buckets of a mirror: a batch writes a file into each bucket that it touches
LAG_EVENT_COUNT_MAX: Final = 10_000  # events that a job's lag counts; beyond, it says "or more"
REDO_BYTES_MAX: Final = 4 * 1024 * 1024  # a document in the redo log of the sink `mongodb`: far from 16 MiB
SINK_WRITE_COUNT_MAX: Final = 1000  # writes that the sink `mongodb` sends in one message
PREFETCH_ROW_COUNT_MAX: Final = 1000  # rows of a micro-batch that the driver reads itself: a task costs more
PREFETCH_BYTES_MAX: Final = 4 * 1024 * 1024  # and their size: they travel with the plan
IDLE_WAIT_FACTOR: Final = 16  # waits of an idle stream on its server, in `awaitMs`: each look costs 5 ms of CPU
SHARED_IDLE_WAIT_FACTOR: Final = 4  # and of one of several servers, which are asked in turn while events of others wait
LOCAL_PING_MS_MAX: Final = 2000  # for a local server that is noted in its directory to answer
SINK_ROW_COUNT_MAX: Final = 5000  # rows that the sink `mongodb` has in memory at once
START_CHECK_SECONDS_MAX: Final = 5.0  # for a server to answer before a job starts: a person waits
HISTORY_WAIT_SECONDS_MAX: Final = 15.0  # until a quiet server's time passes a position: it writes a no-op every 10 s
ALERT_SECONDS_MAX: Final = 30.0  # for an alert's command; then it is killed, so that the next can begin
SINK_EXIT_SECONDS_MAX: Final = 20.0  # for a sink's batch when the process ends; otherwise it is repeated later
MERGED_ROW_COUNT_MAX: Final = 100_000  # rows of a micro-batch of several servers, by default
MERGED_PING_SECONDS_MAX: Final = 3.0  # after which one of several servers counts as down
PARTITION_COUNT_MAX: Final = 1000  # partitions of a batch: each is a task, which costs Spark some 10 ms
PARTITION_ROW_COUNT_MIN: Final = 5000  # rows of a batch for each partition by time: a task takes some 10 ms
EVENT_MARK_COUNT_MAX: Final = 10_000  # tokens requested by one command: about a megabyte
COMPACT_BYTES: Final = 8_000_000  # a file that a sink makes from small files: every hundredth batch waits for it
SQL_ROW_COUNT_MAX: Final = 500  # rows of a statement: databases limit the number of parameters, some to 1000
UPKEEP_BYTES_MAX: Final = 1_000_000_000  # small files that are joined between two batches: ten seconds or so
SPARK_CORE_COUNT_MAX: Final = 1024  # threads of a local session
UPKEEP_COMMIT_COUNT_MIN: Final = 100  # last versions of a table that are kept: deltalake makes a checkpoint as often
UPKEEP_SMALL_FILE_COUNT: Final = 8  # small files of a table that are worth a commit
TYPED_COLUMN_COUNT_MAX: Final = 1000  # columns of a typed table, nested ones included: readers of Parquet slow down
STRUCT_FIELD_COUNT_MAX: Final = 200  # fields added automatically to a typed table's object; with more it is a map
TYPED_DEPTH_MAX: Final = 12  # objects within objects that become columns: readers of Delta recurse
TYPED_SAMPLE_COUNT_MAX: Final = 1000  # documents, and items of an array, from which a schema is inferred: a second
COLUMN_NAME_LENGTH_MAX: Final = 120  # a typed table's column name, before a number that makes it unique
LAYOUT_FIELD_COUNT_MAX: Final = 200  # fields of a document that is decoded by its layout
LAYOUT_FAILURE_COUNT_MAX: Final = 8  # layouts that matched no further row, after which rows are decoded one by one
SNAPSHOT_READ_COUNT_MAX: Final = 20  # reads of a chunk at one cluster time, until that is after all acknowledged writes
SNAPSHOT_ROUND_COUNT_MAX: Final = 200  # changes of a document while it is read; a round takes milliseconds
ROW_COUNT_UNBOUNDED: Final = 1 << 31  # rows of a chunk of unknown size: the number to request
SNAPSHOT_RANGE_ROW_COUNT: Final = 50_000  # documents of a task that reads a range of a collection as of one time
SNAPSHOT_RANGE_COUNT_MAX: Final = 64  # such tasks, unless more partitions are requested
SNAPSHOT_CHUNK_BYTES: Final = 256 * 1024 * 1024  # a chunk, about, which a worker holds and Spark takes in one batch
SNAPSHOT_COLLECTION_COUNT_MAX: Final = 100  # collections with snapshots in a micro-batch: each commit takes 30 ms
FOLD_ROW_COUNT_MIN: Final = 20_000  # rows of a batch that tasks fold: two more rounds of tasks cost a second of CPU
FOLD_SLOT_BYTES_MAX: Final = 250_000_000  # a folding task's share of a table without buckets, which it may hold
FOLD_TASK_COUNT_MAX: Final = 64  # tasks that fold a batch: each writes a file
FOLD_TASK_COUNT_MIN: Final = 4  # if a session does not tell how many tasks it runs at once
REWRITTEN_BYTES_MAX: Final = 262_144  # small files whose rows each batch writes again together with its own
REWRITTEN_FILE_COUNT_MAX: Final = 50  # number of these small files: each costs some 0.3 ms to open
ROW_GROUP_BYTES: Final = 64_000_000  # rows in memory for a file that a sink writes anew
STATISTIC_CHARACTER_COUNT_MAX: Final = 100  # characters of a text in a file's statistics, which each commit contains
TABLE_WRITER_COUNT_MAX: Final = 4  # tables of several collections that are written at once: commits wait for the disk
TABLE_LOOK_COUNT_MAX: Final = 10  # collections whose tables' files are counted at a time: a table takes 3 ms
TABLE_LOOK_SECONDS: Final = 300  # between two searches for new tables of several collections: they list a store
OPEN_TABLE_COUNT_MAX: Final = 1000  # tables of several collections that stay open: each is some 100 KiB of its log
METRIC_COLLECTION_COUNT_MAX: Final = 1000  # collections with metrics of their own: a monitor stores each
DIFFERENCE_COUNT_MAX: Final = 10  # keys that `verify` lists per kind of difference
ROW_BATCH_BYTES_MAX: Final = 16 * 1024 * 1024  # events that a worker gathers into one Arrow batch
CLASS_ARCHIVE_SECONDS_MIN: Final = 86_400.0  # between two background attempts to make it: each takes half a minute
JVM_ARCHIVE_SECONDS_MAX: Final = 900.0  # for Spark's JVM to write its classes: some 10 s on an idle machine
JVM_START_SECONDS_MAX: Final = 120.0  # for Spark's JVM to be ready: some 5 s on an idle machine
TRACEBACK_LINE_COUNT_MAX: Final = 500  # lines that are held back to decide whether a traceback matters
LISTENER_SECONDS_MAX: Final = 10  # for Spark to report a job's last batch to its listener
WORKER_KILL_COUNT_MAX: Final = 5  # in a row: Spark notices one by one that its four daemons are gone
