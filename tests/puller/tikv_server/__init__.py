"""A TiKV cluster for tests: stores and PD that speak TiKV's protocol over real sockets of this machine.

    mvcc       versions, locks and the rules of transactions
    topology   regions, leaders, and what PD believes of them
    change_data   the change feed of one store: incremental scans, live rows, resolved timestamps
    cluster    all of it as one model, with what can go wrong in it
    services, server   the model behind gRPC
    workload   transactions by seed; some of their clients die
    adversity  faults by seed

The model has no clock of its own and nothing random but what it is given, so a seed repeats its decisions. It is written from the
protocol and not from our client: it shares the client's generated messages and its encoding of keys, and nothing else.
"""
