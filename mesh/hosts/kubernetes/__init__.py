"""Pods as hosts: those that are there, and those that mesh makes."""
