"""ToolQA's graphs are read as data; no pickle of any protocol runs or imports anything."""

import contextlib
import os
import pickle
import struct
import tempfile
from pathlib import Path

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.errors import InvalidInputError
from resilisim.worlds.records.graph_files import read_graph, read_names


def graphs():
    papers, authors = networkx.DiGraph(), networkx.Graph()
    papers.add_node("p1", title="One", year=2001, venue={"raw": "V"}, tags={"b", "a"}, ok=True, score=0.5, none=None)
    papers.add_node(7)
    papers.add_edge("p1", 7, mentions=[1, 2], big=2**60)
    authors.add_edge("a1", "a2", weight=1, papers=["p1"], pair=("x", "y"))
    authors.add_edge("a2", "a2")
    shared = ["p1"]
    authors.add_edge("a1", "a3", papers=shared, again=shared)
    return papers, authors


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_graphs_of_every_protocol_are_read(protocol, tmp_path):
    for graph in graphs():
        _ = graph.adj, graph.nodes, graph.edges  # which are cached among its attributes
        file = tmp_path / "graph.pkl"
        file.write_bytes(pickle.dumps(graph, protocol))
        read = read_graph(file)
        plain = {"p1": {**graph.nodes.get("p1", {})}} if "p1" in graph else {}
        for about in plain.values():
            about["tags"] = ["a", "b"]
        assert read.is_directed() == graph.is_directed()
        assert dict(read.nodes(data=True)) == {**dict(graph.nodes(data=True)), **plain}
        assert {frozenset(edge) for edge in read.edges} == {frozenset(edge) for edge in graph.edges}
        for one, other, about in graph.edges(data=True):
            assert read.edges[one, other] == {k: list(v) if isinstance(v, tuple) else v for k, v in about.items()}
    (tmp_path / "names.pkl").write_bytes(pickle.dumps({"p1": "One", 2: "Zwei"}, protocol))
    assert read_names(tmp_path / "names.pkl") == {"p1": "One", 2: "Zwei"}


def stack_global(module, name, argument):
    """Return a pickle of protocol 4 that calls what a dotted name leads to."""

    def text(word):
        return b"\x8c" + bytes([len(word)]) + word.encode()

    return b"\x80\x04" + text(module) + text(name) + b"\x93" + text(argument) + b"\x85R."


class Calls:
    def __init__(self, function, *arguments):
        self.made = function, arguments

    def __reduce__(self):
        return self.made


def state_with(value):
    graph = networkx.Graph()
    graph.add_node("a", about=value)
    return pickle.dumps(graph)


HOSTILE = {
    "dotted name": stack_global("networkx.classes.graph", "nx.lazy_imports.os.system", "touch RAN"),
    "system": b"cos\nsystem\n(S'touch RAN'\ntR.",
    "posix": b"cposix\nsystem\n(S'touch RAN'\ntR.",
    "eval": stack_global("builtins", "eval", "open('RAN', 'w')"),
    "in a node": state_with(Calls(os.system, "touch RAN")),
    "build of a class": b"\x80\x04\x8c\x08builtins\x8c\x04dict\x93}b.",
    "instance": b"(ios\nsystem\n.",
    "object": b"(cos\nsystem\nS'touch RAN'\no.",
    "persistent": b"P1\n.",
    "extension": b"\x82\x01.",
    "no pickle": b"text",
    "empty": b"",
    "cut off": pickle.dumps(networkx.Graph([(1, 2)]))[:-20],
    "long number": b"\x80\x04\x8b" + struct.pack("<i", 10**6) + b"\x01" * 10**6 + b".",
    "huge text": b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"x.",
    "negative length": b"T" + struct.pack("<i", -5) + b"x.",
    "deep key": b"\x80\x04})" + b"\x85" * 200_000 + b"Ns.",
    "other protocol": b"\x80\x04K\x01.",
    "a mark is left": b"(.",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_nothing_runs(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "graph.pkl"
    file.write_bytes(data)
    for read in (read_graph, read_names):
        with pytest.raises(InvalidInputError, match=r"\A.*cannot be read.*\Z"):
            read(file)
    assert not (tmp_path / "RAN").exists()


def test_values_that_name_one_another_cost_no_memory(tmp_path):
    laughs = ["ha"]
    for _ in range(60):
        laughs = [laughs, laughs]
    deep = []
    for _ in range(400):
        deep = [deep]
    loop = []
    loop.append(loop)
    for value in (laughs, deep, loop):
        file = tmp_path / "graph.pkl"
        file.write_bytes(state_with(value))
        with pytest.raises(InvalidInputError, match="than graphs have"):
            read_graph(file)


@given(st.data())
def test_any_bytes_are_a_graph_or_a_refusal(data):
    """Bits of a good file are changed, and opcodes put in."""
    good = bytearray(pickle.dumps(graphs()[data.draw(st.integers(0, 1))], data.draw(st.integers(0, 5))))
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, len(good) - 1))
        good[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "graph.pkl"
        file.write_bytes(bytes(good))
        with contextlib.suppress(InvalidInputError):  # nothing else is ever raised
            read_graph(file)
