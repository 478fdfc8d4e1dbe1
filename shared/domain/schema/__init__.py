"""JSON Schema, checked in bounded time, whatever the schema and the value."""
