"""What commands share: the client, the console, how they find the API, read their files and end."""
