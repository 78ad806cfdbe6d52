"""Every limit, with its reason; a client that exceeds one gets MongoDB's error.

Counts are of things, sizes in bytes, times in the unit of the name. Limits that a parameter or a command line option
can change have here what holds when it is not given.
"""

from __future__ import annotations

from typing import Final

# What MongoDB allows a client; drivers read the first three from `hello`.
DOCUMENT_BYTES_MAX: Final = 16 * 1024 * 1024
MESSAGE_BYTES_MAX: Final = 48_000_000
WRITE_BATCH_COUNT_MAX: Final = 100_000
INTERNAL_DOCUMENT_BYTES_MAX: Final = (
    DOCUMENT_BYTES_MAX + 16 * 1024
)  # an update's entry, an event: MongoDB's own head-room
NESTING_MAX: Final = 180  # a document a client stores; MongoDB reserves 20 of its 200 levels for its own wrapping
NAMESPACE_BYTES_MAX: Final = 255  # "database.collection"
DATABASE_NAME_BYTES_MAX: Final = 63
INDEX_COUNT_MAX: Final = 64  # indexes of a collection
INDEX_FIELD_COUNT_MAX: Final = 32  # fields of an index: MongoDB's
VIOLATION_COUNT_MAX: Final = 1000  # keys with several documents that collMod names: far from 16 MiB
SEARCH_LENGTH_MAX: Final = 256 * 1024  # characters of a $text's search, which is parsed without a pause
SEARCH_TERM_COUNT_MAX: Final = 10_000  # terms or phrases of a search: each has a range of keys, and 2 KB of a plan
WILDCARD_ARRAYS_MAX: Final = 200  # paths of a wildcard index that are known to have had arrays; beyond: any path may
ARRAY_PADDING_MAX: Final = 1_500_000  # the largest index past the end of an array that an update may set
SORT_FIELD_COUNT_MAX: Final = 32
DENSIFY_COUNT_MAX: Final = 500_000  # documents that $densify may generate: internalQueryMaxAllowedDensifyDocs
VIEW_DEPTH_MAX: Final = 20  # views over views
PATH_COMPONENT_COUNT_MAX: Final = 200  # of a dotted path: as deep as MongoDB lets any document be
PIPELINE_STAGE_COUNT_MAX: Final = 1000  # internalPipelineLengthLimit
SUBPIPELINE_DEPTH_MAX: Final = 20  # pipelines of $lookup and the like in each other: internalMaxSubPipelineViewDepth
RECURSION_DEPTH_MAX: Final = 5000  # calls of Python within each other: two for each stage, some 20 for a nested level
KEY_NESTING_MAX: Final = 200  # levels of a token's key: a key of array bytes alone must not exhaust the stack

# Clients.
CLIENT_METADATA_BYTES_MAX: Final = 512  # of the `client` document of hello: MongoDB's
APPLICATION_NAME_BYTES_MAX: Final = 128  # of the application's name in it: MongoDB's
LOGIN_DELAY_MS: Final = 100  # before a login that failed is answered: some ten guesses a second on a connection
SASL_BYTES_MAX: Final = 16 * 1024  # of one message of a login; a name and two nonces take some hundred
LISTEN_BACKLOG: Final = 4096  # connections the kernel holds before they are accepted; the kernel's own bound is lower
CONNECTION_BYTES_FREE: Final = 64 * 1024  # sent ahead or not read by a client before it counts: most never have as much
WRITE_BUFFER_BYTES_MAX: Final = (
    1024 * 1024
)  # replies a client has not read; above that they count, and it is not read from
READ_AHEAD_BYTES_MAX: Final = 2 * MESSAGE_BYTES_MAX  # what a client may send ahead while its command waits
REPLY_ID_MAX: Final = 2**31 - 1  # of a connection's replies, an int32 in their header; they begin again at 0
COLLECTION_SECONDS: Final = 0.25  # between two looks whether garbage is to be collected
COLLECTION_PASS_COUNT_MAX: Final = 4  # passes over young objects, some 20,000, after which it is collected in any case
COLLECTION_PASS_COUNT_LONG: Final = 8  # after which it would take up to 25 ms, while others wait
COLLECTION_SECONDS_MAX: Final = 60  # between two collections, however busy the server is
QUIET_SECONDS: Final = 1.5  # without a command, from which on the server is quiet
THAW_SECONDS: Final = 600  # between two collections that look at old objects, too, on a quiet server
THAW_SECONDS_MAX: Final = 3600  # and on any
IDLE_SECONDS: Final = 5.0  # with fewer than IDLE_BYTES from all clients, after which the server is idle
IDLE_BYTES: Final = 16 * 1024  # monitors send some hundred bytes each ten seconds
IDLE_GROWTH_BYTES: Final = 16 * 1024 * 1024  # by which an idle server's memory grows before it is returned again
FREED_BYTES_MAX: Final = 128 * 1024 * 1024  # at the end of the heap that stay with the process while it is busy
BACKUP_STOP_SECONDS: Final = 10  # for the backup to ship what is left, once the server has ended
BACKUP_PAUSE_SECONDS_MAX: Final = 60.0  # before a backup that has ended is started again: a second, then twice as long
STOP_SECONDS_MAX: Final = 30  # for the writes that have come; then the server stops without them
WRITER_STALL_SECONDS_MAX: Final = 60  # a commit that takes longer will not come: the server ends
HEALTH_STALL_SECONDS: Final = 10  # a commit that takes longer makes `/healthz` fail
SCRAPE_SECONDS: Final = 10  # from the beginning of a connection to `--metricsPort` to its end
SCRAPE_BYTES_MAX: Final = 8192  # of a request of theirs
SCRAPE_SCOPE_COUNT_MAX: Final = 100  # scopes whose lag is shown: a monitor stores a series of each
WOKEN_COUNT_MAX: Final = 64  # waiting commands run again in one turn of the loop: about a millisecond's worth
LOG_LINE_COUNT_MAX: Final = 1024  # lines of the log that `getLog` shows, as many as mongod has
LOG_LINE_LENGTH_MAX: Final = 1024  # characters of one of them; so all fit into a reply
LOG_FRAME_COUNT_MAX: Final = 12  # innermost frames of a logged failure: a recursion has a thousand that say the same
LOG_DISK_SECONDS: Final = 60  # between two lines that say that the disk is full
LOG_TEXT_LENGTH_MAX: Final = 500  # characters of a client's text in a line of the log
ACCEPT_SECONDS: Final = 0.002  # for accepting connections in one iteration of the loop
CONNECT_COUNT_MAX: Final = 16  # accepted connections that begin to be served in one iteration of the loop
ACCEPT_RETRY_SECONDS: Final = 1.0  # until the listener looks again whether there are descriptors
DESCRIPTOR_RESERVE: Final = 16  # descriptors that clients do not get: for the data file, the log, what spills to disk
HANDSHAKE_SECONDS: Final = 10.0  # from a connection's beginning to the end of its TLS handshake
CERTIFICATE_WARNING_DAYS: Final = 30  # before the server's certificate expires, as mongod warns
HANDSHAKE_BYTES_MAX: Final = 128 * 1024  # that a client may send before its handshake is over: chains have some 10 KB
AUDIT_EVENT_COUNT_MAX: Final = 10_000  # of the audit log that wait to be written: some megabytes; others are dropped
AUDIT_CLOSE_SECONDS: Final = 5.0  # for these at the end of the server
REPEATED_LOG_SECONDS: Final = 10.0  # between two lines of the log that strangers can cause as often as they like
KEEPALIVE_SECONDS_MAX: Final = 300  # without a byte, until the kernel asks whether a client is there: as on MongoDB
KEEPALIVE_ANSWER_SECONDS_MAX: Final = 10  # between such questions: after nine without an answer the client has gone
CONNECTION_COUNT_MAX: Final = 65536  # what serverStatus reports as available; the operating system's limit is lower
CLOCK_SKEW_SECONDS_MAX: Final = 1  # how far a client's time may be ahead of the clock, as the oplog's times may be
DECODED_BYTES_MAX: Final = 256 * 1024  # of a message; a longer one is opened and decoded in a turn of its own
PARSED_UPDATE_COUNT_MAX: Final = 1024  # parsed updates that are memoized; then all are forgotten
PARSED_UPDATE_BYTES_MAX: Final = 1024  # and the size of one: larger ones hardly come twice
VALIDATION_DETAIL_BYTES_MAX: Final = 12 * 1024 * 1024  # of `errInfo.details` in one reply, as mongod has it
CAPPED_PIECE_COUNT: Final = 64  # documents of a capped collection that are measured or removed without a tick
ID_LOOKUP_COUNT_MAX: Final = 1000  # values of an $in on `_id` that are looked up one by one rather than scanned for

# Cursors.
FIRST_BATCH_COUNT: Final = 101  # documents in a first batch when the client names no size
BATCH_BYTES_MAX: Final = DOCUMENT_BYTES_MAX  # bytes of documents in one reply
ARROW_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 64 * 1024  # an Arrow batch in one reply, less room for the rest of it
CURSOR_IDLE_MS_MAX: Final = 10 * 60 * 1000  # an unread cursor is closed after MongoDB's ten minutes
DISTINCT_VALUE_COUNT: Final = 10_000  # values of documents with arrays that a distinct by index remembers: 1 MB
VIEW_CHUNK_COUNT: Final = 64  # documents or entries a scan reads from a view at once, between two looks at the time
BUILD_COUNT: Final = 500  # entries, one for each document and index, that a build makes at once: some 5 ms
BUILD_BYTES: Final = 64 * 1024  # and bytes of documents, once for each index: arrays have a key for each 8 bytes
VIEW_CHUNK_BYTES: Final = 1024 * 1024  # and bytes of them
COLUMN_BYTES: Final = 64 * 1024  # of documents whose fields are read as columns between two looks at the time: 1 ms
DECODED_COUNT: Final = (
    1024  # documents of a scan that are decoded as a whole before patterns are made for its fields: 3 ms
)
MEMORY_SHARE_DEFAULT: Final = 0.25  # of the machine's: Python's objects take some times the bytes that are counted
MEMORY_BYTES_LEAST: Final = 64 * 1024 * 1024  # that --memoryLimit may be: a message of the greatest length must fit
MEMORY_BYTES_MIN: Final = 256 * 1024 * 1024  # of that share: room for a few operations of the size that MongoDB allows
MEMORY_EXCEEDED_SHARE: Final = 9 / 8  # of the limit, resident: from here on the youngest long command ends
VERSION_BYTES: Final = 256  # counted for an earlier value of a key, or a write of a transaction, besides its bytes
SHOWN_COMMAND_BYTES: Final = 2048  # of a cursor's command, in `$currentOp`; of a longer one its name is shown
CURSOR_BYTES: Final = 16 * 1024  # counted for an open cursor, besides what it has read ahead
STAGE_BYTES_MAX: Final = 100 * 1024 * 1024  # that a sort, a group or another blocking stage may hold: MongoDB's
LOOKUP_BYTES_MAX: Final = (
    100 * 1024 * 1024
)  # of what joins with one document: internalLookupStageIntermediateDocumentMaxSizeBytes
TEXT_BYTES_MAX: Final = 31 * 1024 * 1024  # that $concat or $replaceAll makes: joined at once, in 4 ms; from 32 MiB on,
# which the C library maps anew for each block (`server/process.py`), it takes 20
ACCUMULATOR_BYTES_MAX: Final = 100 * 1024 * 1024  # and one accumulator of one group: internalQueryMaxPushBytes
SPILL_BLOCK_BYTES: Final = 64 * 1024  # of records, written to a temporary file at once; a group gathers 16 blocks
COMPACTION_KEY_COUNT: Final = 20_000  # changed keys in memory while a data file is compacted: some 4 MB
SNAPSHOT_COPY_COUNT: Final = 4  # copies of the data file that backups of other machines read at the same time
SPILL_DISK_FREE_BYTES_MIN: Final = 500 * 1024 * 1024  # on the disk, for writes: as MongoDB leaves
CONSTANT_LENGTH_MAX: Final = 10_000  # elements or characters of a value that is computed once for all documents
EXPRESSION_ARRAY_LENGTH_MAX: Final = (
    4_000_000  # elements $range may make: about what fits the 100 MB of memory MongoDB grants
)
ARROW_ROW_COUNT_MAX: Final = 1 << 30  # rows that a client may ask for in one Arrow batch: its length is an int32
ARROW_SLICE_COUNT_MAX: Final = 1 << 16  # slices that events are cut into; more than Spark has tasks
AWAIT_MS_DEFAULT: Final = 1000  # how long a getMore on a tailing cursor waits when the client does not say
AWAIT_MS_MAX: Final = 2**31 - 1

# Change streams.
CHANNEL_ENTRY_COUNT_MAX: Final = 8192  # entries of a scope stored for watchers that are caught up
CHANNEL_BYTES_MAX: Final = 32 * 1024 * 1024
CHANNEL_ENTRY_BYTES: Final = 1024  # counted for an entry besides its BSON: what was parsed of it, its events' heads
COUNTED_STEP_BYTES: Final = 256 * 1024  # by which a channel or a feed grows before its account follows
FEED_EVENT_COUNT_MAX: Final = 8192  # built events stored for watchers of one shape
FEED_BYTES_MAX: Final = 64 * 1024 * 1024  # and their bytes, up to twice what stays when the oldest are dropped
FEED_MS: Final = (
    10_000  # how long entries and events are stored in any case, up to twice; slower watchers read the oplog
)
SCAN_ENTRY_COUNT_MAX: Final = 20_000  # entries one getMore may look at before it answers, so that others get a turn
LAG_MS: Final = 2.0  # what a batch takes of a stream so far behind that a reader process may read the next
SCAN_MS_MAX: Final = 8.0  # and how long: about a turn, and long beside what a getMore costs
DOCUMENT_SECONDS_MAX: Final = 0.25  # CPU time of what one stage, filter or update does with one document; then error 50
FEED_MS_MAX: Final = 5.0  # how long events are built at once for streams that are caught up
FEED_BATCH_COUNT_MAX: Final = 16  # encoded batches a feed stores for other watchers that ask for the same
FEED_BATCH_BYTES_MAX: Final = 1024 * 1024  # bytes of events in one of them; a larger one is stored alone
NAMESPACE_MEMO_COUNT_MAX: Final = 10_000  # namespaces of events whose parsed form is memoized; then all are forgotten
HEAD_COUNT_MAX: Final = 10_000  # collections times operations whose entries' heads are memoized; then all are forgotten
EVENT_SPLIT_BYTES: Final = INTERNAL_DOCUMENT_BYTES_MAX - 8 * 1024  # with its token; larger ones are sent in fragments

# The oplog, when the operator says nothing.
OPLOG_DISK_SHARE_DEFAULT: Final = 0.05
OPLOG_BYTES_MIN: Final = 1024**3
OPLOG_DISK_SHARE_MAX: Final = 0.25  # of a disk too small for that: the documents need some, too
NOOP_INTERVAL_MS: Final = 10_000  # how often a quiet oplog gets a "periodic noop", as mongod writes it
RETENTION_PACE_MAX: Final = 2  # how fast the retention clock follows a wall clock that jumped ahead

# Storage.
MAP_BYTES: Final = 1024**4  # address space of the data file, which is sparse: --mapSize; a full one refuses writes
KEY_BYTES_MAX: Final = 500  # LMDB's keys hold 511; ours leave room for a collection's or index's number
CHECK_PROBLEM_COUNT_MAX: Final = 1000  # problems of a data directory that are printed; a summary counts all
GROUP_SECONDS: Final = 0.010  # how long a group of writes runs before it is committed, and others have their turn
USAGE_COUNT_MAX: Final = 10_000  # collections times kinds of commands that `top` has numbers of: 5 KiB each at most
COMMIT_COMMAND_COUNT_MAX: Final = 1024  # commands in one write transaction, so that the first does not wait for all
CONVERT_BYTES: Final = 16 * 1024 * 1024  # values that get their checksums in one transaction, at an upgrade
CONVERT_COUNT: Final = 50_000  # and how many of them: a few milliseconds of a commit for each tenth of a second
COUNT_COUNT: Final = 5000  # documents that are counted at once: a millisecond
TRANSACTION_COUNT_COUNT: Final = 512  # and in a client's transaction, which looks up each
ERROR_BYTES_MAX: Final = 1024 * 1024  # of messages in a reply's writeErrors, MongoDB's: later ones are empty
INDEX_KEY_COUNT_MAX: Final = 10_000  # of one document for all its indexes: 0.25 s at the worst (MongoDB: 100,000)
BUCKET_BYTES_MAX: Final = 125 * 1024  # of the measurements in a bucket of a time series, before they are compressed
BUCKET_MEASUREMENT_COUNT_MAX: Final = 1000  # and their number: MongoDB's limits
MEASUREMENT_BYTES_MAX: Final = 4 * 1024 * 1024  # a longer measurement of a time series is refused, as by MongoDB
INSERT_COUNT: Final = 500  # documents of one command that are inserted at once, between two looks at the time: a few ms
KEYS_BYTES: Final = 8 * 1024  # of a document whose index keys may take a turn to make
BATCH_ENTRY_COUNT_MAX: Final = 8192  # entries in indexes of documents that are inserted at once: some milliseconds
INDEXED_INSERT_BYTES: Final = 128 * 1024  # of documents that are inserted at once where there are indexes, likewise
RECENT_ROW_COUNT_MAX: Final = 1_000_000  # index rows of long documents that a check remembers, before the next document
INSERT_BYTES: Final = 1024 * 1024  # and bytes of them
PRUNE_COUNT_MAX: Final = 2000  # rows removed by one background transaction: writes wait for a few milliseconds
PRUNE_ROUND_COUNT_MAX: Final = 20_000  # entries that are counted to see how many must go: some milliseconds
SESSIONS_SECONDS: Final = 60  # within which all records of sessions are looked at for those that are no longer used
CLOCK_AHEAD_SECONDS: Final = 60  # of the cluster time before the clock, that are worth a warning at the start
STOPPED_SECONDS: Final = 10  # without a look at the clock, which is looked at each second: the process did not run
JUMP_SECONDS: Final = 600  # that a clock which has jumped forward must last before documents expire by it
APPLICATION_MESSAGE_LENGTH_MAX: Final = 16 * 1024  # of a client's line for the audit log
PROFILE_BYTES: Final = 1024 * 1024  # of a database's system.profile, which the profiler creates: MongoDB's
PROFILE_COMMAND_BYTES_MAX: Final = 50 * 1024  # of a command in it: of a longer one its beginning, as text
PROFILE_QUEUE_COUNT_MAX: Final = 10_000  # documents that wait to be stored; further ones are dropped
PROFILE_READ_BYTES_MAX: Final = 1024 * 1024  # of a reply without a cursor that is read for its counts
PROFILE_STATEMENT_COUNT_MAX: Final = 100  # statements of one command that are shown
VALIDATE_LISTED_COUNT_MAX: Final = 1000  # records and rows that an answer of `validate` names; it counts all of them
PLAN_CACHE_COUNT_MAX: Final = 200  # shapes of queries of a collection whose plan is remembered: some 2 KiB each
TTL_SECONDS: Final = 60  # between two rounds of the TTL indexes: ttlMonitorSleepSecs
TTL_COUNT_MAX: Final = 250  # documents a TTL index's round looks at before others get a turn

# Sessions.
SESSION_MINUTES: Final = 30  # logicalSessionTimeoutMinutes
SESSION_COUNT_MAX: Final = 1_000_000  # sessions with a stored record: maxSessions
ENDED_TRANSACTION_COUNT_MAX: Final = 10_000  # whose end is remembered: 5 KB each
OPEN_TRANSACTION_BYTES: Final = 8 * 1024  # counted for a client's open transaction, besides what it has written
READER_IDLE_SECONDS: Final = 60  # after which a reader process ends: it takes half a second to start another one
READER_START_SECONDS_MAX: Final = 60  # in which it must be ready, on whatever machine
READER_PATIENCE_SECONDS: Final = (
    1  # of its CPU time, for which a command may go on after its end: a document takes less
)
READER_SCAN_COUNT: Final = 100_000  # documents a reader examines for a write at once: 0.3 s
READER_COUNT_MAX: Final = 8192  # states of the store that reads hold at the same time: 64 bytes of a table each
SNAPSHOT_SECONDS_MAX: Final = 3600  # how long a read may hold one, since a commit must not use the pages it can read
SNAPSHOT_GROWTH_BYTES_MAX: Final = 16 * 1024**3  # and how far the data file may grow meanwhile
SNAPSHOT_COUNT_MAX: Final = 64  # cluster times at which clients read; the oldest is released for the next
TRANSACTION_SECONDS_MAX: Final = 60  # transactionLifetimeLimitSeconds
TRANSACTION_BYTES_MAX: Final = 64 * 1024 * 1024  # operations of one transaction, whose commit writes all at once
TRANSACTION_ENTRY_BYTES: Final = DOCUMENT_BYTES_MAX  # of them in one entry of the oplog; more make a chain
TRANSACTION_KEY_COUNT_MAX: Final = 100_000  # documents, `_id`s and index keys that one writes: 0.3 s of its commit

# Patterns.
PATTERN_LENGTH_MAX: Final = 32764  # characters of a regular expression: MongoDB's
PATTERN_STEPS_MAX: Final = 200_000  # how often PCRE2 may backtrack at one position of a text: MongoDB's; a millisecond
PATTERN_QUICK_STEPS_MAX: Final = 2000  # the same without a chance to pause: 10 µs for a position
PATTERN_QUICK_CHARACTERS_MAX: Final = 2048  # of a text that is searched without a chance to pause: 20 ms at the worst

# The pipeline.
BUCKET_COUNT_MAX: Final = 1000  # of a mirror: a batch writes a file into each that it touches
LAG_EVENT_COUNT_MAX: Final = 10_000  # events that the lag of a job counts; from there on it says "or more"
REDO_BYTES_MAX: Final = 4 * 1024 * 1024  # of a document in the redo log of the sink `mongodb`: far from 16 MiB
SINK_WRITE_COUNT_MAX: Final = 1000  # writes that the sink `mongodb` sends in one message
PREFETCH_ROW_COUNT_MAX: Final = 1000  # rows of a micro-batch that the driver reads itself: a task costs more
PREFETCH_BYTES_MAX: Final = 4 * 1024 * 1024  # and their bytes: they travel with the plan
IDLE_WAIT_FACTOR: Final = 16  # how often `awaitMs` an idle stream waits on its server: each look costs 5 ms of CPU
SHARED_IDLE_WAIT_FACTOR: Final = 4  # and one of several servers that are asked in turn, whose events wait meanwhile
LOCAL_PING_MS_MAX: Final = 2000  # how long a local server that is noted in its directory may take to answer
SINK_ROW_COUNT_MAX: Final = 5000  # rows that the sink `mongodb` has in memory at once
START_CHECK_SECONDS_MAX: Final = 5.0  # for a server to answer before a job starts: a person waits
HISTORY_WAIT_SECONDS_MAX: Final = 15.0  # until a quiet server's time is past a position: it writes a no-op every 10 s
ALERT_SECONDS_MAX: Final = 30.0  # for the command of an alert; then it is killed, as the next one could not begin
SINK_EXIT_SECONDS_MAX: Final = 20.0  # for a sink's batch when the process ends; or it is repeated after the restart
MERGED_ROW_COUNT_MAX: Final = 100_000  # rows of a micro-batch of several servers, by default
MERGED_PING_SECONDS_MAX: Final = 3.0  # after which one of several servers counts as down
PARTITION_COUNT_MAX: Final = 1000  # of a batch: each is a task, which takes Spark some 10 ms
PARTITION_ROW_COUNT_MIN: Final = 5000  # rows of a batch for each partition by time: a task takes some 10 ms
EVENT_MARK_COUNT_MAX: Final = 10_000  # tokens asked for in one command: about a megabyte
COMPACT_BYTES: Final = 8_000_000  # of a file that a sink makes of small ones: each hundredth batch waits for it
SQL_ROW_COUNT_MAX: Final = 500  # rows of a statement: databases bound the number of parameters, some at 1000
UPKEEP_BYTES_MAX: Final = 1_000_000_000  # of small files that are joined between two batches: ten seconds or so
SPARK_CORE_COUNT_MAX: Final = 1024  # threads of a local session
UPKEEP_COMMIT_COUNT_MIN: Final = 100  # of a table's last versions that stay: deltalake makes a checkpoint as often
UPKEEP_SMALL_FILE_COUNT: Final = 8  # of them in a table that are worth a commit
TYPED_COLUMN_COUNT_MAX: Final = 1000  # columns of a typed table, nested ones counted: readers of Parquet slow down
STRUCT_FIELD_COUNT_MAX: Final = 200  # fields that an object of a typed table gains by itself; what has more is a map
TYPED_DEPTH_MAX: Final = 12  # objects within objects that become columns: readers of Delta recurse
TYPED_SAMPLE_COUNT_MAX: Final = 1000  # documents, and items of an array, that a schema is inferred from: a second
COLUMN_NAME_LENGTH_MAX: Final = 120  # of a typed table's column, before a number that makes it unique
LAYOUT_FIELD_COUNT_MAX: Final = 200  # fields of a document that is decoded by its layout
LAYOUT_FAILURE_COUNT_MAX: Final = 8  # layouts that matched no further row, until the rest is decoded one by one
SNAPSHOT_FREE_ROUND_COUNT: Final = (
    4  # rounds without read concern `snapshot`, for which a server has to retain old versions, and not every one can
)
SNAPSHOT_ROUND_COUNT_MAX: Final = 200  # how often a document may change while it is read; a round takes milliseconds
ROW_COUNT_UNBOUNDED: Final = 1 << 31  # rows of a chunk of unknown size: the number to ask for
SNAPSHOT_RANGE_ROW_COUNT: Final = 50_000  # documents of a task that reads a range of a collection at one time
SNAPSHOT_RANGE_COUNT_MAX: Final = 64  # such tasks, unless more partitions are asked for
SNAPSHOT_CHUNK_BYTES: Final = (
    256 * 1024 * 1024
)  # of documents in a chunk, about, which a worker holds and Spark takes in one batch
SNAPSHOT_COLLECTION_COUNT_MAX: Final = (
    100  # collections whose snapshots are in a micro-batch: a commit of each takes 30 ms
)
FOLD_ROW_COUNT_MIN: Final = 20_000  # rows of a batch that tasks fold: two more rounds of tasks cost a second of CPU
FOLD_SLOT_BYTES_MAX: Final = (
    250_000_000  # of a table without buckets, for each task that folds a batch: it may hold its share in memory
)
FOLD_TASK_COUNT_MAX: Final = 64  # that fold a batch: each writes a file
FOLD_TASK_COUNT_MIN: Final = 4  # where a session does not tell how many tasks it runs at once
REWRITTEN_BYTES_MAX: Final = 262_144  # of small files, whose rows each batch writes again with its own
REWRITTEN_FILE_COUNT_MAX: Final = 50  # of these small files: each costs some 0.3 ms to open
ROW_GROUP_BYTES: Final = 64_000_000  # of rows in memory, of a file that a sink writes anew
STATISTIC_CHARACTER_COUNT_MAX: Final = 100  # of a text in a file's statistics, which each commit has
TABLE_WRITER_COUNT_MAX: Final = 4  # tables of several collections that are written at once: commits wait for the disk
TABLE_LOOK_COUNT_MAX: Final = 10  # collections whose tables' files are counted at a time: a table takes 3 ms
TABLE_LOOK_SECONDS: Final = 300  # between two looks for new tables of several collections: a store is asked for names
OPEN_TABLE_COUNT_MAX: Final = 1000  # tables of several collections that stay open: each is some 100 KiB of its log
METRIC_COLLECTION_COUNT_MAX: Final = 1000  # collections that have metrics of their own: a monitor stores each
DIFFERENCE_COUNT_MAX: Final = 10  # keys that `verify` names of each kind of difference
ROW_BATCH_BYTES_MAX: Final = 16 * 1024 * 1024  # events that a worker gathers into one Arrow batch
CLASS_ARCHIVE_SECONDS_MIN: Final = 86_400.0  # between two trials to make it in the background: each takes half a minute
JVM_START_SECONDS_MAX: Final = 120.0  # for Spark's JVM to be ready: some 5 s on an idle machine
TRACEBACK_LINE_COUNT_MAX: Final = 500  # that are held back to see whether a traceback matters
LISTENER_SECONDS_MAX: Final = 10  # for Spark to report a job's last batch to its listener
WORKER_KILL_COUNT_MAX: Final = 5  # times in a row: Spark notices one by one that its four daemons are gone
