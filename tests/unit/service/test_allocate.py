"""Is room offered once, in order, and is a shortage said in words?"""

from service.control.allocate import Claim, allocate
from service.control.observation import Capacity, Node
from service.control.spec import Resources
from tests.builders import capacity


def claim(job: str, most: int, held: tuple[str, ...] = (), **resources: float) -> Claim:
    return Claim(job, Resources.model_validate({"cpu": 1, **resources}), most, held)


def test_room_is_shared_out_once_first_come_first_served() -> None:
    offers = allocate([claim("x", 3), claim("y", 3)], capacity(a=2, b=2))
    assert sorted(offers["x"].nodes) == ["a", "a", "b"]
    assert len(offers["y"].nodes) == 1


def test_what_rows_hold_is_not_offered() -> None:
    offers = allocate([claim("x", 0, ("a", "a")), claim("y", 2)], capacity(a=2, b=1))
    assert offers["y"].nodes == ("b",)


def test_dead_nodes_offer_nothing() -> None:
    nodes = Capacity((Node("a", "node-a", {"CPU": 4}, is_alive=False), Node("b", "node-b", {"CPU": 1})))
    assert allocate([claim("x", 4)], nodes)["x"].nodes == ("b",)


def test_a_shortage_names_each_node_and_what_it_has() -> None:
    offers = allocate([claim("x", 0, ("a",)), claim("y", 3)], capacity(a=1, b=0))
    assert offers["y"].text == "{cpu 1}; free: node-a cpu 0; node-b cpu 0"


def test_an_empty_cluster_says_so() -> None:
    assert "no node" in allocate([claim("x", 1)], Capacity())["x"].text


def test_custom_resources_count() -> None:
    nodes = Capacity((Node("a", "node-a", {"CPU": 4, "NPU": 1}),))
    assert allocate([claim("x", 3, npu=1)], nodes)["x"].nodes == ("a",)
