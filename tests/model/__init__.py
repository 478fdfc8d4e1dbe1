"""The executable specification of transitions: a pure model that tests hold equal to the SQL functions."""
