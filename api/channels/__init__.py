"""Receives what comes from channels: a module for each kind proves who posts, and makes messages or answers of it."""
