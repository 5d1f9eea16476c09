CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.binlogs (
    binlog_id bigint NOT NULL,
    segment_id bigint NOT NULL,
    kind smallint NOT NULL,
    field_id bigint NOT NULL,
    log_id bigint NOT NULL,
    epoch bigint NOT NULL,
    range_from bigint NOT NULL,
    range_to bigint NOT NULL,
    rows bigint NOT NULL,
    ts_min bigint NOT NULL,
    ts_max bigint NOT NULL,
    size_bytes bigint NOT NULL,
    memory_bytes bigint NOT NULL,
    CONSTRAINT ck_binlogs_identity CHECK (((field_id >= 0) AND (log_id > 0) AND (epoch > 0))),
    CONSTRAINT ck_binlogs_kind CHECK (((kind >= 1) AND (kind <= 3))),
    CONSTRAINT ck_binlogs_sizes CHECK (((rows >= 0) AND (size_bytes >= 0) AND (memory_bytes >= 0))),
    CONSTRAINT ck_binlogs_timestamps CHECK (((0 <= range_from) AND (range_from < ts_min) AND (ts_min <= ts_max) AND (ts_max <= range_to)))
);
CREATE SEQUENCE public.binlogs_binlog_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.binlogs_binlog_id_seq OWNED BY public.binlogs.binlog_id;
CREATE TABLE public.channel_state (
    channel_id bigint NOT NULL,
    epoch bigint NOT NULL,
    state smallint NOT NULL,
    owner_id bigint NOT NULL,
    release_requested smallint NOT NULL,
    flush_timestamp bigint NOT NULL,
    checkpoint_timestamp bigint NOT NULL,
    checkpoint_event_time_ms bigint NOT NULL,
    checkpoint_msg_id bytea NOT NULL,
    checkpoint_msg_group text NOT NULL,
    CONSTRAINT ck_channel_state_checkpoint_msg_id CHECK ((length(checkpoint_msg_id) <= 4096)),
    CONSTRAINT ck_channel_state_checkpoint_timestamp CHECK ((checkpoint_timestamp >= 0)),
    CONSTRAINT ck_channel_state_epoch CHECK ((epoch > 0)),
    CONSTRAINT ck_channel_state_flush_timestamp CHECK (((flush_timestamp = 0) OR (flush_timestamp > checkpoint_timestamp))),
    CONSTRAINT ck_channel_state_owner_id CHECK ((owner_id >= 0)),
    CONSTRAINT ck_channel_state_release_requested CHECK ((release_requested = ANY (ARRAY[0, 1]))),
    CONSTRAINT ck_channel_state_state CHECK ((state = ANY (ARRAY[1, 2]))),
    CONSTRAINT ck_channel_state_tombstone CHECK (((state = 1) OR ((owner_id = 0) AND (release_requested = 0) AND (flush_timestamp = 0))))
)
WITH (fillfactor='50');
CREATE TABLE public.collections (
    collection_id bigint NOT NULL,
    name text NOT NULL,
    state smallint NOT NULL,
    arrow_schema bytea NOT NULL,
    primary_key text NOT NULL,
    channel_count bigint NOT NULL,
    channel_mode smallint NOT NULL,
    timestamp_kind smallint NOT NULL,
    storage_root text NOT NULL,
    properties text NOT NULL,
    create_time_ms bigint NOT NULL,
    CONSTRAINT ck_collections_channel_count CHECK (((channel_count >= 1) AND (channel_count <= 65536))),
    CONSTRAINT ck_collections_channel_mode CHECK ((channel_mode = ANY (ARRAY[1, 2]))),
    CONSTRAINT ck_collections_collection_id CHECK ((collection_id > 0)),
    CONSTRAINT ck_collections_name CHECK (((length(name) >= 1) AND (length(name) <= 128))),
    CONSTRAINT ck_collections_state CHECK ((state = ANY (ARRAY[1, 2]))),
    CONSTRAINT ck_collections_timestamp_kind CHECK ((timestamp_kind = ANY (ARRAY[1, 2])))
);
CREATE TABLE public.datanode_reports (
    node_id bigint NOT NULL,
    report bytea NOT NULL
);
CREATE TABLE public.datanodes (
    node_id bigint NOT NULL,
    job text NOT NULL,
    slot bigint NOT NULL,
    state smallint NOT NULL,
    host text NOT NULL,
    pid bigint NOT NULL,
    collection_ids text NOT NULL,
    desired_revision bigint NOT NULL,
    register_time_ms bigint NOT NULL,
    CONSTRAINT ck_datanodes_desired_revision CHECK ((desired_revision > 0)),
    CONSTRAINT ck_datanodes_job CHECK (((length(job) >= 1) AND (length(job) <= 128))),
    CONSTRAINT ck_datanodes_slot CHECK (((slot >= 0) AND (slot <= 65535))),
    CONSTRAINT ck_datanodes_state CHECK ((state = ANY (ARRAY[1, 2, 4, 5])))
);
CREATE TABLE public.epochs (
    name text NOT NULL,
    value bigint NOT NULL,
    CONSTRAINT ck_epochs_value CHECK ((value >= 0))
);
CREATE TABLE public.events (
    event_id bigint NOT NULL,
    time_ms bigint NOT NULL,
    rpc text NOT NULL,
    caller text NOT NULL,
    channels bigint NOT NULL,
    items bigint NOT NULL,
    changes text NOT NULL,
    CONSTRAINT ck_events_counts CHECK (((channels >= 0) AND (items >= 0)))
);
CREATE SEQUENCE public.events_event_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.events_event_id_seq OWNED BY public.events.event_id;
CREATE TABLE public.flush_targets (
    flush_id bigint NOT NULL,
    channel_id bigint NOT NULL,
    target_timestamp bigint NOT NULL,
    CONSTRAINT ck_flush_targets_target_timestamp CHECK ((target_timestamp >= 0))
);
CREATE TABLE public.flushes (
    flush_id bigint NOT NULL,
    collection_id bigint,
    create_time_ms bigint NOT NULL,
    done_time_ms bigint DEFAULT 0 NOT NULL,
    CONSTRAINT ck_flushes_done_time_ms CHECK ((done_time_ms >= 0)),
    CONSTRAINT ck_flushes_flush_id CHECK ((flush_id > 0))
);
CREATE TABLE public.gc_control (
    control_id smallint NOT NULL,
    paused smallint NOT NULL,
    paused_until_ms bigint NOT NULL,
    pause_reason text NOT NULL,
    held smallint NOT NULL,
    hold_reason text NOT NULL,
    run_requested smallint NOT NULL,
    last_round bytea NOT NULL,
    CONSTRAINT ck_gc_control_control_id CHECK ((control_id = 1)),
    CONSTRAINT ck_gc_control_held CHECK (((held = 1) OR ((held = 0) AND (hold_reason = ''::text)))),
    CONSTRAINT ck_gc_control_paused CHECK (((paused = 1) OR ((paused = 0) AND (paused_until_ms = 0) AND (pause_reason = ''::text)))),
    CONSTRAINT ck_gc_control_paused_until_ms CHECK ((paused_until_ms >= 0)),
    CONSTRAINT ck_gc_control_reasons CHECK (((length(pause_reason) <= 256) AND (length(hold_reason) <= 256))),
    CONSTRAINT ck_gc_control_run_requested CHECK ((run_requested = ANY (ARRAY[0, 1])))
);
CREATE TABLE public.job_leases (
    name text NOT NULL,
    holder text NOT NULL,
    fence bigint NOT NULL,
    lease_until_ms bigint NOT NULL,
    CONSTRAINT ck_job_leases_fence CHECK ((fence > 0))
);
CREATE TABLE public.lanes (
    channel_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    progress bigint NOT NULL,
    growing_segment_id bigint,
    CONSTRAINT ck_lanes_partition_id CHECK (((partition_id > 0) OR (partition_id = '-1'::integer))),
    CONSTRAINT ck_lanes_progress CHECK ((progress > 0))
)
WITH (fillfactor='50');
CREATE TABLE public.owners (
    owner_id bigint NOT NULL,
    name text NOT NULL,
    kind smallint NOT NULL,
    lease_until_ms bigint NOT NULL,
    last_seen_time_ms bigint NOT NULL,
    CONSTRAINT ck_owners_kind CHECK ((kind = ANY (ARRAY[1, 2]))),
    CONSTRAINT ck_owners_name CHECK (((length(name) >= 1) AND (length(name) <= 256))),
    CONSTRAINT ck_owners_owner_id CHECK ((owner_id > 0))
);
CREATE TABLE public.partitions (
    partition_id bigint NOT NULL,
    collection_id bigint NOT NULL,
    name text NOT NULL,
    state smallint NOT NULL,
    CONSTRAINT ck_partitions_name CHECK (((length(name) >= 1) AND (length(name) <= 128))),
    CONSTRAINT ck_partitions_partition_id CHECK ((partition_id > 0)),
    CONSTRAINT ck_partitions_state CHECK ((state = ANY (ARRAY[1, 2])))
);
CREATE TABLE public.placements (
    channel_id bigint NOT NULL,
    node_id bigint NOT NULL,
    from_node_id bigint NOT NULL,
    CONSTRAINT ck_placements_nodes CHECK (((node_id > 0) OR ((node_id = 0) AND (from_node_id > 0))))
);
CREATE TABLE public.segments (
    segment_id bigint NOT NULL,
    channel_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    state smallint NOT NULL,
    level smallint NOT NULL,
    rows bigint NOT NULL,
    delete_rows bigint NOT NULL,
    size_bytes bigint NOT NULL,
    binlogs bigint NOT NULL,
    timestamp_from bigint NOT NULL,
    timestamp_to bigint NOT NULL,
    seal_reason text NOT NULL,
    create_time_ms bigint NOT NULL,
    last_write_time_ms bigint NOT NULL,
    ranges bigint DEFAULT 1 NOT NULL,
    CONSTRAINT ck_segments_level CHECK ((level = ANY (ARRAY[1, 2, 3]))),
    CONSTRAINT ck_segments_partition_id CHECK (((partition_id > 0) OR (partition_id = '-1'::integer))),
    CONSTRAINT ck_segments_range CHECK (((timestamp_from >= 0) AND (timestamp_from < timestamp_to))),
    CONSTRAINT ck_segments_ranges CHECK ((ranges > 0)),
    CONSTRAINT ck_segments_seal_reason CHECK (((state <> 1) OR (seal_reason = ''::text))),
    CONSTRAINT ck_segments_segment_id CHECK ((segment_id > 0)),
    CONSTRAINT ck_segments_sizes CHECK (((rows >= 0) AND (delete_rows >= 0) AND (size_bytes >= 0) AND (binlogs > 0))),
    CONSTRAINT ck_segments_state CHECK ((state = ANY (ARRAY[1, 2, 4])))
);
CREATE TABLE public.vchannels (
    channel_id bigint NOT NULL,
    name text NOT NULL,
    collection_id bigint NOT NULL,
    channel_index bigint NOT NULL,
    mode smallint NOT NULL,
    consumed_timestamp bigint NOT NULL,
    finished_timestamp bigint DEFAULT 0 NOT NULL,
    CONSTRAINT ck_vchannels_channel_id CHECK ((channel_id > 0)),
    CONSTRAINT ck_vchannels_channel_index CHECK ((channel_index >= 0)),
    CONSTRAINT ck_vchannels_consumed_timestamp CHECK ((consumed_timestamp >= 0)),
    CONSTRAINT ck_vchannels_finished_timestamp CHECK ((finished_timestamp >= 0)),
    CONSTRAINT ck_vchannels_mode CHECK ((mode = ANY (ARRAY[1, 2])))
);
ALTER TABLE ONLY public.binlogs ALTER COLUMN binlog_id SET DEFAULT nextval('public.binlogs_binlog_id_seq'::regclass);
ALTER TABLE ONLY public.events ALTER COLUMN event_id SET DEFAULT nextval('public.events_event_id_seq'::regclass);
INSERT INTO public.alembic_version VALUES
	('20261124');
INSERT INTO public.binlogs VALUES
	(1, 7, 1, 0, 8, 3, 0, 7, 1, 1, 7, 10, 20),
	(2, 8, 1, 0, 9, 4, 0, 7, 1, 1, 7, 10, 20),
	(3, 17, 1, 0, 10, 8, 0, 10, 1, 1, 10, 10, 20),
	(4, 18, 1, 0, 11, 8, 0, 12, 1, 1, 12, 10, 20),
	(5, 19, 1, 0, 12, 8, 10, 20, 1, 11, 20, 10, 20),
	(6, 20, 1, 0, 13, 8, 0, 20, 1, 1, 20, 10, 20),
	(7, 21, 1, 0, 14, 9, 0, 5, 1, 1, 5, 10, 20);
INSERT INTO public.channel_state VALUES
	(3, 3, 1, 6, 0, 0, 7, 70, '\x696437', 'group7'),
	(4, 4, 1, 6, 0, 0, 7, 70, '\x696437', 'group7'),
	(13, 11, 2, 0, 0, 0, 0, 0, '\x', ''),
	(12, 9, 1, 16, 1, 6, 5, 50, '\x696435', 'group5'),
	(11, 8, 1, 16, 1, 30, 15, 150, '\x69643135', 'group15');
INSERT INTO public.collections VALUES
	(1, 'claimed', 1, '\x736368656d61', '["k"]', 2, 2, 1, '/objects/1', '{}', 1000000),
	(9, 'managed', 1, '\x736368656d61', '["k"]', 3, 1, 1, '/objects/9', '{}', 1000000);
INSERT INTO public.datanode_reports VALUES
	(16, '\x0810120f0a0b6d616e616765645f397630181e120f0a0b6d616e616765645f3976311806'),
	(23, '\x');
INSERT INTO public.datanodes VALUES
	(23, 'job', 1, 2, 'h', 2, '[9]', 1, 1000000),
	(16, 'job', 0, 2, 'h', 1, '[9]', 7, 1000000);
INSERT INTO public.epochs VALUES
	('epoch', 11),
	('id', 23);
INSERT INTO public.events VALUES
	(1, 1000000, 'CreateCollection', 'test', 2, 1, '[[1,0]]'),
	(2, 1000000, 'CreatePartition', 'test', 0, 1, '[[1,5]]'),
	(3, 1000000, 'ClaimChannels', 'test', 2, 2, '[[3,3,6,0],[4,4,6,0]]'),
	(4, 1000000, 'SaveBinlogPaths', 'test', 1, 1, '[[3,3,7,[[2,0,7,1,1,7]]]]'),
	(5, 1000000, 'SaveBinlogPaths', 'test', 1, 1, '[[4,4,7,[[2,0,7,1,1,8]]]]'),
	(6, 1000000, 'CreateCollection', 'test', 3, 1, '[[9,0]]'),
	(7, 1000000, 'CreatePartition', 'test', 0, 1, '[[9,14]]'),
	(8, 1000000, 'CreatePartition', 'test', 0, 1, '[[9,15]]'),
	(9, 1000000, 'RegisterDataNode', 'test', 0, 1, '[]'),
	(10, 1000000, 'AssignmentJob', 'job', 3, 3, '[[11,8,16,0],[12,9,16,0],[13,10,16,0]]'),
	(11, 1000000, 'SaveBinlogPaths', 'test', 1, 2, '[[11,8,null,[[10,0,10,1,1,17],[14,0,12,1,1,18]]]]'),
	(12, 1000000, 'SaveBinlogPaths', 'test', 1, 2, '[[11,8,15,[[10,10,20,1,11,19],[15,0,20,1,1,20]]]]'),
	(13, 1000000, 'SaveBinlogPaths', 'test', 1, 1, '[[12,9,5,[[-1,0,5,1,1,21]]]]'),
	(14, 1000000, 'DropVirtualChannel', 'test', 1, 1, '[[13,10,null,[]]]'),
	(15, 1000000, 'DropPartition', 'test', 2, 1, '[[9,15]]'),
	(16, 1000000, 'Flush', 'test', 2, 1, '[[11,30],[12,6]]'),
	(17, 1000000, 'RegisterDataNode', 'test', 0, 1, '[]'),
	(18, 1000000, 'MoveChannel', 'test', 1, 1, '[[11,8,16,15]]');
INSERT INTO public.flush_targets VALUES
	(22, 11, 30),
	(22, 12, 6);
INSERT INTO public.flushes VALUES
	(22, 9, 1000000, 0);
INSERT INTO public.gc_control VALUES
	(1, 0, 0, '', 0, '', 0, '\x');
INSERT INTO public.job_leases VALUES
	('lease', 'this', 1, 2000000),
	('assignment', 'this', 1, 2000000);
INSERT INTO public.lanes VALUES
	(3, 2, 7, 7),
	(4, 2, 7, 8),
	(11, 14, 12, 18),
	(11, 10, 20, 19),
	(12, -1, 5, 21),
	(11, 15, 20, NULL);
INSERT INTO public.owners VALUES
	(6, 'query-1', 2, 1020000, 1000000),
	(16, 'job/0#16', 1, 1010000, 1000000),
	(23, 'job/1#23', 1, 1010000, 1000000);
INSERT INTO public.partitions VALUES
	(2, 1, '_default', 1),
	(5, 1, 'other', 1),
	(10, 9, '_default', 1),
	(14, 9, 'other', 1),
	(15, 9, 'dropped', 2);
INSERT INTO public.placements VALUES
	(11, 23, 16);
INSERT INTO public.segments VALUES
	(7, 3, 2, 1, 2, 1, 0, 10, 1, 0, 7, '', 1000000, 1000000, 1),
	(8, 4, 2, 1, 2, 1, 0, 10, 1, 0, 7, '', 1000000, 1000000, 1),
	(17, 11, 10, 2, 2, 1, 0, 10, 1, 0, 10, 'requested', 1000000, 1000000, 1),
	(18, 11, 14, 1, 2, 1, 0, 10, 1, 0, 12, '', 1000000, 1000000, 1),
	(19, 11, 10, 1, 2, 1, 0, 10, 1, 10, 20, '', 1000000, 1000000, 1),
	(21, 12, -1, 1, 1, 1, 0, 10, 1, 0, 5, '', 1000000, 1000000, 1),
	(20, 11, 15, 4, 2, 1, 0, 10, 1, 0, 20, 'dropped', 1000000, 1000000, 1);
INSERT INTO public.vchannels VALUES
	(3, 'claimed_1v0', 1, 0, 2, 0, 0),
	(4, 'claimed_1v1', 1, 1, 2, 0, 0),
	(11, 'managed_9v0', 9, 0, 1, 0, 0),
	(12, 'managed_9v1', 9, 1, 1, 0, 0),
	(13, 'managed_9v2', 9, 2, 1, 0, 0);
SELECT pg_catalog.setval('public.binlogs_binlog_id_seq', 7, true);
SELECT pg_catalog.setval('public.events_event_id_seq', 18, true);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.binlogs
    ADD CONSTRAINT pk_binlogs PRIMARY KEY (binlog_id);
ALTER TABLE ONLY public.channel_state
    ADD CONSTRAINT pk_channel_state PRIMARY KEY (channel_id);
ALTER TABLE ONLY public.collections
    ADD CONSTRAINT pk_collections PRIMARY KEY (collection_id);
ALTER TABLE ONLY public.datanode_reports
    ADD CONSTRAINT pk_datanode_reports PRIMARY KEY (node_id);
ALTER TABLE ONLY public.datanodes
    ADD CONSTRAINT pk_datanodes PRIMARY KEY (node_id);
ALTER TABLE ONLY public.epochs
    ADD CONSTRAINT pk_epochs PRIMARY KEY (name);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT pk_events PRIMARY KEY (event_id);
ALTER TABLE ONLY public.flush_targets
    ADD CONSTRAINT pk_flush_targets PRIMARY KEY (flush_id, channel_id);
ALTER TABLE ONLY public.flushes
    ADD CONSTRAINT pk_flushes PRIMARY KEY (flush_id);
ALTER TABLE ONLY public.gc_control
    ADD CONSTRAINT pk_gc_control PRIMARY KEY (control_id);
ALTER TABLE ONLY public.job_leases
    ADD CONSTRAINT pk_job_leases PRIMARY KEY (name);
ALTER TABLE ONLY public.lanes
    ADD CONSTRAINT pk_lanes PRIMARY KEY (channel_id, partition_id);
ALTER TABLE ONLY public.owners
    ADD CONSTRAINT pk_owners PRIMARY KEY (owner_id);
ALTER TABLE ONLY public.partitions
    ADD CONSTRAINT pk_partitions PRIMARY KEY (partition_id);
ALTER TABLE ONLY public.placements
    ADD CONSTRAINT pk_placements PRIMARY KEY (channel_id);
ALTER TABLE ONLY public.segments
    ADD CONSTRAINT pk_segments PRIMARY KEY (segment_id);
ALTER TABLE ONLY public.vchannels
    ADD CONSTRAINT pk_vchannels PRIMARY KEY (channel_id);
ALTER TABLE ONLY public.owners
    ADD CONSTRAINT uq_owners_name UNIQUE (name);
ALTER TABLE ONLY public.vchannels
    ADD CONSTRAINT uq_vchannels_collection_id_channel_index UNIQUE (collection_id, channel_index);
ALTER TABLE ONLY public.vchannels
    ADD CONSTRAINT uq_vchannels_name UNIQUE (name);
CREATE INDEX ix_binlogs_segment_id ON public.binlogs USING btree (segment_id);
CREATE INDEX ix_channel_state_owner_id ON public.channel_state USING btree (owner_id);
CREATE INDEX ix_flush_targets_channel_id_target_timestamp ON public.flush_targets USING btree (channel_id, target_timestamp);
CREATE INDEX ix_partitions_collection_id ON public.partitions USING btree (collection_id);
CREATE INDEX ix_segments_channel_id ON public.segments USING btree (channel_id);
CREATE UNIQUE INDEX uq_collections_name ON public.collections USING btree (name) WHERE (state = 1);
CREATE UNIQUE INDEX uq_datanodes_job_slot ON public.datanodes USING btree (job, slot) WHERE (state <> 5);
CREATE UNIQUE INDEX uq_partitions_collection_id_name ON public.partitions USING btree (collection_id, name) WHERE (state = 1);
CREATE UNIQUE INDEX uq_segments_growing ON public.segments USING btree (channel_id, partition_id) WHERE (state = 1);
ALTER TABLE ONLY public.binlogs
    ADD CONSTRAINT fk_binlogs_segment_id FOREIGN KEY (segment_id) REFERENCES public.segments(segment_id);
ALTER TABLE ONLY public.channel_state
    ADD CONSTRAINT fk_channel_state_channel_id FOREIGN KEY (channel_id) REFERENCES public.vchannels(channel_id);
ALTER TABLE ONLY public.datanode_reports
    ADD CONSTRAINT fk_datanode_reports_node_id FOREIGN KEY (node_id) REFERENCES public.datanodes(node_id);
ALTER TABLE ONLY public.datanodes
    ADD CONSTRAINT fk_datanodes_node_id FOREIGN KEY (node_id) REFERENCES public.owners(owner_id);
ALTER TABLE ONLY public.flush_targets
    ADD CONSTRAINT fk_flush_targets_channel_id FOREIGN KEY (channel_id) REFERENCES public.vchannels(channel_id);
ALTER TABLE ONLY public.flush_targets
    ADD CONSTRAINT fk_flush_targets_flush_id FOREIGN KEY (flush_id) REFERENCES public.flushes(flush_id);
ALTER TABLE ONLY public.flushes
    ADD CONSTRAINT fk_flushes_collection_id FOREIGN KEY (collection_id) REFERENCES public.collections(collection_id);
ALTER TABLE ONLY public.lanes
    ADD CONSTRAINT fk_lanes_channel_id FOREIGN KEY (channel_id) REFERENCES public.vchannels(channel_id);
ALTER TABLE ONLY public.lanes
    ADD CONSTRAINT fk_lanes_growing_segment_id FOREIGN KEY (growing_segment_id) REFERENCES public.segments(segment_id);
ALTER TABLE ONLY public.partitions
    ADD CONSTRAINT fk_partitions_collection_id FOREIGN KEY (collection_id) REFERENCES public.collections(collection_id);
ALTER TABLE ONLY public.placements
    ADD CONSTRAINT fk_placements_channel_id FOREIGN KEY (channel_id) REFERENCES public.vchannels(channel_id);
ALTER TABLE ONLY public.segments
    ADD CONSTRAINT fk_segments_channel_id FOREIGN KEY (channel_id) REFERENCES public.vchannels(channel_id);
ALTER TABLE ONLY public.vchannels
    ADD CONSTRAINT fk_vchannels_collection_id FOREIGN KEY (collection_id) REFERENCES public.collections(collection_id);
