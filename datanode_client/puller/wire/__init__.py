"""TiKV's protocol as far as the puller speaks it: our own definitions of the messages, with only the fields that are used.

Numbers and meanings of the fields are TiKV's; names are theirs, too, so that their documentation can be read beside ours. The
packages are not: a process that has loaded TiKV's own stubs must be able to load these. Protobuf does not write package names on
the wire, and the paths of the calls, which do contain TiKV's, stand in `datanode_client.puller.tikv.calls`.

`*_pb2*` is generated (`make proto`).
"""
