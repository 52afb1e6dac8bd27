"""The verdict on a failed run: the rank that failed first, the cause and the words for it."""
