"""Runs that no client has begun: the pods of a declared job start one by themselves."""
