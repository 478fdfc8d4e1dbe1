"""The pages at `/`: what an operator and a newcomer see of planq, and act on.

Every handler calls the route of the API that does the same, in this process, and shows what that answered
(`frame/route.py`): the pages know nothing that the API does not tell, and may do nothing that it refuses.
Reading needs no script; the modules in `assets/` keep lists and jobs up to date.
"""
