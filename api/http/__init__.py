"""HTTP as every route speaks it: JSON and problems, ranges, the path below which the API stands, uvicorn's bounds."""
