"""What ``import protofleet`` gives (``docs/api.md``); the names are listed in ``protofleet``."""
