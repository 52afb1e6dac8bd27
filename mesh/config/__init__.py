"""Flags, environment and YAML files in, core values out. Nothing above this layer reads a setting from anywhere."""
