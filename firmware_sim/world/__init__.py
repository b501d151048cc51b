"""What surrounds a device, in virtual time: its processor, battery, network and its owner's day."""
