"""Keys and certificates that agents show each other."""

from mesh.core.credentials import make_credentials as make_credentials
