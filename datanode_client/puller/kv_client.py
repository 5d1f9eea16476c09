"""The client of a change feed as a state machine: many spans over the same stores. The network client drives it.

core = KVClientCore()
subscription_id = core.subscribe(span, start_ts, now_ms)
# then, for ever: feed one input (regions_loaded, handle_event, store_failed, locks_resolved, tick, …),
# carry out core.take_actions(), hand core.take_outputs() on
"""

import random

from datanode_client.puller.actions import Action
from datanode_client.puller.errors import RegionRecovery
from datanode_client.puller.event_feed_session import REQUEST_ID_BITS, EventFeedSession
from datanode_client.puller.events import FeedEvent, RegionFeedEvent
from datanode_client.puller.feed_context import FeedContext, SessionStats
from datanode_client.puller.region_cache import RegionMeta
from datanode_client.puller.region_router import REGION_SCAN_LIMIT, RegionRouter
from datanode_client.puller.resolve_lock import DEFAULT_KEYSPACE
from datanode_client.puller.span import Span


class KVClientCore:
    """All subscriptions of one client. They share the region cache, the tokens of the stores, and, by request id, the streams.

    Args:
        region_scan_limit: regions of a store under initial scan at once.
        scan_window_multiplier: how many times that regions close to the present may use.
        filter_loop: leave out what a change feed wrote itself.
        rng: where jitter comes from.
    """

    def __init__(
        self,
        *,
        region_scan_limit: int = REGION_SCAN_LIMIT,
        scan_window_multiplier: int = 1,
        filter_loop: bool = False,
        rng: random.Random | None = None,
    ) -> None:
        self._context = FeedContext(
            router=RegionRouter(region_scan_limit, scan_window_multiplier),
            recovery=RegionRecovery(rng),
            filter_loop=filter_loop,
        )
        self._sessions: dict[int, EventFeedSession] = {}
        self._last_subscription_id = 0

    def subscribe(self, span: Span, start_ts: int, now_ms: int) -> int:
        """Begins to feed a span.

        Args:
            span: memcomparable.
            start_ts: changes after it are wanted.
            now_ms: the time.

        Returns:
            number of the subscription.
        """
        self._last_subscription_id += 1
        session = EventFeedSession(self._last_subscription_id, span, start_ts, self._context)
        self._sessions[session.subscription_id] = session
        session.start(now_ms)
        return session.subscription_id

    def unsubscribe(self, subscription_id: int, now_ms: int) -> None:
        """Ends a subscription; what still comes for it is dropped."""
        session = self._sessions.pop(subscription_id, None)
        if session is not None:
            session.stop(now_ms)
            self._send_ready()

    def session(self, subscription_id: int) -> EventFeedSession | None:
        """A subscription's session; None if it has ended."""
        return self._sessions.get(subscription_id)

    def regions_loaded(self, subscription_id: int, task_id: int, metas: list[RegionMeta], now_ms: int) -> None:
        """PD answered a LoadRegions with the regions, ordered by start."""
        session = self._sessions.get(subscription_id)
        if session is not None:
            session.regions_loaded(task_id, metas, now_ms)
            self._send_ready()

    def load_regions_failed(self, subscription_id: int, task_id: int, now_ms: int) -> None:
        """PD did not answer a LoadRegions."""
        self.regions_loaded(subscription_id, task_id, [], now_ms)

    def handle_event(self, event: FeedEvent, now_ms: int, *, subscription_id: int | None = None) -> None:
        """A store sent a message.

        Args:
            event: the message.
            now_ms: the time.
            subscription_id: whose stream it came on, where streams are not shared; None = the request id says it.

        Raises:
            FatalFeedError: the subscription's feed cannot go on.
        """
        if subscription_id is None and event.request_id is not None:
            subscription_id = event.request_id >> REQUEST_ID_BITS
        session = self._sessions.get(subscription_id) if subscription_id is not None else None
        if session is not None:
            session.handle_event(event, now_ms)
            self._send_ready()

    def store_failed(
        self, store_id: int, now_ms: int, *, unknown_to_pd: bool = False, subscription_id: int | None = None
    ) -> None:
        """A store cannot be reached, or its stream broke.

        Args:
            store_id: the store.
            now_ms: the time.
            unknown_to_pd: PD does not know the store, or not its address.
            subscription_id: whose stream broke, where streams are not shared; None = everybody's.
        """
        for session in list(self._sessions.values()):
            if subscription_id in {None, session.subscription_id}:
                session.store_failed(store_id, now_ms, unknown_to_pd=unknown_to_pd)
        self._send_ready()

    def locks_resolved(self, region_id: int, now_ms: int) -> None:
        """A ResolveLocks has ended, well or not, also if nobody is subscribed to the region any more."""
        self._context.limiter.finish(DEFAULT_KEYSPACE, region_id, now_ms)

    def tick(self, now_ms: int, pd_now_ms: int = 0) -> None:
        """Time has passed; see `next_due_ms`.

        Args:
            now_ms: the time by a monotonic clock.
            pd_now_ms: the time by PD's clock, never ahead of it; 0 = not known.
        """
        for session in list(self._sessions.values()):
            session.tick(now_ms, pd_now_ms)
        self._send_ready()

    def next_due_ms(self) -> int | None:
        """When `tick` has something to do next; None without subscriptions."""
        return min((session.next_due_ms() for session in self._sessions.values()), default=None)

    def take_actions(self) -> list[Action]:
        """What is to be done, oldest first; each is handed out once."""
        actions = list(self._context.actions)
        self._context.actions.clear()
        return actions

    def take_outputs(self) -> list[tuple[int, RegionFeedEvent]]:
        """What came out, with the number of its subscription; each is handed out once, in order per subscription."""
        outputs = []
        for session in self._sessions.values():
            outputs += [(session.subscription_id, output) for output in session.outputs]
            session.outputs.clear()
        return outputs

    def stats(self) -> dict[int, SessionStats]:
        """A look at every subscription."""
        return {session.subscription_id: session.stats() for session in self._sessions.values()}

    def _send_ready(self) -> None:
        """Sends whatever has a token now: an input of one session may give another one's region its place."""
        while (taken := self._context.router.take()) is not None:
            _, lease = taken
            lease.item.session.send(lease.item, lease)
