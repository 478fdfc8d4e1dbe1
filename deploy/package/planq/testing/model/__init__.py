"""The executable specification of transitions: a pure model that planq's tests hold equal to the SQL functions."""
