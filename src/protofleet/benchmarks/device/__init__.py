"""What a device pays for a bundle: ``protofleet bench device``."""
