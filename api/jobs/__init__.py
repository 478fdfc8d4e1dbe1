"""Jobs: looked at, held, taken up again, forked, cancelled."""
