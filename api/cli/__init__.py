"""Commands that ask the API over HTTP."""
