"""The puller: a change source that is cut into key ranges (regions) becomes one stream with a resolved timestamp.

The parts are state machines without I/O: they are fed with decoded events and the time, and return what is to be done. From the
wire to the reader:

    events             decoded rows and messages of the change feed
    span, region_cache where the regions of a span are, and which store leads them
    range_lock         one region at a time may feed a key range; remembers how far each range has come
    admission, region_router   how many regions of a store may be scanned at once
    matcher, region_worker     prewrite + commit = a change; per region the resolved timestamp
    errors             what to do about a failure, and how long to wait
    lock_heap, resolve_lock    locks that hold the resolved timestamp back
    event_feed_session all of the above for one span: a state machine that answers with `actions`
    kv_client          all spans of one client: what the network client drives
    frontier, puller   the smallest resolved timestamp over all ranges; `Puller.run`, `output`, `resolved_ts`, `stats`
    sorter             changes in commit order up to the resolved timestamp, one message per commit timestamp
    ddl_job_puller     the feed of schema changes

They follow TiCDC's puller; `docs/origins/004_ticdc_puller.md` says what was kept, what was changed and why.
"""
