"""Tenants: whose rows are whose, what each may use, and who may speak for one."""
