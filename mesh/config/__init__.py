"""Readers of flags, environment and YAML files, which return core values. No layer above reads settings itself."""
