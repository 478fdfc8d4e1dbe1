"""The systems that planq is compared with, each doing the same work in the way that its own documentation shows.

They run in an environment of their own (`environment`), in processes that take orders (`orders`), on the database
and broker servers that planq is measured on. Nothing here but `environment` and `subjects` may import planq.
"""
