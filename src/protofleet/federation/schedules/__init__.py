"""Which round opens when, for whom, and when it closes: pure state machines."""
