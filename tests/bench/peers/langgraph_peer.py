"""LangGraph with its Postgres checkpointer: a job is a graph of five nodes, each committed before the next begins.

It runs in the client's own process, without broker or HTTP; the many jobs of B2 in two processes. `PEER_DATABASE` is
a database of its own.
"""

from __future__ import annotations

import atexit
import operator
import os
import time
import uuid
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from typing import Annotated, Any, TypedDict

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from psycopg.rows import dict_row

from tests.bench.peers.orders import STEPS, WAIT_SECONDS, expect, serve

PROCESSES = 2
DURABILITY = "sync"
THREADS = 128


class State(TypedDict):
    """What the nodes have returned."""

    values: Annotated[list[int], operator.add]


class Leaf(TypedDict):
    """What a step of the fan-out is given."""

    seconds: float


@cache
def saver() -> PostgresSaver:
    """Return this process's checkpointer, on a connection of its own."""
    connection = psycopg.connect(
        os.environ["PEER_DATABASE"], autocommit=True, prepare_threshold=0, row_factory=dict_row
    )
    return PostgresSaver(connection)


def step(state: State) -> dict[str, list[int]]:
    """Return what the step before returned."""
    return {"values": [state["values"][-1]]}


@cache
def chain(steps: int) -> Any:
    """Return a graph of so many steps, one after the other."""
    graph = StateGraph(State)
    names = [f"step{index}" for index in range(steps)]
    for name, before in zip(names, [START, *names], strict=False):
        graph.add_node(name, step)
        graph.add_edge(before, name)
    graph.add_edge(names[-1], END)
    return graph.compile(checkpointer=saver())


@cache
def wide(width: int) -> Any:
    """Return a graph that starts so many waiting steps beside one another, and joins them."""

    def leaf(given: Leaf) -> dict[str, list[int]]:
        time.sleep(given["seconds"])
        return {"values": [1]}

    graph = StateGraph(State)
    graph.add_node("begin", lambda _: {"values": []})
    graph.add_node("leaf", leaf)
    graph.add_node("join", lambda state: {"values": [len(state["values"])]})
    graph.add_edge(START, "begin")
    graph.add_conditional_edges("begin", lambda _: [Send("leaf", {"seconds": WAIT_SECONDS})] * width, ["leaf"])
    graph.add_edge("leaf", "join")
    graph.add_edge("join", END)
    return graph.compile(checkpointer=saver())


def config() -> Any:
    """Return the settings of a new job."""
    return {"configurable": {"thread_id": str(uuid.uuid4())}, "recursion_limit": 1000, "max_concurrency": THREADS}


def long(steps: int) -> None:
    """Run a chain of so many steps."""
    expect(chain(steps).invoke({"values": [1]}, config(), durability=DURABILITY)["values"][-1], 1)


def one(_: int) -> None:
    """Run a job."""
    long(STEPS)


def fan(width: int) -> None:
    """Run waiting steps beside one another, then a join."""
    expect(wide(width).invoke({"values": []}, config(), durability=DURABILITY)["values"][-1], width)


def share(jobs: int) -> None:
    """Run jobs one after the other: LangGraph is fastest so, as its threads share an interpreter."""
    for _ in range(jobs):
        one(0)


def main() -> None:
    """Create the tables, start the processes of B2, then follow orders."""
    saver().setup()
    pool = ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn"))
    atexit.register(pool.shutdown)
    list(pool.map(share, [1] * PROCESSES))

    def many(jobs: int) -> None:
        list(pool.map(share, [jobs // PROCESSES] * PROCESSES))

    serve({"B1": one, "B2": many, "B3": fan, "B4": long})


if __name__ == "__main__":
    main()
