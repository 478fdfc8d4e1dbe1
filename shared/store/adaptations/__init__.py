"""What models' servers refuse: the table and its store."""
