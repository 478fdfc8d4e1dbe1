"""Requests that go on: streams of events, waits."""
