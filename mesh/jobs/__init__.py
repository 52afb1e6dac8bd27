"""Jobs: runs that are looked after, with their events, decisions, queue, store and steward."""
