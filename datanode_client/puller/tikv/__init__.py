"""The network client of TiKV's change feed: PD, the streams of the stores, lock resolution.

    client            `TiKVClient`: carries out what the core (`puller.kv_client`) asks, and feeds it with what comes
    store_stream      one stream to one store, new protocol or old
    codec             messages of the wire to and from the values of the core
    pd_client         where regions are, where stores are, what time it is; follows PD's leader
    store_directory   addresses of stores and the connections to them
    lock_resolver     ends transactions that dead clients left behind
    gc_safe_point     keeps the cluster from removing history that is still needed
    calls, settings   paths of the calls; settings

All decisions are the core's; this is the edge. It lives on one event loop.
"""
