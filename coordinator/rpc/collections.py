"""CollectionService: what readers and people who create tables call."""

import asyncio
from collections.abc import Callable

from coordinator.core.model import ChannelMode
from coordinator.rpc import answers, validation
from coordinator.rpc.definitions import check_change, check_definition
from coordinator.rpc.guard import Call
from coordinator.store import NewCollection, Store, TimestampKind, reads
from datacoord.v1 import collection_pb2


class CollectionServicer:
    """The servicer.

    Args:
        store: the state.
        kick_assignment: called when there are new channels.
    """

    def __init__(self, store: Store, *, kick_assignment: Callable[[], None]) -> None:
        self._store = store
        self._kick_assignment = kick_assignment

    async def CreateCollection(  # noqa: N802 - methods are called what the contract calls them
        self, request: collection_pb2.CreateCollectionRequest, call: Call
    ) -> collection_pb2.CreateCollectionResponse:
        """Creates a collection, or returns the one of the same definition."""
        schema = check_definition(request)
        collection, created = await self._store.create_collection(
            NewCollection(
                name=request.collection_name,
                arrow_schema=schema,
                primary_key=tuple(request.primary_key),
                channel_count=request.channel_count,
                channel_mode=ChannelMode(request.channel_mode),
                timestamp_kind=TimestampKind(request.timestamp_kind),
                storage_root=request.storage_root,
                properties=dict(request.properties),
            ),
            caller=call.caller,
            deadline=call.deadline,
        )
        self._kick_assignment()
        return collection_pb2.CreateCollectionResponse(collection=answers.collection(collection), created=created)

    async def DescribeCollection(  # noqa: N802
        self, request: collection_pb2.DescribeCollectionRequest, _call: Call
    ) -> collection_pb2.DescribeCollectionResponse:
        """Describes a collection."""
        validation.collection_name(request.collection_name)
        collection = await self._store.describe_collection(request.collection_name)
        return collection_pb2.DescribeCollectionResponse(collection=answers.collection(collection))

    async def ListCollections(  # noqa: N802
        self, request: collection_pb2.ListCollectionsRequest, _call: Call
    ) -> collection_pb2.ListCollectionsResponse:
        """Lists collections by name."""
        page = await self._store.list_collections(
            page_size=validation.page_size(request.page_size), page_token=validation.page_token(request.page_token)
        )
        return collection_pb2.ListCollectionsResponse(
            collections=[answers.collection(row) for row in page.items], next_page_token=page.next_page_token
        )

    async def CreatePartition(  # noqa: N802
        self, request: collection_pb2.CreatePartitionRequest, call: Call
    ) -> collection_pb2.CreatePartitionResponse:
        """Creates a partition, or finds it."""
        validation.collection_name(request.collection_name)
        validation.partition_name(request.partition_name)
        partition_id = await self._store.create_partition(
            request.collection_name, request.partition_name, caller=call.caller, deadline=call.deadline
        )
        return collection_pb2.CreatePartitionResponse(partition_id=partition_id)

    async def ListBinlogs(  # noqa: N802
        self, request: collection_pb2.ListBinlogsRequest, _call: Call
    ) -> collection_pb2.ListBinlogsResponse:
        """Lists what a reader needs."""
        validation.collection_name(request.collection_name)
        page = await self._store.list_binlogs(
            request.collection_name,
            channel_names=validation.channel_names(request.channel_names, minimum=0),
            page_size=validation.page_size(request.page_size),
            page_token=validation.page_token(request.page_token),
        )
        response = collection_pb2.ListBinlogsResponse(next_page_token=page.next_page_token)
        for row in page.items:
            listed = response.channels.add()
            for step in answers.binlog_lists(row, reads.BINLOGS_PER_STEP):
                listed.MergeFrom(step)
                await asyncio.sleep(0)  # a page may hold very many, and others wait
        return response

    async def AlterCollection(  # noqa: N802
        self, request: collection_pb2.AlterCollectionRequest, call: Call
    ) -> collection_pb2.AlterCollectionResponse:
        """Adds nullable columns, sets and removes properties."""
        change = check_change(request)
        collection, outcome = await self._store.alter_collection(
            request.collection_name, change, caller=call.caller, deadline=call.deadline
        )
        return collection_pb2.AlterCollectionResponse(
            collection=answers.collection(collection), outcome=answers.number(outcome)
        )

    async def DropCollection(  # noqa: N802
        self, request: collection_pb2.DropCollectionRequest, call: Call
    ) -> collection_pb2.DropCollectionResponse:
        """Drops a collection."""
        validation.collection_name(request.collection_name)
        validation.number(request.collection_id, "collection_id", 0)
        drop = await self._store.drop_collection(
            request.collection_name, request.collection_id, caller=call.caller, deadline=call.deadline
        )
        return collection_pb2.DropCollectionResponse(collection_id=drop.number, outcome=answers.number(drop.outcome))

    async def DropPartition(  # noqa: N802
        self, request: collection_pb2.DropPartitionRequest, call: Call
    ) -> collection_pb2.DropPartitionResponse:
        """Drops a partition of every channel."""
        validation.collection_name(request.collection_name)
        if request.partition_name or not request.partition_id:
            validation.partition_name(request.partition_name)
        validation.number(request.partition_id, "partition_id", 0)
        drop = await self._store.drop_partition(
            request.collection_name,
            request.partition_name,
            request.partition_id,
            caller=call.caller,
            deadline=call.deadline,
        )
        return collection_pb2.DropPartitionResponse(partition_id=drop.number, outcome=answers.number(drop.outcome))
