"""What a device learns from: data files, recordings, and streams of its sensors."""
