"""Which node gets a sandbox, and who is served next."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from hone.sandbox.pool.admission import FairQueue
from hone.sandbox.pool.fleet import COLD_STARTS, MEMORY_FLOOR_MIB, choose
from hone.sandbox.pool.leases import Lease
from hone.sandbox.pool.nodes import Breaker, Node
from hone.sandbox.remote.wire import NodeReply, SpecBody
from tests.sandbox.pool.simulated import SimulatedNode

IMAGE = "docker.io/library/debian:12"


def view(
    url: str = "a",
    *,
    capacity: int = 10,
    used: int = 0,
    starting: int = 0,
    starting_image: int = 0,
    has_image: bool = True,
    free_memory_mib: int = 8192,
) -> Node:
    """A node with `starting` starts of other images, and `starting_image` of IMAGE."""
    info = NodeReply(
        provider="simulated",
        boot="1",
        capacity=capacity,
        memory_mib=64_000,
        free_memory_mib=free_memory_mib,
        images=[],
        sandboxes=[],
        accepting=True,
    )
    images = {IMAGE} if has_image else set[str]()
    starts = Counter({IMAGE: starting_image, "other": starting})
    node = Node(url=url, api=SimulatedNode(), start_gate=4, info=info, images=images, foreign=used)
    node.starting = +starts
    return node


def pick(*nodes: Node) -> str | None:
    chosen = choose(nodes, IMAGE, memory_mib=512)
    return chosen.url if chosen else None


views = st.builds(
    view,
    url=st.text(min_size=1, max_size=3),
    capacity=st.integers(0, 4),
    used=st.integers(0, 5),
    starting=st.integers(0, 5),
    starting_image=st.integers(0, 2),
    has_image=st.booleans(),
    free_memory_mib=st.integers(0, 2048),
)


@given(st.lists(views, unique_by=lambda node: node.url))
def test_choice_respects_capacity_gate_and_memory(nodes: list[Node]) -> None:
    url = pick(*nodes)
    if url is None:
        return
    [chosen] = [node for node in nodes if node.url == url]
    assert chosen.used < chosen.capacity
    assert chosen.starting.total() < 4
    assert chosen.free_memory_mib >= MEMORY_FLOOR_MIB
    if not chosen.has_image(IMAGE):
        assert chosen.starting[IMAGE] == 0
        assert sum(node.starting[IMAGE] for node in nodes if not node.has_image(IMAGE)) < COLD_STARTS


@given(st.lists(views, unique_by=lambda node: node.url), st.randoms())
def test_order_of_nodes_does_not_decide_whether_one_is_chosen(nodes: list[Node], random: object) -> None:
    shuffled = list(nodes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert (pick(*nodes) is None) == (pick(*shuffled) is None)


def test_the_least_loaded_node_by_share_is_chosen() -> None:
    assert pick(view("small", capacity=4, used=2), view("big", capacity=100, used=30)) == "big"


def test_node_with_the_image_is_preferred_unless_much_fuller() -> None:
    assert pick(view("warm", used=4), view("cold", has_image=False)) == "warm"
    assert pick(view("warm", used=6), view("cold", has_image=False)) == "cold"


def test_starts_of_a_new_image_wait_while_it_is_being_fetched() -> None:
    fetching = [view(name, has_image=False, starting_image=1) for name in "ab"]
    assert pick(*fetching, view("c", has_image=False)) is None
    assert pick(*fetching, view("c")) == "c"
    assert pick(fetching[0], view("c", has_image=False)) == "c"


def test_a_node_short_of_memory_is_the_last_choice() -> None:
    assert pick(view("short", free_memory_mib=300), view("full", used=9)) == "full"
    assert pick(view("short", free_memory_mib=300)) == "short"
    assert pick(view("none", free_memory_mib=100)) is None


def test_breaker_opens_after_three_failures_then_allows_one_start() -> None:
    breaker = Breaker(first_s=10.0, longest_s=15.0)
    for now in (0.0, 1.0):
        breaker.failed(now)
    breaker.succeeded()
    for now in (2.0, 3.0):
        breaker.failed(now)
    assert not breaker.is_open(3.0)
    breaker.failed(4.0)
    assert breaker.is_open(13.9)
    assert not breaker.is_open(14.0)
    assert breaker.is_trying
    breaker.failed(14.0)  # half-open: one failure is enough
    assert breaker.is_open(28.9)
    assert not breaker.is_open(29.0)  # 15 s: the longest
    breaker.succeeded()
    assert not breaker.is_trying
    assert not breaker.is_open(-math.inf)


# --- the queue


def waiting(name: str, run: str, image: str = "host") -> Lease:
    spec = SpecBody(run=run, image=image)
    return Lease(id=name, owner="o", spec=spec, ttl_s=1.0, created=0.0)


def served(queue: FairQueue, places: int, *shut: str) -> list[str]:
    """Who gets so many places, when no start of some images is possible."""
    order: list[str] = []

    def place(lease: Lease) -> bool:
        if lease.spec.image in shut or len(order) == places:
            return False
        order.append(lease.id)
        return True

    queue.serve(place)
    return order


def test_waiting_image_does_not_block_other_images() -> None:
    queue = FairQueue()
    for name, image in (("1", "new"), ("2", "old"), ("3", "new"), ("4", "old")):
        queue.add(waiting(name, "r", image))
    assert served(queue, 10, "new") == ["2", "4"]
    assert served(queue, 10) == ["1", "3"]
    assert queue.waiting() == {}


def test_lease_of_a_failed_node_is_first_in_its_run() -> None:
    queue = FairQueue()
    leases = [waiting(str(number), "r") for number in range(3)]
    for lease in leases:
        queue.add(lease)
    assert served(queue, 1) == ["0"]
    queue.put_back(leases[0])
    assert served(queue, 2) == ["0", "1"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy")), max_size=30), st.integers(1, 30))
def test_runs_are_served_in_turn(arrivals: list[tuple[str, str]], places: int) -> None:
    queue = FairQueue()
    for number, (run, image) in enumerate(arrivals):
        queue.add(waiting(f"{run}{number}", run, image))
    order = served(queue, places)
    assert len(order) == min(places, len(arrivals))
    for run in "abc":  # first come, first served
        mine = [int(name[1:]) for name in order if name[0] == run]
        assert mine == sorted(mine)
    counts = {run: sum(name[0] == run for name in order) for run in queue.waiting()}
    assert all(
        max(map(len, [[n for n in order if n[0] == r] for r in "abc"])) <= n + 1 for n in counts.values()
    )
    assert sum(queue.waiting().values()) == len(arrivals) - len(order)
