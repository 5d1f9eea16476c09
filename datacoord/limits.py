"""Every limit that those who use the system can meet, each with its reason. docs/reference/limits.md says what is beyond them."""

TIMESTAMP_MAX = 2**63 - 1
"""Timestamps fit a signed 64-bit SQL column; 0 is the start of a channel, before its first message."""

ALL_PARTITIONS_ID = -1
"""The lane of deletes that name no partition (Milvus's AllPartitions)."""

MESSAGE_BYTES_MAX = 32 * 1024 * 1024
"""Largest request: a full batch of saves with room to spare, and far below what would hurt a server."""

SERVER_MESSAGE_BYTES_MAX = 2 * MESSAGE_BYTES_MAX
"""What the transport of a server lets through: larger than a request may be, so that one somewhat too large is refused by a typed
BATCH_TOO_LARGE and not by gRPC's untyped status."""

ANSWER_BYTES_MAX = 512 * 1024 * 1024
"""Largest answer: a page of ListBinlogs holds whole channels, and one channel may have very many binlogs."""

SAVE_CHANNELS_MAX = 1024
"""Channel parts of one SaveBinlogPaths: bounds the time one call keeps the write transaction."""

SAVE_BINLOGS_MAX = 20_000
"""Binlogs of one SaveBinlogPaths, all channels together, for the same reason. A datanode rolls to larger objects so that one
range always fits."""

SAVE_CHANNEL_LANES_MAX = 4096
"""Lanes of one channel part: partitions of a collection that are ready at once."""

CHECKPOINTS_MAX = 4096
"""Entries of one UpdateChannelCheckpoint; the datanode sends 128 (Milvus's maxChannelCheckpointsPerRPC)."""

CLAIM_CHANNELS_MAX = 4096
"""Channels of one ClaimChannels or ReleaseChannels."""

SEGMENTS_DROPPED_MAX = 1000
"""Segments of one MarkSegmentsDropped: bounds its transaction."""

TT_MSGS_MAX = 65_536
"""Channels one datanode may report."""

REPORTED_METRICS_MAX = 512
"""Counters and gauges of one heartbeat: they are stored as one packed row and exported per datanode."""

FAULT_CHARS_MAX = 200
"""Words of a datanode on what keeps a channel from going on: a sentence, not a log."""

MSG_ID_BYTES_MAX = 4096
"""A msg_id is a seek position, not a payload; it is rewritten with every checkpoint."""

NAME_CHARS_MAX = 128
"""Names of collections, partitions and jobs."""

OWNER_NAME_CHARS_MAX = 256
"""Names of claimants: a query id with a prefix."""

CHANNEL_NAME_CHARS_MAX = 256
"""A collection's name, its number and the index of the channel."""

CHANNEL_COUNT_MAX = 65_536
"""Channels of one collection."""

PARTITIONS_MAX = 4096
"""Partitions of one collection: each is a lane in every channel."""

PATH_BYTES_MAX = 512
"""Length of an object path; the grammar needs less than 160."""

SCHEMA_BYTES_MAX = 1024 * 1024
"""An Arrow schema message."""

PROPERTIES_MAX = 64
"""Free properties of a collection."""

PROPERTY_BYTES_MAX = 4096
"""Key or value of a free property."""

PAGE_SIZE_DEFAULT = 1000
"""Items of a page where the caller does not say."""

PAGE_SIZE_MAX = 10_000
"""Items of a page at most: a page is built in memory."""

PAGE_CHANNELS_MAX = 100_000
"""Names of channels on one page of collections, which ends early where collections have many: a page is built in memory."""

PAGE_TOKEN_CHARS_MAX = 1024
"""Where the next page begins: a name or a number, encoded."""

SLOT_MAX = 65_535
"""Slots of one datanode job."""

WATCH_STREAMS_MAX = 4096
"""Open WatchDmChannels streams of one replica."""

URGENT_CALLS_MARGIN = 512
"""So many calls beyond `grpc_max_concurrent_rpcs` are taken of those that keep sessions alive: others must not cost an idle
datanode its lease."""

HARD_CALLS_MARGIN = 1024
"""So many calls beyond `grpc_max_concurrent_rpcs` get a typed refusal with a time to come back; more get gRPC's bare one."""

URGENT_CALLS_MAX = 16_384
"""Calls that keep sessions alive and wait to be written: each datanode has one at a time, and there are never so many datanodes."""

UNREAD_BYTES_MAX = 64 * 1024 * 1024
"""Bytes that may wait between the coordinator and its gRPC process before saves and checkpoints are refused there."""

FLUSH_PENDING_MAX = 1000
"""Channels that an answer about a flush names; there may be more."""

MSG_GROUP_CHARS_MAX = 256
"""A msg_group is a label that is rewritten with every checkpoint."""

BINLOG_ROWS_MAX = 2**40
"""Rows of one object. Far beyond any real one; sums over a segment stay within 63 bits."""

BINLOG_BYTES_MAX = 2**44
"""Bytes of one object (16 TiB), for the same reason."""

STORAGE_ROOT_CHARS_MAX = 1024
"""A URI of a bucket and a prefix."""

HOST_CHARS_MAX = 256
"""What a datanode says of the place it runs at: a DNS name has at most 253."""

REPORTED_METRIC_CHARS_MAX = 256
"""Name of a reported counter, label set included."""

REPORTED_COLLECTIONS_MAX = 1024
"""Collections one datanode can read."""

SCHEMA_COLUMNS_MAX = 4096
"""Columns of a collection."""

GC_REASON_CHARS_MAX = 256
"""Why the garbage collector is paused or held: a sentence for the status."""

GC_PAUSE_MS_MAX = 100 * 365 * 86_400_000
"""A hundred years: the end of a pause stays a time that everybody can show."""

GC_CANDIDATES_MAX = 1000
"""Objects that a plan of the garbage collector names; the rest is counted."""

TOKENS_MAX = 1000
"""Tokens of one file: each call is compared with all of them."""

TOKENS_FILE_BYTES_MAX = 1024 * 1024
"""A file of tokens, far more than the largest number of them takes."""

TOKEN_CHARS_MAX = 256
"""A longer token is refused unread."""

TOKEN_NAME_CHARS_MAX = 64
"""Names of tokens: they stand on every line of the audit log."""

LINE_BYTES_MAX = 64 * 1024 * 1024
"""A line of a JSON Lines file; a longer one is taken for a file that is no JSON Lines."""

COMPARED_ROWS_MAX = 2**26
"""Rows of a channel whose keys one commit of the sink compares: 512 MiB of fingerprints."""

DEFAULT_PARTITION_NAME = "_default"
"""The partition a collection is created with (Milvus's name): the lane of rows that name no partition."""
