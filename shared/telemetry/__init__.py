"""Logs: constant event names with fields, one line a transition, ids always, payloads never."""
