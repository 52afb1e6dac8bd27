from benchmarks.rows import Chosen


def steady(chosen: Chosen) -> str:
    return ""
