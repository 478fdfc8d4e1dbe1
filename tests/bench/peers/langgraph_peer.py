"""LangGraph with its Postgres checkpointer: a job is a graph of five nodes, each committed before the next begins.

It runs in the client's own process, without broker or HTTP; the many jobs of B2 in two processes. The job of B14 is
LangGraph's own agent, with a model that takes no time. `PEER_DATABASE` is a database of its own.
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
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from psycopg.rows import dict_row

from tests.bench.peers.orders import STEPS, WAIT_SECONDS, expect, orders, serve

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


@tool
def following(value: int) -> int:
    """Return the number after the value."""
    return value + 1


class Scripted(BaseChatModel):
    """Calls `following` with what came of the call before, in each of so many turns, and then answers."""

    turns: int

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        """Return this model: it knows its tool."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        results = [message for message in messages if isinstance(message, ToolMessage)]
        value = int(str(results[-1].content)) if results else 1
        said = AIMessage(str(value))
        if len(results) < self.turns:
            call = {"name": "following", "args": {"value": value}, "id": f"call_{len(results)}"}
            said = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=said)])


@cache
def agent(turns: int) -> Any:
    """Return an agent whose model calls a tool so often."""
    return create_agent(Scripted(turns=turns), [following], checkpointer=saver())


def converse(turns: int) -> None:
    """Run an agent of so many turns to its answer."""
    asked = {"messages": [("user", "Count.")]}
    expect(agent(turns).invoke(asked, config(), durability=DURABILITY)["messages"][-1].content, str(turns + 1))


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

    serve({**orders(one, many, long), "B3": fan, "B14": converse})


if __name__ == "__main__":
    main()
