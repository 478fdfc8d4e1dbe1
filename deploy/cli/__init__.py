"""The command `planq`: its composition, and the commands for who runs it."""
