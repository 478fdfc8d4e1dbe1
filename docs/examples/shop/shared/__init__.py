"""What the shop's programs share: where its servers are, and its tables, which stand beside planq's."""

import os

import psycopg

BROKER = os.environ.get("SHOP_BROKER_URL", "redis://127.0.0.1:6379/0")
DATABASE = os.environ.get("SHOP_DATABASE_URL", "postgresql:///shop")

TABLES = """
CREATE TABLE IF NOT EXISTS stock (sku text PRIMARY KEY, left_over int NOT NULL CHECK (left_over >= 0));
CREATE TABLE IF NOT EXISTS jobs (id serial PRIMARY KEY, sku text NOT NULL, count int NOT NULL, planq_job text);
CREATE TABLE IF NOT EXISTS reserved (key text PRIMARY KEY, sku text NOT NULL, count int NOT NULL);
"""
"""The shop's orders have been called jobs for years."""


def database() -> psycopg.Connection:
    """Return a connection to the shop's own schema, whatever the role is called, that commits each statement."""
    return psycopg.connect(DATABASE, autocommit=True, options="-c search_path=public")
