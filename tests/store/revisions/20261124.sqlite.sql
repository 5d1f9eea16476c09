BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('20261124');
CREATE TABLE binlogs (
	binlog_id INTEGER NOT NULL, 
	segment_id INTEGER NOT NULL, 
	kind INTEGER NOT NULL, 
	field_id INTEGER NOT NULL, 
	log_id INTEGER NOT NULL, 
	epoch INTEGER NOT NULL, 
	range_from INTEGER NOT NULL, 
	range_to INTEGER NOT NULL, 
	rows INTEGER NOT NULL, 
	ts_min INTEGER NOT NULL, 
	ts_max INTEGER NOT NULL, 
	size_bytes INTEGER NOT NULL, 
	memory_bytes INTEGER NOT NULL, 
	CONSTRAINT pk_binlogs PRIMARY KEY (binlog_id), 
	CONSTRAINT ck_binlogs_timestamps CHECK (0 <= range_from AND range_from < ts_min AND ts_min <= ts_max AND ts_max <= range_to), 
	CONSTRAINT ck_binlogs_identity CHECK (field_id >= 0 AND log_id > 0 AND epoch > 0), 
	CONSTRAINT ck_binlogs_kind CHECK (kind BETWEEN 1 AND 3), 
	CONSTRAINT ck_binlogs_sizes CHECK (rows >= 0 AND size_bytes >= 0 AND memory_bytes >= 0), 
	CONSTRAINT fk_binlogs_segment_id FOREIGN KEY(segment_id) REFERENCES segments (segment_id)
)
 STRICT

;
INSERT INTO "binlogs" VALUES(1,7,1,0,1,3,0,7,1,1,7,10,20);
INSERT INTO "binlogs" VALUES(2,8,1,0,2,4,0,7,1,1,7,10,20);
INSERT INTO "binlogs" VALUES(3,17,1,0,3,8,0,10,1,1,10,10,20);
INSERT INTO "binlogs" VALUES(4,18,1,0,4,8,0,12,1,1,12,10,20);
INSERT INTO "binlogs" VALUES(5,19,1,0,5,8,10,20,1,11,20,10,20);
INSERT INTO "binlogs" VALUES(6,20,1,0,6,8,0,20,1,1,20,10,20);
INSERT INTO "binlogs" VALUES(7,21,1,0,7,9,0,5,1,1,5,10,20);
CREATE TABLE channel_state (
	channel_id INTEGER NOT NULL, 
	epoch INTEGER NOT NULL, 
	state INTEGER NOT NULL, 
	owner_id INTEGER NOT NULL, 
	release_requested INTEGER NOT NULL, 
	flush_timestamp INTEGER NOT NULL, 
	checkpoint_timestamp INTEGER NOT NULL, 
	checkpoint_event_time_ms INTEGER NOT NULL, 
	checkpoint_msg_id BLOB NOT NULL, 
	checkpoint_msg_group TEXT NOT NULL, 
	CONSTRAINT pk_channel_state PRIMARY KEY (channel_id), 
	CONSTRAINT ck_channel_state_checkpoint_timestamp CHECK (checkpoint_timestamp >= 0), 
	CONSTRAINT ck_channel_state_epoch CHECK (epoch > 0), 
	CONSTRAINT ck_channel_state_flush_timestamp CHECK (flush_timestamp = 0 OR flush_timestamp > checkpoint_timestamp), 
	CONSTRAINT ck_channel_state_checkpoint_msg_id CHECK (length(checkpoint_msg_id) <= 4096), 
	CONSTRAINT ck_channel_state_owner_id CHECK (owner_id >= 0), 
	CONSTRAINT ck_channel_state_release_requested CHECK (release_requested IN (0, 1)), 
	CONSTRAINT ck_channel_state_tombstone CHECK (state = 1 OR (owner_id = 0 AND release_requested = 0 AND flush_timestamp = 0)), 
	CONSTRAINT ck_channel_state_state CHECK (state IN (1, 2)), 
	CONSTRAINT fk_channel_state_channel_id FOREIGN KEY(channel_id) REFERENCES vchannels (channel_id)
)
 STRICT

;
INSERT INTO "channel_state" VALUES(3,3,1,6,0,0,7,70,X'696437','group7');
INSERT INTO "channel_state" VALUES(4,4,1,6,0,0,7,70,X'696437','group7');
INSERT INTO "channel_state" VALUES(11,8,1,16,1,30,15,150,X'69643135','group15');
INSERT INTO "channel_state" VALUES(12,9,1,16,1,6,5,50,X'696435','group5');
INSERT INTO "channel_state" VALUES(13,11,2,0,0,0,0,0,X'','');
CREATE TABLE collections (
	collection_id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	state INTEGER NOT NULL, 
	arrow_schema BLOB NOT NULL, 
	primary_key TEXT NOT NULL, 
	channel_count INTEGER NOT NULL, 
	channel_mode INTEGER NOT NULL, 
	timestamp_kind INTEGER NOT NULL, 
	storage_root TEXT NOT NULL, 
	properties TEXT NOT NULL, 
	create_time_ms INTEGER NOT NULL, 
	CONSTRAINT pk_collections PRIMARY KEY (collection_id), 
	CONSTRAINT ck_collections_channel_count CHECK (channel_count BETWEEN 1 AND 65536), 
	CONSTRAINT ck_collections_channel_mode CHECK (channel_mode IN (1, 2)), 
	CONSTRAINT ck_collections_collection_id CHECK (collection_id > 0), 
	CONSTRAINT ck_collections_name CHECK (length(name) BETWEEN 1 AND 128), 
	CONSTRAINT ck_collections_state CHECK (state IN (1, 2)), 
	CONSTRAINT ck_collections_timestamp_kind CHECK (timestamp_kind IN (1, 2))
)
 STRICT

;
INSERT INTO "collections" VALUES(1,'claimed',1,X'736368656D61','["k"]',2,2,1,'/objects/1','{}',1000000);
INSERT INTO "collections" VALUES(9,'managed',1,X'736368656D61','["k"]',3,1,1,'/objects/9','{}',1000000);
CREATE TABLE datanode_reports (
	node_id INTEGER NOT NULL, 
	report BLOB NOT NULL, 
	CONSTRAINT pk_datanode_reports PRIMARY KEY (node_id), 
	CONSTRAINT fk_datanode_reports_node_id FOREIGN KEY(node_id) REFERENCES datanodes (node_id)
)
 STRICT

;
INSERT INTO "datanode_reports" VALUES(16,X'0810120F0A0B6D616E616765645F397630181E120F0A0B6D616E616765645F3976311806');
INSERT INTO "datanode_reports" VALUES(23,X'');
CREATE TABLE datanodes (
	node_id INTEGER NOT NULL, 
	job TEXT NOT NULL, 
	slot INTEGER NOT NULL, 
	state INTEGER NOT NULL, 
	host TEXT NOT NULL, 
	pid INTEGER NOT NULL, 
	collection_ids TEXT NOT NULL, 
	desired_revision INTEGER NOT NULL, 
	register_time_ms INTEGER NOT NULL, 
	CONSTRAINT pk_datanodes PRIMARY KEY (node_id), 
	CONSTRAINT ck_datanodes_desired_revision CHECK (desired_revision > 0), 
	CONSTRAINT ck_datanodes_job CHECK (length(job) BETWEEN 1 AND 128), 
	CONSTRAINT ck_datanodes_slot CHECK (slot BETWEEN 0 AND 65535), 
	CONSTRAINT ck_datanodes_state CHECK (state IN (1, 2, 4, 5)), 
	CONSTRAINT fk_datanodes_node_id FOREIGN KEY(node_id) REFERENCES owners (owner_id)
)
 STRICT

;
INSERT INTO "datanodes" VALUES(16,'job',0,2,'h',1,'[9]',7,1000000);
INSERT INTO "datanodes" VALUES(23,'job',1,2,'h',2,'[9]',1,1000000);
CREATE TABLE epochs (
	name TEXT NOT NULL, 
	value INTEGER NOT NULL, 
	CONSTRAINT pk_epochs PRIMARY KEY (name), 
	CONSTRAINT ck_epochs_value CHECK (value >= 0)
)
 STRICT

;
INSERT INTO "epochs" VALUES('epoch',11);
INSERT INTO "epochs" VALUES('id',23);
CREATE TABLE events (
	event_id INTEGER NOT NULL, 
	time_ms INTEGER NOT NULL, 
	rpc TEXT NOT NULL, 
	caller TEXT NOT NULL, 
	channels INTEGER NOT NULL, 
	items INTEGER NOT NULL, 
	changes TEXT NOT NULL, 
	CONSTRAINT pk_events PRIMARY KEY (event_id), 
	CONSTRAINT ck_events_counts CHECK (channels >= 0 AND items >= 0)
)
 STRICT

;
INSERT INTO "events" VALUES(1,1000000,'CreateCollection','test',2,1,'[[1,0]]');
INSERT INTO "events" VALUES(2,1000000,'CreatePartition','test',0,1,'[[1,5]]');
INSERT INTO "events" VALUES(3,1000000,'ClaimChannels','test',2,2,'[[3,3,6,0],[4,4,6,0]]');
INSERT INTO "events" VALUES(4,1000000,'SaveBinlogPaths','test',1,1,'[[3,3,7,[[2,0,7,1,1,7]]]]');
INSERT INTO "events" VALUES(5,1000000,'SaveBinlogPaths','test',1,1,'[[4,4,7,[[2,0,7,1,1,8]]]]');
INSERT INTO "events" VALUES(6,1000000,'CreateCollection','test',3,1,'[[9,0]]');
INSERT INTO "events" VALUES(7,1000000,'CreatePartition','test',0,1,'[[9,14]]');
INSERT INTO "events" VALUES(8,1000000,'CreatePartition','test',0,1,'[[9,15]]');
INSERT INTO "events" VALUES(9,1000000,'RegisterDataNode','test',0,1,'[]');
INSERT INTO "events" VALUES(10,1000000,'AssignmentJob','job',3,3,'[[11,8,16,0],[12,9,16,0],[13,10,16,0]]');
INSERT INTO "events" VALUES(11,1000000,'SaveBinlogPaths','test',1,2,'[[11,8,null,[[10,0,10,1,1,17],[14,0,12,1,1,18]]]]');
INSERT INTO "events" VALUES(12,1000000,'SaveBinlogPaths','test',1,2,'[[11,8,15,[[10,10,20,1,11,19],[15,0,20,1,1,20]]]]');
INSERT INTO "events" VALUES(13,1000000,'SaveBinlogPaths','test',1,1,'[[12,9,5,[[-1,0,5,1,1,21]]]]');
INSERT INTO "events" VALUES(14,1000000,'DropVirtualChannel','test',1,1,'[[13,10,null,[]]]');
INSERT INTO "events" VALUES(15,1000000,'DropPartition','test',2,1,'[[9,15]]');
INSERT INTO "events" VALUES(16,1000000,'Flush','test',2,1,'[[11,30],[12,6]]');
INSERT INTO "events" VALUES(17,1000000,'RegisterDataNode','test',0,1,'[]');
INSERT INTO "events" VALUES(18,1000000,'MoveChannel','test',1,1,'[[11,8,16,15]]');
CREATE TABLE flush_targets (
	flush_id INTEGER NOT NULL, 
	channel_id INTEGER NOT NULL, 
	target_timestamp INTEGER NOT NULL, 
	CONSTRAINT pk_flush_targets PRIMARY KEY (flush_id, channel_id), 
	CONSTRAINT ck_flush_targets_target_timestamp CHECK (target_timestamp >= 0), 
	CONSTRAINT fk_flush_targets_channel_id FOREIGN KEY(channel_id) REFERENCES vchannels (channel_id), 
	CONSTRAINT fk_flush_targets_flush_id FOREIGN KEY(flush_id) REFERENCES flushes (flush_id)
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "flush_targets" VALUES(22,11,30);
INSERT INTO "flush_targets" VALUES(22,12,6);
CREATE TABLE "flushes" (
                flush_id INTEGER NOT NULL,
                collection_id INTEGER,
                create_time_ms INTEGER NOT NULL,
                done_time_ms INTEGER NOT NULL DEFAULT 0,
                CONSTRAINT pk_flushes PRIMARY KEY (flush_id),
                CONSTRAINT ck_flushes_flush_id CHECK (flush_id > 0),
                CONSTRAINT ck_flushes_done_time_ms CHECK (done_time_ms >= 0),
                CONSTRAINT fk_flushes_collection_id FOREIGN KEY(collection_id) REFERENCES collections (collection_id)
            ) STRICT
            ;
INSERT INTO "flushes" VALUES(22,9,1000000,0);
CREATE TABLE gc_control (
	control_id INTEGER NOT NULL, 
	paused INTEGER NOT NULL, 
	paused_until_ms INTEGER NOT NULL, 
	pause_reason TEXT NOT NULL, 
	held INTEGER NOT NULL, 
	hold_reason TEXT NOT NULL, 
	run_requested INTEGER NOT NULL, 
	last_round BLOB NOT NULL, 
	CONSTRAINT pk_gc_control PRIMARY KEY (control_id), 
	CONSTRAINT ck_gc_control_control_id CHECK (control_id = 1), 
	CONSTRAINT ck_gc_control_held CHECK (held = 1 OR (held = 0 AND hold_reason = '')), 
	CONSTRAINT ck_gc_control_paused CHECK (paused = 1 OR (paused = 0 AND paused_until_ms = 0 AND pause_reason = '')), 
	CONSTRAINT ck_gc_control_paused_until_ms CHECK (paused_until_ms >= 0), 
	CONSTRAINT ck_gc_control_reasons CHECK (length(pause_reason) <= 256 AND length(hold_reason) <= 256), 
	CONSTRAINT ck_gc_control_run_requested CHECK (run_requested IN (0, 1))
)
 STRICT

;
INSERT INTO "gc_control" VALUES(1,0,0,'',0,'',0,X'');
CREATE TABLE job_leases (
	name TEXT NOT NULL, 
	holder TEXT NOT NULL, 
	fence INTEGER NOT NULL, 
	lease_until_ms INTEGER NOT NULL, 
	CONSTRAINT pk_job_leases PRIMARY KEY (name), 
	CONSTRAINT ck_job_leases_fence CHECK (fence > 0)
)
 STRICT

;
INSERT INTO "job_leases" VALUES('assignment','this',1,2000000);
INSERT INTO "job_leases" VALUES('lease','this',1,2000000);
CREATE TABLE lanes (
	channel_id INTEGER NOT NULL, 
	partition_id INTEGER NOT NULL, 
	progress INTEGER NOT NULL, 
	growing_segment_id INTEGER, 
	CONSTRAINT pk_lanes PRIMARY KEY (channel_id, partition_id), 
	CONSTRAINT ck_lanes_partition_id CHECK (partition_id > 0 OR partition_id = -1), 
	CONSTRAINT ck_lanes_progress CHECK (progress > 0), 
	CONSTRAINT fk_lanes_channel_id FOREIGN KEY(channel_id) REFERENCES vchannels (channel_id), 
	CONSTRAINT fk_lanes_growing_segment_id FOREIGN KEY(growing_segment_id) REFERENCES segments (segment_id)
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "lanes" VALUES(3,2,7,7);
INSERT INTO "lanes" VALUES(4,2,7,8);
INSERT INTO "lanes" VALUES(11,10,20,19);
INSERT INTO "lanes" VALUES(11,14,12,18);
INSERT INTO "lanes" VALUES(11,15,20,NULL);
INSERT INTO "lanes" VALUES(12,-1,5,21);
CREATE TABLE owners (
	owner_id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	kind INTEGER NOT NULL, 
	lease_until_ms INTEGER NOT NULL, 
	last_seen_time_ms INTEGER NOT NULL, 
	CONSTRAINT pk_owners PRIMARY KEY (owner_id), 
	CONSTRAINT ck_owners_kind CHECK (kind IN (1, 2)), 
	CONSTRAINT ck_owners_name CHECK (length(name) BETWEEN 1 AND 256), 
	CONSTRAINT ck_owners_owner_id CHECK (owner_id > 0), 
	CONSTRAINT uq_owners_name UNIQUE (name)
)
 STRICT

;
INSERT INTO "owners" VALUES(6,'query-1',2,1020000,1000000);
INSERT INTO "owners" VALUES(16,'job/0#16',1,1010000,1000000);
INSERT INTO "owners" VALUES(23,'job/1#23',1,1010000,1000000);
CREATE TABLE partitions (
	partition_id INTEGER NOT NULL, 
	collection_id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	state INTEGER NOT NULL, 
	CONSTRAINT pk_partitions PRIMARY KEY (partition_id), 
	CONSTRAINT ck_partitions_name CHECK (length(name) BETWEEN 1 AND 128), 
	CONSTRAINT ck_partitions_partition_id CHECK (partition_id > 0), 
	CONSTRAINT ck_partitions_state CHECK (state IN (1, 2)), 
	CONSTRAINT fk_partitions_collection_id FOREIGN KEY(collection_id) REFERENCES collections (collection_id)
)
 STRICT

;
INSERT INTO "partitions" VALUES(2,1,'_default',1);
INSERT INTO "partitions" VALUES(5,1,'other',1);
INSERT INTO "partitions" VALUES(10,9,'_default',1);
INSERT INTO "partitions" VALUES(14,9,'other',1);
INSERT INTO "partitions" VALUES(15,9,'dropped',2);
CREATE TABLE placements (
	channel_id INTEGER NOT NULL, 
	node_id INTEGER NOT NULL, 
	from_node_id INTEGER NOT NULL, 
	CONSTRAINT pk_placements PRIMARY KEY (channel_id), 
	CONSTRAINT ck_placements_nodes CHECK (node_id > 0 OR (node_id = 0 AND from_node_id > 0)), 
	CONSTRAINT fk_placements_channel_id FOREIGN KEY(channel_id) REFERENCES vchannels (channel_id)
)
 STRICT

;
INSERT INTO "placements" VALUES(11,23,16);
CREATE TABLE segments (
	segment_id INTEGER NOT NULL, 
	channel_id INTEGER NOT NULL, 
	partition_id INTEGER NOT NULL, 
	state INTEGER NOT NULL, 
	level INTEGER NOT NULL, 
	rows INTEGER NOT NULL, 
	delete_rows INTEGER NOT NULL, 
	size_bytes INTEGER NOT NULL, 
	binlogs INTEGER NOT NULL, 
	timestamp_from INTEGER NOT NULL, 
	timestamp_to INTEGER NOT NULL, 
	seal_reason TEXT NOT NULL, 
	create_time_ms INTEGER NOT NULL, 
	last_write_time_ms INTEGER NOT NULL, ranges INTEGER NOT NULL DEFAULT 1 CONSTRAINT ck_segments_ranges CHECK (ranges > 0), 
	CONSTRAINT pk_segments PRIMARY KEY (segment_id), 
	CONSTRAINT ck_segments_seal_reason CHECK (state <> 1 OR seal_reason = ''), 
	CONSTRAINT ck_segments_level CHECK (level IN (1, 2, 3)), 
	CONSTRAINT ck_segments_partition_id CHECK (partition_id > 0 OR partition_id = -1), 
	CONSTRAINT ck_segments_sizes CHECK (rows >= 0 AND delete_rows >= 0 AND size_bytes >= 0 AND binlogs > 0), 
	CONSTRAINT ck_segments_segment_id CHECK (segment_id > 0), 
	CONSTRAINT ck_segments_state CHECK (state IN (1, 2, 4)), 
	CONSTRAINT ck_segments_range CHECK (timestamp_from >= 0 AND timestamp_from < timestamp_to), 
	CONSTRAINT fk_segments_channel_id FOREIGN KEY(channel_id) REFERENCES vchannels (channel_id)
)
 STRICT

;
INSERT INTO "segments" VALUES(7,3,2,1,2,1,0,10,1,0,7,'',1000000,1000000,1);
INSERT INTO "segments" VALUES(8,4,2,1,2,1,0,10,1,0,7,'',1000000,1000000,1);
INSERT INTO "segments" VALUES(17,11,10,2,2,1,0,10,1,0,10,'requested',1000000,1000000,1);
INSERT INTO "segments" VALUES(18,11,14,1,2,1,0,10,1,0,12,'',1000000,1000000,1);
INSERT INTO "segments" VALUES(19,11,10,1,2,1,0,10,1,10,20,'',1000000,1000000,1);
INSERT INTO "segments" VALUES(20,11,15,4,2,1,0,10,1,0,20,'dropped',1000000,1000000,1);
INSERT INTO "segments" VALUES(21,12,-1,1,1,1,0,10,1,0,5,'',1000000,1000000,1);
CREATE TABLE vchannels (
	channel_id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	collection_id INTEGER NOT NULL, 
	channel_index INTEGER NOT NULL, 
	mode INTEGER NOT NULL, 
	consumed_timestamp INTEGER NOT NULL, finished_timestamp INTEGER NOT NULL DEFAULT 0 CONSTRAINT ck_vchannels_finished_timestamp CHECK (finished_timestamp >= 0), 
	CONSTRAINT pk_vchannels PRIMARY KEY (channel_id), 
	CONSTRAINT ck_vchannels_channel_id CHECK (channel_id > 0), 
	CONSTRAINT ck_vchannels_channel_index CHECK (channel_index >= 0), 
	CONSTRAINT ck_vchannels_consumed_timestamp CHECK (consumed_timestamp >= 0), 
	CONSTRAINT ck_vchannels_mode CHECK (mode IN (1, 2)), 
	CONSTRAINT fk_vchannels_collection_id FOREIGN KEY(collection_id) REFERENCES collections (collection_id), 
	CONSTRAINT uq_vchannels_collection_id_channel_index UNIQUE (collection_id, channel_index), 
	CONSTRAINT uq_vchannels_name UNIQUE (name)
)
 STRICT

;
INSERT INTO "vchannels" VALUES(3,'claimed_1v0',1,0,2,0,0);
INSERT INTO "vchannels" VALUES(4,'claimed_1v1',1,1,2,0,0);
INSERT INTO "vchannels" VALUES(11,'managed_9v0',9,0,1,0,0);
INSERT INTO "vchannels" VALUES(12,'managed_9v1',9,1,1,0,0);
INSERT INTO "vchannels" VALUES(13,'managed_9v2',9,2,1,0,0);
CREATE UNIQUE INDEX uq_collections_name ON collections (name) WHERE state = 1;
CREATE UNIQUE INDEX uq_datanodes_job_slot ON datanodes (job, slot) WHERE state <> 5;
CREATE INDEX ix_partitions_collection_id ON partitions (collection_id);
CREATE UNIQUE INDEX uq_partitions_collection_id_name ON partitions (collection_id, name) WHERE state = 1;
CREATE INDEX ix_channel_state_owner_id ON channel_state (owner_id);
CREATE INDEX ix_flush_targets_channel_id_target_timestamp ON flush_targets (channel_id, target_timestamp);
CREATE INDEX ix_segments_channel_id ON segments (channel_id);
CREATE UNIQUE INDEX uq_segments_growing ON segments (channel_id, partition_id) WHERE state = 1;
CREATE INDEX ix_binlogs_segment_id ON binlogs (segment_id);
COMMIT;
