"""Blobs in chunks, as the receiver asks for them."""
