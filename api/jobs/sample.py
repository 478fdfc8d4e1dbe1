"""What the sample job asks: of `planq sample`, and of the page of an installation in which nothing was asked yet."""

SAMPLE_INPUT = (
    'Search the handbook for "durable execution" and search the handbook for "how a step moves", '
    'then write a report titled "How planq keeps a job alive" from them'
)
